"""What methods share that stand beside a frozen model and may be warmed on source images."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ostinato.methods._adapters import Adapted
from ostinato.methods._warmup import take_over, warm_beside
from ostinato.methods.base import Method, MethodConfig
from ostinato.methods.contract import Need
from ostinato.models import VisionModel
from ostinato.ops.snapshot import State


class Warmed(Method):
    """A method with parts beside a model's layers, which a preparation may warm.

    Its settings have `warmed`, and `warm_steps`, `warm_lr`, `warm_batch` and `warm_held`.

    Attributes:
        adapted: the model with the parts beside it.
    """

    adapted: Adapted
    example = {"warm_steps": 5}

    @classmethod
    @abstractmethod
    def beside(cls, model: VisionModel, config: Any, generator: torch.Generator) -> Adapted:
        """The model with the method's parts, which have no effect yet."""

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """Warmed parts, unless it starts without."""
        return cls.info.needs if getattr(config, "warmed", False) else frozenset()

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Warm the parts on source images, with their labels or the model's own."""
        generator = torch.Generator().manual_seed(config.seed)
        return warm_beside(
            cls.beside(model, config, generator),
            images,
            labels,
            steps=config.warm_steps,
            lr=config.warm_lr,
            batch=config.warm_batch,
            held=config.warm_held,
            generator=generator,
        )

    def configure(self) -> None:
        """Parts in place, with the values that they were warmed to."""
        self.adapted = self.beside(self.model, self.config, self.random.generator)
        if self.config.warmed:
            assert self.resources.prepared is not None
            take_over(self.adapted.added(), self.resources.prepared)

    def release(self) -> None:
        """Take the parts out."""
        if hasattr(self, "adapted"):
            self.adapted.detach()
