"""What methods share that hold another method inside: its needs, rates, preparation and steps."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ostinato.methods.base import Input, Method, MethodConfig, Objective, Resources
from ostinato.methods.contract import Need
from ostinato.models import VisionModel
from ostinato.ops.snapshot import State
from ostinato.types import StepOutput


class Wrapping(Method):
    """A method whose steps are another one's; a subclass says which, by `choose`."""

    inner: Method
    moved: bool = False

    @classmethod
    @abstractmethod
    def choose(cls, config: Any) -> tuple[type[Method], MethodConfig]:
        """The inner method's class and its config; seed and precision are the wrapper's."""

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """What the inner method needs."""
        kind, inner = cls.choose(config)
        return kind.needs(inner)

    @classmethod
    def scaled(cls, config: Any, factor: float) -> dict[str, Any]:
        """The inner method's rates: the wrapper has none for the model."""
        kind, inner = cls.choose(config)
        return {"inner_settings": {**config.inner_settings, **kind.scaled(inner, factor)}}

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """The inner method's preparation."""
        kind, inner = cls.choose(config)
        return State.join({"inner": kind.prepare(model, images, labels, inner)})

    def take_in(self) -> Method:
        """Make the inner method, whose weights are the wrapper's from then on."""
        kind, inner = self.choose(self.config)
        given = self.resources.prepared
        prepared = given.part("inner") if given is not None and "inner" in given.values else None
        resources = Resources(self.resources.statistics, prepared)
        self.inner = kind(self.model, inner, resources, self.targets)
        self.weights = self.inner.weights
        return self.inner

    def advance_inner(self, batch: Input) -> StepOutput:
        """One whole step of the inner method, whose events are the wrapper's."""
        self.inner.events = self.events
        output = self.inner.advance(batch)
        self.moved = output.updated
        return output

    def update(self, batch: Input, objective: Objective) -> bool:
        """The inner method has done it already."""
        return self.moved

    def release(self) -> None:
        """Take the inner method out."""
        if hasattr(self, "inner"):
            self.inner.detach()

    def autocast(self) -> AbstractContextManager[Any]:
        """The inner method sets its own precision."""
        return nullcontext()

    def trained(self) -> int:
        """What the inner method moves."""
        return self.inner.trained()
