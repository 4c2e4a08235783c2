"""The one step loop, and what a method declares and supplies.

A method is one file: a frozen config and a class registered by name. It supplies `configure`
(what it adds), `trainable` (what moves) and `objective` (logits and loss of a batch) and, where
it must, one of the other hooks. The loop, precision, reset, save, load and timing are here.

One batch: `route` → (`objective` → `update`) × `steps` → `answer` → `after`. How a batch comes to
it, and what else users call, is in `methods.answering`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError
from ostinato.methods._moving import Moving
from ostinato.methods.answering import Answering
from ostinato.methods.contract import (
    Input,
    MethodConfig,
    MethodInfo,
    Need,
    Objective,
    Predicts,
    Resources,
)
from ostinato.methods.persistence import Persistent
from ostinato.methods.sharing import Sharing
from ostinato.models import VisionModel, fingerprint
from ostinato.ops.around import Around
from ostinato.ops.batchnorm import BatchStatistics, OtherStatistics, moves_batch_norms
from ostinato.ops.blocks import choose_blocks
from ostinato.ops.optim import OptimizerState, cosine, make_optimizer, total_norm
from ostinato.ops.snapshot import RandomState, Scalars, State, Stateful
from ostinato.ops.trainable import Flags, Weights, claim, disclaim
from ostinato.types import Decision, StepOutput

__all__ = ["Input", "Method", "MethodConfig", "MethodInfo", "Objective", "Resources"]


class Method(Answering, Persistent, Moving, Sharing, nn.Module):
    """Base of all methods: call it with images, get logits; it adapts on the way.

    >>> from ostinato import adapt, checks
    >>> adapted = adapt(checks.small_model(), "tent", lr=1e-2)
    >>> adapted(checks.small_batches(1)[0]).shape, adapted.last.updated
    (torch.Size([8, 5]), True)
    """

    info: ClassVar[MethodInfo]
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    name: ClassVar[str] = ""
    default_preset: ClassVar[str | None] = None
    """The preset that is meant where none is named; None for the plain defaults."""
    rates: ClassVar[tuple[str, ...]] = ("lr",)
    """The settings that say how fast it learns online."""
    example: ClassVar[Mapping[str, Any]] = {}
    """Settings under which a few small batches teach it; the conformance suite uses them."""
    told_by_image: ClassVar[bool] = False
    """Whether true domains, where it is told them, are told for every image of a batch."""
    batch_statistics: ClassVar[bool] = True
    """Whether batch norms see the batch's own statistics where their parameters move, which is what
    the authors of methods that move them do; without, they keep the source's."""

    def __init__(
        self,
        model: VisionModel,
        config: MethodConfig | None = None,
        resources: Resources | None = None,
        targets: Any = None,
    ) -> None:
        super().__init__()
        self.config: Any = (config or self.Config()).beside(model.base)
        self.resources = resources or Resources()
        self.targets = targets
        self.resources.check(self.needs(self.config), self.name or type(self).__name__)
        self.fingerprint = fingerprint(model.base)
        claim(model.base, self)
        self.model = model
        self._lock = threading.RLock()
        self._frozen, self._detached = 0, False
        self.around: Around | None = None
        self.building = True
        self._flags = Flags.freeze(model)
        self._tracked: dict[str, Stateful] = {}
        self.counters = self.track("counters", Scalars(steps=0, size=None).with_sizes("size"))
        self.random = self.track("random", RandomState(self.config.seed))
        self.weights: Weights | None = None
        self._norms: OtherStatistics | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.events: list[str] = []
        self.last: StepOutput | None = None
        try:
            self.configure()
            self._set_up_training()
        except BaseException:
            self.detach()
            raise
        self.building = False
        self._initial = self._first_state()

    # What a method supplies.

    def configure(self) -> None:
        """Build what the method adds to the model, and `track` what changes."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """Source parameters that move, by name; the loop's own optimizer steps them."""
        return {}

    def objective(self, batch: Input) -> Objective:
        """Forward a batch; logits and, where something is to be learned, a loss."""
        return Objective(self.logits(batch))

    def route(self, batch: Input) -> Decision | None:
        """Recognise the batch's domain and prepare for it."""
        return None

    def steps(self, batch: Input) -> int:
        """How many updates this batch gets."""
        return int(self.config.steps)

    def update(self, batch: Input, objective: Objective) -> bool:
        """Descend the loss once; False where nothing moved."""
        if self.optimizer is None:
            return False
        return self.descend(objective, [self.optimizer])

    def answer(self, batch: Input, first: Objective, last: Objective) -> Tensor:
        """The logits to return; by default what `info.predicts` says."""
        when = self.predicts
        if when == "after":
            with torch.no_grad(), self.autocast():
                return self.logits(batch)
        return (last if when == "last" else first).logits

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Whatever follows the update: teachers, restoration, discriminator, guards."""

    def abort(self, decision: Decision | None) -> None:
        """Undo what `route` did, when a batch fails on its way."""

    def release(self) -> None:
        """Take out of the model what `configure` put in."""

    def trained(self) -> int:
        """How many parameters one step moves."""
        return sum(p.numel() for p in self.trainable().values())

    def added(self, domains: int = 1) -> int:
        """How many learned parameters stand beside the source model's after so many domains.

        A teacher's copy of what the model has itself is not counted.
        """
        own = {id(p) for p in self._flags.parameters()}
        return sum(p.numel() for p in self.parameters() if id(p) not in own)

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """What must be made from source images before deployment (pixels in [0, 1])."""
        raise ConfigError(f"{cls.name} needs no preparation.")

    @classmethod
    def scaled(cls, config: Any, factor: float) -> dict[str, Any]:
        """Settings under which it learns `factor` times as fast; empty where nothing is learned."""
        return {name: factor * getattr(config, name) for name in cls.rates}

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """The help needed under these settings."""
        return cls.info.needs

    # What the loop offers to a method.

    @property
    def predicts(self) -> Predicts:
        """When the prediction is taken; a `predict` setting, where there is one, decides."""
        chosen: Predicts = getattr(self.config, "predict", self.info.predicts)
        return chosen

    def descend(self, objective: Objective, optimizers: list[torch.optim.Optimizer]) -> bool:
        """Backward and step; an update that is not finite, or rests on no image, is left out."""
        loss = objective.loss
        if loss is None or not loss.requires_grad:
            return False
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for o in optimizers for g in o.param_groups for p in g["params"]]
        self.processes.average_gradients(parameters)
        if not self.sound(objective, parameters):
            return False
        scale = 1.0 if self.config.total_steps is None else self._annealing()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
            optimizer.step()
        return True

    def sound(self, objective: Objective, parameters: list[nn.Parameter]) -> bool:
        """Whether gradients and loss are finite and at least one image took part."""
        if objective.loss is None:
            return False
        used = objective.used if objective.used is not None else len(objective.logits)
        norm = total_norm(parameters).to(objective.loss.device)
        count = torch.as_tensor(used, dtype=torch.float32, device=norm.device)
        loss, size, images = torch.stack([objective.loss.detach().float(), norm, count]).tolist()
        objective.extra |= {"loss": loss, "used": int(images)}
        if not (abs(loss) < float("inf") and size < float("inf")):
            self.events.append("left out a non-finite update")
            return False
        return bool(images > 0)

    # The loop.

    def advance(self, batch: Input) -> StepOutput:
        """Everything that follows a checked batch; wrappers call it on the method inside."""
        decision = self.route(batch)
        try:
            first, last, updated = self._adapt(batch)
            logits = self.answer(batch, first, last).detach().float()
            self.after(batch, last, decision)
        except BaseException:
            self.abort(decision)
            raise
        self.counters["steps"] += 1
        self.counters["size"] = list(batch.pixels.shape[-2:])
        return StepOutput(
            logits=logits,
            decision=decision,
            loss=last.extra.get("loss"),
            used=int(last.extra.get("used", 0)),
            updated=updated,
            events=tuple(self.events),
        )

    def _adapt(self, batch: Input) -> tuple[Objective, Objective, bool]:
        first: Objective | None = None
        updated = False
        for _ in range(self.steps(batch)):
            with self.autocast():
                last = self.objective(batch)
            first = first or last
            updated |= self.update(batch, last)
        assert first is not None
        return first, last, updated

    def detach(self) -> nn.Module:
        """Take the method out; returns the original module with its original weights."""
        with self._lock:  # whoever is at work ends it first
            self._detached = True
            self.release()
            if self._norms is not None:
                self._norms.remove()
            choose_blocks(self.model.base, None)
            disclaim(self.model.base, self)
            if self.weights is not None:
                self.weights.restore()
            self._flags.restore()
        return self.model.base if self.around is None else self.around.restore()

    def summary(self) -> str:
        """A few lines: what is adapted, what moves, what help it has."""
        total = sum(p.numel() for p in self._flags.parameters())
        moved = self.trained()
        lines = [
            f"{self.info.title} on {type(self.model.base).__name__}",
            f"  source model     {total / 1e6:.2f} M parameters, normalize={self.model.normalize}",
            f"  trained per step {moved / 1e6:.3f} M = {100 * moved / total:.2f} %",
        ]
        help_used = ", ".join(sorted(self.needs(self.config))) or "none"
        return "\n".join([*lines, *self.details(), f"  help             {help_used}"])

    def details(self) -> list[str]:
        """More lines for the summary."""
        return []

    def diagnose(self) -> dict[str, Any]:
        """What a report may draw of the state after a run, as plain values; changes nothing."""
        return {}

    def _set_up_training(self) -> None:
        parameters = self.trainable()
        if not parameters:
            return
        self.weights = self.track("weights", Weights(parameters))
        if self.batch_statistics and moves_batch_norms(self.model, parameters.values()):
            self._norms = BatchStatistics(self.model)
        self.optimizer = make_optimizer(
            self.config.optimizer,
            list(parameters.values()),
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
            momentum=self.config.momentum,
            nesterov=self.config.nesterov,
        )
        self.track("optimizer", OptimizerState(self.optimizer))

    def _annealing(self) -> float:
        return cosine(self.counters["steps"], self.config.total_steps)
