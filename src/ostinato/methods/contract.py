"""What a method declares, what travels between it and the step loop, and which one a user means.

Which method and preset are meant, where only one of them or neither is named, is read from what
methods declare: which are this project's own, the preset each means where none is named, and what
each preset needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ostinato.config import Config, Seed
from ostinato.errors import ConfigError, MissingResource, did_you_mean
from ostinato.models import check_classes
from ostinato.ops.expect import check_finite
from ostinato.ops.optim import OptimizerName
from ostinato.ops.precision import Precision
from ostinato.ops.snapshot import State
from ostinato.ops.statistics import SourceStatistics
from ostinato.ops.views import innermost
from ostinato.registry import METHODS

Need = Literal["source statistics", "prepared file", "domain labels"]
Predicts = Literal["before", "after", "last", "teacher"]
Norms = Literal["any", "batch"]
Oracle = str | tuple[str, ...] | None


@dataclass(frozen=True)
class MethodInfo:
    """What a method declares; tables and docs show it.

    Attributes:
        title: how tables call it.
        paper: where it comes from.
        trains: what moves, in words.
        predicts: "before" the update, "after" it, the "last" of several steps, the "teacher".
        tasks: what it can be used for.
        needs: help beyond the unlabeled stream.
        setting: what its usual settings were chosen for: data, architecture, and by whom where
            that was not its authors.
        differences: from its authors' release, in words.
        published: its authors' own figure and the protocol it holds for, where known.
        measured: where it beats the source model in this project's tables, or why it does not.
        norms: "batch" where it works on models with batch norm alone.
        own: whether it is this project's own: its presets are known by their names alone, and
            tables show them last, each as a row of its own.
        annealed: presets whose rate tables anneal over the stream.
        colours: places in the report's palette that presets keep from page to page; "" is the
            method without one, and -1 is grey.
        draws: figures that the report can draw of its state ("attention").

    >>> MethodInfo(title="Mine", paper="none", trains="nothing").predicts
    'before'
    """

    title: str
    paper: str
    trains: str
    predicts: Predicts = "before"
    tasks: frozenset[str] = frozenset({"classification"})
    needs: frozenset[Need] = frozenset()
    setting: str = "-"
    differences: str = "none known"
    published: str = ""
    measured: str = ""
    norms: Norms = "any"
    own: bool = False
    annealed: frozenset[str] = frozenset()
    colours: Mapping[str, int] = field(default_factory=dict)
    draws: frozenset[str] = frozenset()


class MethodConfig(Config):
    """Settings every method has.

    >>> MethodConfig.parse({"lr": 1e-4, "optimizer": "sgd"}).lr
    0.0001
    >>> MethodConfig.parse({"lrr": 1e-4})
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: MethodConfig has no setting 'lrr'. Did you mean 'lr'? ...
    """

    seed: Seed = Field(0, description="seeds everything random in the method")
    precision: Precision = Field(
        "fp32", description="bf16 runs under autocast; tf32 rounds the products of a GPU's fp32"
    )
    optimizer: OptimizerName = Field("adam", description="adam, adamw or sgd")
    lr: float = Field(1e-3, ge=0, description="learning rate")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum, for sgd")
    nesterov: bool = Field(False, description="Nesterov's form of the momentum, for sgd")
    steps: int = Field(1, ge=1, description="updates per batch")
    total_steps: int | None = Field(
        None, ge=1, description="length of the stream, for cosine annealing; constant without"
    )
    _model: Any = PrivateAttr(None)

    def beside(self, model: nn.Module) -> Self:
        """The same settings, which also answer for what a Hugging Face model's own config says.

        Its pipelines ask a model's config for labels and the like.
        """
        own = getattr(innermost(model), "config", None)
        if not hasattr(own, "id2label"):
            return self
        copy = self.model_copy()
        copy._model = own
        return copy

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            if name.startswith("_") or not hasattr(self._model, name):
                raise
            return getattr(self._model, name)


@dataclass(frozen=True)
class Resources:
    """What was prepared before deployment.

    Attributes:
        statistics: source statistics (`ostinato.collect_statistics`).
        prepared: what `ostinato prepare METHOD` wrote.

    >>> Resources().statistics is None
    True
    """

    statistics: SourceStatistics | None = None
    prepared: State | None = None

    def check(self, needs: frozenset[Need], name: str) -> None:
        """Raise a `MissingResource` that says what to do where a method needs more than this."""
        if "source statistics" in needs and self.statistics is None:
            raise MissingResource(
                f"{name} needs source statistics: pass "
                "statistics=ostinato.collect_statistics(model, clean_images) or the path of a "
                "saved file."
            )
        if "prepared file" in needs and self.prepared is None:
            raise MissingResource(
                f"{name} needs a prepared file: run 'ostinato prepare {name} "
                "--model ... --data ... --out FILE' once, then pass prepared=FILE."
            )


@dataclass(frozen=True)
class Input:
    """One batch as a method sees it: pixels in [0, 1], and the label space in use.

    Attributes:
        pixels: of the whole batch.
        classes: the model's output columns in use, None for all.
        oracle: the true domain's name, for methods that are told it; one an image, for those that
            are told by image.
        mine: where this process' own images are, where several share the work; None for all.

    >>> import torch
    >>> len(Input(torch.rand(2, 3, 8, 8)))
    2
    """

    pixels: Tensor
    classes: Tensor | None = None
    oracle: str | tuple[str, ...] | None = None
    mine: slice | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            check_classes(self.classes)

    def __len__(self) -> int:
        return int(self.pixels.shape[0])


@dataclass
class Objective:
    """What a method made of a batch: logits to predict from and a loss to descend.

    >>> import torch
    >>> Objective(torch.zeros(4, 10), torch.tensor(0.5), used=3).used
    3
    """

    logits: Tensor
    loss: Tensor | None = None
    used: Tensor | int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def resolve_config(kind: Any, preset: str | None, settings: Mapping[str, Any]) -> Any:
    """A method's config from a preset and single settings on top; nested settings are merged."""
    values: dict[str, Any] = {}
    if preset is not None:
        if preset not in kind.presets:
            hint = did_you_mean(preset, kind.presets)
            raise ConfigError(f"{kind.name} has no preset {preset!r}. {hint}")
        values = dict(kind.presets[preset])
    for key, value in settings.items():
        known = values.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        values[key] = {**known, **value} if both else value  # type: ignore[dict-item]
    return kind.Config.parse(values)


