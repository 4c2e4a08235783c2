"""What users call on every method: a plain call, which is a step, and predict, learn, frozen."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor

from ostinato.errors import ConfigError, InputError, StateError
from ostinato.methods.contract import Input, MethodConfig, MethodInfo, Need, Oracle
from ostinato.models import VisionModel
from ostinato.ops.allocator import hold_little
from ostinato.ops.batchnorm import OtherStatistics
from ostinato.ops.precision import products
from ostinato.ops.processes import Processes
from ostinato.ops.trainable import Weights
from ostinato.types import StepOutput

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Answer(dict[str, Tensor]):
    """Logits by name and by place, as Hugging Face's models answer.

    >>> answer = Answer(logits=torch.zeros(1, 2))
    >>> answer.logits is answer["logits"] is answer[0]
    True
    """

    def __getitem__(self, key: Any) -> Tensor:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _named_answer(logits: Tensor) -> Any:
    """The kind of answer that Hugging Face's own models give where its library is in use.

    Its pipelines for segmentation take no other.
    """
    library = sys.modules.get("transformers.modeling_outputs")
    if library is None:
        return Answer(logits=logits)
    kind = "SemanticSegmenterOutput" if logits.ndim > 2 else "ImageClassifierOutput"
    return getattr(library, kind)(logits=logits)


def _eagerly(work: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function run as it is written, also where a caller is compiled."""
    made: dict[str, Callable[_P, _T]] = {}

    @wraps(work)
    def run(*values: _P.args, **named: _P.kwargs) -> _T:
        if "torch._dynamo" not in sys.modules:  # nothing was compiled, and loading it takes seconds
            return work(*values, **named)
        if "apart" not in made:
            made["apart"] = torch.compiler.disable(work)
        return made["apart"](*values, **named)

    return run


