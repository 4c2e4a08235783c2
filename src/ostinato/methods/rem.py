"""REM: masked views of growing difficulty, kept consistent and ranked by entropy."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._masking import ClassAttention, kept, least_attended
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.ops.blocks import find_blocks
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


def mask_consistency(views: list[Tensor]) -> Tensor:
    """Cross-entropy of every harder view against every easier one, which is not moved by it."""
    terms = [
        -(easy.detach().softmax(1) * hard.log_softmax(1)).sum(1).mean()
        for j, hard in enumerate(views)
        for easy in views[:j]
    ]
    return torch.stack(terms).sum()


def _entropy_ranking(views: list[Tensor], margin: float) -> Tensor:
    """An easier view should have no more entropy than a harder one, which is not moved by it."""
    entropies = [softmax_entropy(view) for view in views]
    terms = [
        torch.relu(easy - hard.detach() + margin).mean()
        for i, easy in enumerate(entropies)
        for hard in entropies[i + 1 :]
    ]
    return torch.stack(terms).sum()


@METHODS.register("rem")
class Rem(Method):
    """Ranked entropy minimisation over masked views, on the norms of the early blocks.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("rem").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="REM",
        paper="Han et al., ICML 2025",
        trains="affine parameters of the LayerNorms in all but the last three blocks",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "dropout stays off in all forwards; the blocks left out are counted from the end, so "
            "that any depth has some (the same nine of ViT-B's twelve are trained)"
        ),
    )

    class Config(MethodConfig):
        """Settings of REM.

        >>> Rem.Config().skip
        3
        """

        ratios: tuple[float, ...] = Field(
            (0.0, 0.1, 0.2), description="shares of the most attended tokens masked, rising from 0"
        )
        weight: float = Field(1.0, ge=0, description="weight of the entropy ranking")
        margin: float = Field(0.0, ge=0, description="ranking margin, as a share of ln C")
        skip: int = Field(3, ge=0, description="last blocks whose norms stay as they are")

    presets = {"imagenet-c": {"lr": 1e-3}, "cifar100-c": {"lr": 1e-3}}

    def configure(self) -> None:
        """Find the class token's attention."""
        self.attention = ClassAttention(self.model.base)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The early blocks' norms; at least the first block's."""
        depth = len(find_blocks(self.model.base))
        return norm_parameters(self.model.base, blocks=range(max(1, depth - self.config.skip)))

    def objective(self, batch: Input) -> Objective:
        """The whole image first, then views that lack what it was looked at for."""
        with self.attention:
            views = [self.logits(batch)]
        scores = self.attention.scores
        assert scores is not None
        for ratio in self.config.ratios[1:]:
            with kept(self.model.base, least_attended(scores, ratio)):
                views.append(self.logits(batch))
        views = [view.float() for view in views]
        loss = mask_consistency(views) + self.config.weight * _entropy_ranking(
            views, self.config.margin * math.log(views[0].shape[1])
        )
        return Objective(views[0], loss)
