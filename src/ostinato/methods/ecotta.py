"""EcoTTA: small meta networks beside frozen parts, held near what the frozen parts would say."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._adapters import Adapted, beside_parts
from ostinato.methods._settings import SgdConfig, WarmedConfig
from ostinato.methods._warmed import Warmed
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.models import VisionModel
from ostinato.ops.consistency import masked_mean
from ostinato.ops.losses import entropy_threshold, softmax_entropy
from ostinato.registry import METHODS


def _distillation(adapted: Adapted) -> Tensor:
    """Sum over parts of the mean absolute difference to the frozen part's output."""
    return torch.stack([meta.gap for meta in adapted.parts()]).sum()


@METHODS.register("ecotta")
class Ecotta(Warmed):
    """Pull the meta networks to what the frozen parts say, then lower the confident entropy.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("ecotta").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="EcoTTA (our variant)",
        paper="Song et al., CVPR 2023",
        trains="meta networks beside groups of blocks",
        setting="CIFAR-C, WideResNet; ImageNet-C, ResNet-50",
        differences=(
            "our variant, for transformers (there is no official release, and the one public port "
            "is for CNNs): a meta network is a scale and shift of the part's output (in place "
            "of a batch norm) plus a GELU bottleneck of the part's input (in place of a "
            "convolution), and starts without effect; parts are equal shares of the blocks; "
            "the warm-up keeps what held-out source images like best; "
            "warmed=False runs from that start and needs no file"
        ),
        predicts="last",
        needs=frozenset({"prepared file"}),
    )

    class Config(SgdConfig, WarmedConfig):
        """Settings of EcoTTA.

        >>> Ecotta.Config().warm_held
        0.2
        """

        lr: float = Field(5e-3, ge=0, description="learning rate")
        parts: int = Field(4, ge=1, description="K: groups of blocks with a meta network each")
        rank: int = Field(32, ge=1, description="width of a meta network's bottleneck")
        kappa: float = Field(
            0.4, gt=0, description="entropy, in ln C, above which nothing is learned"
        )
        distillation: float = Field(0.5, ge=0, description="weight of the self-distilled term")
        warm_lr: float = Field(5e-4, gt=0, description="learning rate of the preparation")
        warm_held: float = Field(
            0.2, ge=0, lt=1, description="share of images that ends it in time"
        )

    presets = {"imagenet-c": {"lr": 5e-3}, "cifar100-c": {"lr": 5e-3}}

    @classmethod
    def beside(cls, model: VisionModel, config: Any, generator: torch.Generator) -> Adapted:
        """Meta networks beside the groups of blocks."""
        return beside_parts(model, config.parts, config.rank, generator)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The meta networks."""
        return self.adapted.added()

    def objective(self, batch: Input) -> Objective:
        """Each part's distance to its frozen self."""
        logits = self.logits(batch)
        return Objective(logits, self.config.distillation * _distillation(self.adapted))

    def update(self, batch: Input, objective: Objective) -> bool:
        """A step of the regulariser, then one of the entropy of a second forward, which predicts.

        Where no image is confident the second step has no slope, and momentum alone moves.
        """
        moved = super().update(batch, objective)
        with self.autocast():
            logits = self.logits(batch)
        entropy = softmax_entropy(logits)
        keep = entropy.detach() < entropy_threshold(self.config.kappa, logits.shape[1])
        second = Objective(logits, masked_mean(entropy, keep))
        moved |= super().update(batch, second)
        objective.logits = logits
        objective.extra |= second.extra | {"used": int(keep.sum())}
        return moved