def check_resources(model: nn.Module, statistics: Any, prepared: Any) -> None:
    """Refuse statistics and preparations that no method could use, before anything is built."""
    if prepared is not None:
        if not isinstance(prepared, State):
            raise ConfigError(f"prepared is a State or a file, not {type(prepared).__name__}.")
        check_finite(prepared, "What was prepared")
    if statistics is None:
        return
    if not isinstance(statistics, SourceStatistics):
        raise ConfigError(
            f"statistics come from ostinato.collect_statistics, or are a file, not "
            f"{type(statistics).__name__}."
        )
    numbers = (*statistics.means, *statistics.stds)
    if not all(bool(value.isfinite().all()) for value in numbers):
        raise ConfigError("The source statistics hold NaN or infinite numbers: collect them anew.")
    widths = {int(size) for parameter in model.parameters() for size in parameter.shape}
    wrong = sorted({value.numel() for value in numbers} - widths)
    if wrong:
        raise ConfigError(
            f"These source statistics ({statistics.describe()}) are of another model: none of this "
            f"one's layers is {wrong[0]} wide. Collect them anew with ostinato.collect_statistics."
        )


def own_methods() -> list[str]:
    """The names of this project's own methods.

    >>> own_methods()
    ['dual_expert', 'ostinato']
    """
    return [name for name in METHODS.names() if METHODS[name].info.own]


def is_own(method: str) -> bool:
    """Whether a method is this project's own; False for a name that nobody registered."""
    return method in METHODS and bool(METHODS[method].info.own)


def owner_of(preset: str) -> str | None:
    """The own method that has a preset of this name.

    >>> owner_of("robust"), owner_of("paper"), owner_of("imagenet-c")
    ('ostinato', 'dual_expert', None)
    """
    return next((name for name in own_methods() if preset in METHODS[name].presets), None)


def _needs_of(method: str, preset: str | None) -> frozenset[Need]:
    """The help that a method needs under a preset."""
    kind = METHODS[method]
    found: frozenset[Need] = kind.needs(resolve_config(kind, preset, {}))
    return found


def free_presets(method: str, need: Need) -> list[str]:
    """Presets without a need that can stand in for this method's; own methods share theirs."""
    names = own_methods() if is_own(method) else [method]
    return [p for name in names for p in METHODS[name].presets if need not in _needs_of(name, p)]


def choose_method(
    method: str | None, preset: str | None, statistics: bool
) -> tuple[str, str | None]:
    """The method and preset that are meant.

    Presets of own methods are known by name alone, whichever of these methods is named. Where
    neither is named, it is the own method that makes use of most of what is given.

    >>> choose_method(None, None, True), choose_method(None, None, False)
    (('ostinato', 'robust'), ('dual_expert', 'source-free'))
    >>> choose_method("dual_expert", "robust", True), choose_method("tent", None, True)
    (('ostinato', 'robust'), ('tent', None))
    """
    if method is not None and not is_own(method):
        return method, preset
    if preset is None:
        chosen = method or _fitting(statistics)
        return chosen, METHODS[chosen].default_preset
    return owner_of(preset) or method or _fitting(True), preset


def _fitting(statistics: bool) -> str:
    """The own method whose default preset needs most of what there is, and nothing else."""
    given: frozenset[Need] = frozenset({"source statistics"}) if statistics else frozenset()
    needs = {name: _needs_of(name, METHODS[name].default_preset) for name in own_methods()}
    able = [name for name, wanted in needs.items() if wanted <= given]
    return max(able, key=lambda name: len(needs[name]))
