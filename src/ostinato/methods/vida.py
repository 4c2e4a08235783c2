"""ViDA: adapters of a low and a high rank, weighed by how sure the model is."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._adapters import Adapted, beside_attention
from ostinato.methods._settings import TeacherConfig, WarmedConfig
from ostinato.methods._warmed import Warmed
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.models import VisionModel
from ostinato.ops.augment import cotta_view
from ostinato.ops.consistency import symmetric_cross_entropy
from ostinato.ops.heads import select_classes
from ostinato.ops.optim import OptimizerState, make_optimizer
from ostinato.ops.teacher import Substitute, Teacher, restore_
from ostinato.ops.trainable import Weights
from ostinato.registry import METHODS
from ostinato.types import Decision


def _scales_for(uncertainty: float, threshold: float) -> tuple[float, float]:
    """The low and the high rank's scale: an unsure model leans on the high rank.

    >>> _scales_for(0.25, threshold=0.2), _scales_for(0.125, threshold=0.2)
    ((0.75, 1.25), (1.125, 0.875))
    """
    sign = 1 if uncertainty >= threshold else -1
    return 1 - sign * uncertainty, 1 + sign * uncertainty


@METHODS.register("vida")
class Vida(Warmed):
    """A mean teacher over model and adapters, with two rates and scales set by uncertainty.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("vida").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="ViDA",
        paper="Liu et al., ICLR 2024",
        trains="all parameters, and adapters beside the attention's linear layers",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "both scales follow the uncertainty, as in the paper (in the release the high rank's "
            "never changes); scales are at 1 while the uncertainty is measured, and start at 1 "
            "with every batch; the warm-up keeps what held-out source images like best; "
            "every image has its own draw of the views; "
            "warmed=False runs from adapters without effect and needs no file"
        ),
        predicts="teacher",
        needs=frozenset({"prepared file"}),
    )

    class Config(TeacherConfig, WarmedConfig):
        """Settings of ViDA.

        >>> Vida.Config(low_rank=2).high_rank
        128
        """

        lr: float = Field(5e-7, ge=0, description="learning rate of the model")
        adapter_lr: float = Field(2e-7, ge=0, description="learning rate of the adapters")
        low_rank: int = Field(1, ge=1, description="rank of the domain-specific adapters")
        high_rank: int = Field(128, ge=1, description="rank of the domain-agnostic adapters")
        ema: float = Field(0.999, ge=0, le=1, description="share the teacher's model keeps")
        adapter_ema: float = Field(0.8, ge=0, le=1, description="share the teacher's adapters keep")
        views: int = Field(10, ge=2, description="augmented views an uncertainty is taken from")
        uncertainty_scale: float = Field(0.1, gt=0, description="times the variance of the logits")
        threshold: float = Field(
            0.2, ge=0, description="uncertainty from which the high rank leads"
        )
        restore: float = Field(0.0, ge=0, le=1, description="probability to restore a source value")
        warm_held: float = Field(
            0.2, ge=0, lt=1, description="share of images that ends it in time"
        )

    presets = {
        "imagenet-c": {"optimizer": "sgd", "lr": 5e-7, "adapter_lr": 2e-7, "threshold": 0.2},
        "cifar100-c": {
            "optimizer": "adam",
            "lr": 3e-4,
            "adapter_lr": 1e-6,
            "restore": 0.1,
            "threshold": 0.05,
        },
    }
    rates = ("lr", "adapter_lr")

    @classmethod
    def beside(cls, model: VisionModel, config: Any, generator: torch.Generator) -> Adapted:
        """Adapters beside the attention's linear layers."""
        return beside_attention(model, config.low_rank, config.high_rank, generator)

    def configure(self) -> None:
        """Adapters in place, two teachers and the adapters' own optimizer."""
        super().configure()
        config = self.config
        added = self.adapted.added()
        self.adapter_weights = self.track("adapters", Weights(added))
        self.adapter_optimizer = make_optimizer(
            config.optimizer,
            list(added.values()),
            lr=config.adapter_lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
        )
        self.track("adapter optimizer", OptimizerState(self.adapter_optimizer))
        mine = self.trainable()
        self.teacher = self.track("teacher", Teacher(self.adapted, mine, config.ema))
        self.adapter_teacher = self.track(
            "adapter teacher", Teacher(self.adapted, added, config.adapter_ema)
        )
        self.substitute = Substitute(self.adapted, {**mine, **added})

    def trainable(self) -> dict[str, nn.Parameter]:
        """All of the source model."""
        return dict(self.model.base.named_parameters())

    def objective(self, batch: Input) -> Objective:
        """Weigh the ranks, then follow the teacher."""
        low, high = _scales_for(self._uncertainty(batch), self.config.threshold)
        self._scale(low, high)
        wanted = self._teach(batch, batch.pixels)
        mine = self.logits(batch).float()
        return Objective(wanted, symmetric_cross_entropy(mine, wanted).mean())

    def update(self, batch: Input, objective: Objective) -> bool:
        """Model and adapters, each at its own rate."""
        assert self.optimizer is not None
        return self.descend(objective, [self.optimizer, self.adapter_optimizer])

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Both teachers, then restoration."""
        self.teacher.update()
        self.adapter_teacher.update()
        if self.config.restore > 0 and self.weights is not None:
            weights = self.weights
            restore_(weights.parameters, weights.source, self.config.restore, self.random.generator)

    def trained(self) -> int:
        """Model and adapters."""
        return super().trained() + sum(p.numel() for p in self.adapted.added().values())

    def _uncertainty(self, batch: Input) -> float:
        """Variance of the teacher's logits over augmented views."""
        self._scale(1.0, 1.0)
        views = [
            self._teach(batch, cotta_view(batch.pixels, self.random.generator))
            for _ in range(self.config.views)
        ]
        return float(self.config.uncertainty_scale * torch.stack(views).var(0).mean())

    @torch.no_grad()
    def _teach(self, batch: Input, pixels: Tensor) -> Tensor:
        values = {**self.teacher.values, **self.adapter_teacher.values}
        return select_classes(self.substitute(values, pixels), batch.classes).float()

    def _scale(self, low: float, high: float) -> None:
        for adapter in self.adapted.parts():
            adapter.scales = (low, high)