class Answering:
    """Mixed into `Method`: answers without learning, and the switch between the two.

    >>> import ostinato
    >>> from ostinato.checks import small_batches, small_model
    >>> adapted = ostinato.adapt(small_model(), "tent", lr=1e-2)
    >>> with adapted.frozen():
    ...     logits = adapted(small_batches(1)[0])
    >>> adapted.last.updated
    False
    """

    name: ClassVar[str]
    info: ClassVar[MethodInfo]
    config: Any
    model: VisionModel
    weights: Weights | None
    _norms: OtherStatistics | None
    last: StepOutput | None
    events: list[str]
    processes: Processes
    _lock: threading.RLock
    _frozen: int
    _detached: bool

    if TYPE_CHECKING:  # what `Method` and `Sharing` bring

        def advance(self, batch: Input) -> StepOutput: ...  # noqa: D102
        @classmethod
        def needs(cls, config: MethodConfig) -> frozenset[Need]: ...  # noqa: D102
        def standing(self) -> str: ...  # noqa: D102

    @_eagerly
    def forward(
        self,
        images: Tensor | None = None,
        classes: Tensor | None = None,
        *,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
    ) -> Any:
        """Predict a batch and adapt to it. Works under `no_grad` and `inference_mode` too.

        Args:
            images: a batch; the answer is its logits.
            classes: the label space in use, as indices of outputs.
            pixel_values: a batch that a Hugging Face image processor has normalised; the answer
                holds the logits by name, as such models' answers do.
            pixel_mask: what some processors give beside it; all of an image has to count.
        """
        if pixel_values is not None:
            _check_processed(pixel_values, pixel_mask)
            if self.model.normalize == "model":
                pixel_values = self.model.restored(pixel_values).clamp(0, 1)
            return _named_answer(self.forward(pixel_values, classes))
        if images is None or isinstance(images, Mapping):
            raise InputError("Call it with a tensor of images, or as adapted(**processor(...)).")
        if self._frozen:
            return self.predict(images, classes=classes)
        return self.step(images, classes=classes).logits

    def step(
        self, images: Tensor, *, classes: Tensor | None = None, oracle: Oracle = None
    ) -> StepOutput:
        """One batch; `oracle` (a true domain name) only for methods that declare that need."""
        started = time.perf_counter()
        with self._lock, torch.inference_mode(False), torch.enable_grad(), self._exactness():
            self._refuse_detached()
            batch = self._receive(images, classes, oracle)
            self.events = []
            try:
                if self.processes.alone:
                    output = self.advance(batch)
                else:
                    with self.processes.together():
                        output = self.advance(batch).part(batch.mine)
            finally:
                if self.model.normalize == "input":
                    self.model.release()
        if self.model.device.type == "cpu":  # what a batch frees on a GPU is not the host's memory
            hold_little()
        output.seconds = time.perf_counter() - started
        self.last = output
        return output

    def _receive(
        self, images: Tensor, classes: Tensor | None, oracle: Oracle, what: str = "step"
    ) -> Input:
        """The checked batch of all processes; `what` they are all about to do with it."""
        if oracle is not None and "domain labels" not in self.needs(self.config):
            oracle = None  # a method that does not declare the need never sees the name
        mine = None
        if not self.processes.alone:
            shown = classes.tolist() if isinstance(classes, Tensor) else classes
            given = lambda: f"{what} {self.standing()} {shown}"  # noqa: E731
            images, mine = self.processes.whole(images, given)
        pixels = self.model.check(images)
        if pixels.is_inference():
            pixels = pixels.clone()
        if classes is not None:
            classes = self.model.check_classes(classes)
        return Input(pixels, classes, oracle, mine)

    def logits(self, batch: Input, pixels: Tensor | None = None) -> Tensor:
        """The model's logits for the batch (or for other pixels), in its label space."""
        given, alone = batch.pixels if pixels is None else pixels, self.processes.alone
        logits: Tensor = self.model(given if alone else self.processes.share(given))
        if logits.ndim > 2 and "segmentation" not in self.info.tasks:
            raise ConfigError(f"{self.name} is for classification; this model predicts per pixel.")
        logits = logits if batch.classes is None else logits.index_select(1, batch.classes)
        return logits if alone else self.processes.gathered(logits, len(given))

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision the config asks for."""
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=enabled)

    def _exactness(self) -> AbstractContextManager[None]:
        """How exact fp32 products are meanwhile; nothing is switched where that is as usual."""
        precision = self.config.precision
        return products(precision) if precision == "tf32" else nullcontext()

    def _refuse_detached(self) -> None:
        if self._detached:
            raise StateError(
                "This method was taken out of its model by unwrap; adapt the model again."
            )

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile; refused where unwrap came first."""
        with self._lock:
            self._refuse_detached()
            yield

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's precision."""
        return self.model.dtype

    def predict(
        self, images: Tensor, *, classes: Tensor | None = None, source: bool = False
    ) -> Tensor:
        """Answer a batch without learning from it now.

        Methods that learn apart from answering queue what they saw for `learn`; the others only
        answer, with what they are at present.

        Args:
            images: as for a call.
            classes: as for a call.
            source: also ask the source model; its answer is in `last.source_logits`.
        """
        self._refuse_detached()
        started = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad(), self._exactness():
            # An image of a new size is tried on the model, which whoever learns may be holding.
            with nullcontext() if self.model.knows(images) else self._lock:
                batch = self._receive(images, classes, None, "predict")
            with self.processes.together():
                output = self.respond(batch)
                if source:
                    output.source_logits = self.source_logits(batch)
            output = output.part(batch.mine)
        output.seconds = time.perf_counter() - started
        self.last = output
        return output.logits

    def learn(self) -> bool:
        """Take in what `predict` queued; whether anything moved."""
        self._refuse_detached()
        return False

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, calls answer and nothing is learned or queued."""
        with self._lock:  # counted, for several threads may be inside
            self._frozen += 1
        try:
            yield
        finally:
            with self._lock:
                self._frozen -= 1

    def respond(self, batch: Input) -> StepOutput:
        """The answer of `predict`: a forward of the model as it is now."""
        with self._at_work():
            try:
                with self.autocast():
                    logits = self.preview(batch)
            finally:
                self.model.release()
        return StepOutput(logits.detach().float())

    def preview(self, batch: Input) -> Tensor:
        """Logits without an update; methods that answer with a teacher ask that."""
        return self.logits(batch)

    def source_logits(self, batch: Input) -> Tensor:
        """What the source model says to a batch."""
        with self._at_work(), self.autocast():
            before = self._to_source()
            try:
                return self.logits(batch).detach().float()
            finally:
                before()

    def _to_source(self) -> Any:
        """Put the source's weights and statistics in place; returns what puts the present back."""
        weights, norms = self.weights, self._norms
        now = None if weights is None else weights.export_state().clone()
        if weights is not None:
            weights.restore()
        if norms is not None:
            norms.on = False

        def back() -> None:
            if weights is not None and now is not None:
                weights.import_state(now)
            if norms is not None:
                norms.on = True

        return back


def _check_processed(pixel_values: Any, pixel_mask: Any) -> None:
    """Refuse what a processor gives without `return_tensors="pt"`, and padded images."""
    if not isinstance(pixel_values, Tensor):
        kind = type(pixel_values).__name__
        raise InputError(
            f"pixel_values should be a torch tensor, not {kind}: ask the processor for "
            'return_tensors="pt".'
        )
    if pixel_mask is not None and not bool(torch.as_tensor(pixel_mask).all()):
        raise InputError("pixel_mask leaves parts of images out: resize them instead of padding.")
