"""ADMA (Continual-MAE): mask what the model is unsure of, and reconstruct its gradients."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.methods._masking import blanked, most_uncertain
from ostinato.methods.adma._hog import cell_size, patch_targets
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.ops.augment import cotta_view
from ostinato.ops.features import prefix_tokens
from ostinato.ops.teacher import restore_
from ostinato.ops.tokens import final_tokens, find_patches, token_width
from ostinato.registry import METHODS
from ostinato.types import Decision


def _uncertainty(views: Tensor) -> Tensor:
    """Per token, the variance over views of its mean value.

    Args:
        views: (views, B, N, D).
    """
    return views.mean(-1).var(0)


@METHODS.register("adma")
class Adma(Method):
    """Consistency of a masked forward with the whole one, and reconstruction of what is hidden.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("adma").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="ADMA (Continual-MAE)",
        paper="Liu et al., CVPR 2024",
        trains="all weights and biases, a mask token and a reconstruction head",
        setting="CIFAR-10-C, ViT-B/16 at 384 px",
        differences=(
            "the release's second model is always a copy of the first, so the whole image is "
            "simply forwarded before the update; dropout stays off; a cell is the largest that "
            "tiles a patch; only CIFAR-10 was released: its settings are taken for all, and the "
            "segmentation that the paper reports is left out; behind a convolutional stem the "
            "stem's outputs are masked, so that neighbours have seen a patch's rim"
        ),
    )

    class Config(MethodConfig):
        """Settings of ADMA.

        >>> Adma.Config().restore
        0.01
        """

        lr: float = Field(1e-5, ge=0, description="learning rate")
        ratio: float = Field(0.5, gt=0, lt=1, description="share of the tokens that is masked")
        views: int = Field(10, ge=2, description="augmented views an uncertainty is taken from")
        bins: int = Field(9, ge=1, description="directions of the reconstructed gradients")
        cell: int = Field(8, ge=1, description="pixels along the side of a histogram's cell")
        reconstruction: float = Field(0.5, ge=0, description="weight of the reconstruction")
        restore: float = Field(
            0.01, ge=0, le=1, description="probability to restore a source value"
        )

    presets = {"imagenet-c": {"lr": 1e-5}, "cifar100-c": {"lr": 1e-5}}

    def configure(self) -> None:
        """The mask token and the reconstruction head."""
        config, base = self.config, self.model.base
        self.prefix, width = prefix_tokens(base), token_width(base)
        self.patch = find_patches(base).size[0]
        cells = (self.patch // cell_size(self.patch, config.cell)) ** 2
        numbers = 3 * config.bins * cells
        draw = torch.randn(numbers + 1, width, generator=self.random.generator) * 0.02
        draw = draw.to(self.model.device)
        self.token = nn.Parameter(draw[0].clone())
        self.head = nn.Parameter(draw[1:].clone())
        self.bias = nn.Parameter(torch.zeros(numbers, device=draw.device))

    def trainable(self) -> dict[str, nn.Parameter]:
        """Weights and biases of the model, and what was added."""
        return self._own() | {"mask token": self.token, "hog": self.head, "hog bias": self.bias}

    def objective(self, batch: Input) -> Objective:
        """Hide the uncertain half; predict as if it were there, and what its edges were."""
        with torch.no_grad():
            whole = self.logits(batch).float()
        mask = most_uncertain(self._spread(batch), self.config.ratio)
        with blanked(self.model.base, mask, self.token), final_tokens(self.model.base) as tokens:
            masked = self.logits(batch).float()
        consistency = -(whole.softmax(1) * masked.log_softmax(1)).sum(1).mean()
        hidden = tokens[0][:, self.prefix :][mask]
        rebuilt = F.linear(hidden, self.head, self.bias).float()
        edges = patch_targets(batch.pixels, self.patch, self.config.bins, self.config.cell)[mask]
        loss = consistency + self.config.reconstruction * F.mse_loss(rebuilt, edges)
        return Objective(whole, loss)

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Some of the model's values go back to the source's."""
        if self.config.restore > 0 and self.weights is not None:
            source, generator = self.weights.source, self.random.generator
            restore_(self._own(), source, self.config.restore, generator)

    def _own(self) -> dict[str, nn.Parameter]:
        named = self.model.base.named_parameters()
        return {n: p for n, p in named if n.rsplit(".", 1)[-1] in ("weight", "bias")}

    @torch.no_grad()
    def _spread(self, batch: Input) -> Tensor:
        with final_tokens(self.model.base) as tokens:
            for _ in range(self.config.views):
                self.logits(batch, cotta_view(batch.pixels, self.random.generator))
        return _uncertainty(torch.stack(tokens)[:, :, self.prefix :].float())
