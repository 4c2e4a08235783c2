"""M2A: views with random squares blacked out, kept consistent and made sure."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.rem import mask_consistency
from ostinato.ops.blocks import find_blocks
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("m2a")
class M2a(Method):
    """Consistency over random masks and entropy, on the norms of the early blocks.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("m2a").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="M2A",
        paper="Doloriel, 2025",
        trains="affine parameters of the LayerNorms in all but the last three blocks",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "the spatial form alone, one black square an image, without the entropy ranking that "
            "the release can add and its commands leave out; the blocks left out are counted from "
            "the end, as in REM; squares of a batch are drawn at once"
        ),
        published=(
            "39.2 % error, ImageNet-C, ViT-B, raw input; 19.8 %, CIFAR-100-C (worse with masks of "
            "frequencies, which are left out here)"
        ),
        measured=(
            "does not beat Source on a real ViT-Tiny at its authors' rate for a ViT-B (81.0 "
            "against 78.3 % error); at a tenth of it it does, by little (77.4)"
        ),
    )

    class Config(MethodConfig):
        """Settings of M2A.

        >>> M2a.Config().ratios
        (0.0, 0.1, 0.2)
        """

        ratios: tuple[float, ...] = Field(
            (0.0, 0.1, 0.2), min_length=2, description="shares of an image masked, rising from 0"
        )
        weight: float = Field(1.0, ge=0, description="weight of the views' mean entropy")
        skip: int = Field(3, ge=0, description="last blocks whose norms stay as they are")

    presets = {"imagenet-c": {"lr": 1e-3}, "cifar100-c": {"lr": 1e-4}}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The early blocks' norms; at least the first block's."""
        depth = len(find_blocks(self.model.base))
        return norm_parameters(self.model.base, blocks=range(max(1, depth - self.config.skip)))

    def objective(self, batch: Input) -> Objective:
        """The whole image first, then the same with more and more of it hidden."""
        views = [self.logits(batch).float()]
        for ratio in self.config.ratios[1:]:
            hidden = _without_squares(batch.pixels, ratio, self.random.generator)
            views.append(self.logits(batch, hidden).float())
        sure = torch.stack([softmax_entropy(view).mean() for view in views]).mean()
        return Objective(views[0], mask_consistency(views) + self.config.weight * sure)


def _without_squares(pixels: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Images (B, 3, H, W) with a black square each, anywhere within; drawn on the CPU.

    Args:
        pixels: the images.
        ratio: share of an image that the square covers.
        generator: where squares come from.

    >>> white = torch.ones(2, 3, 10, 10)
    >>> hidden = _without_squares(white, 0.09, torch.Generator().manual_seed(0))
    >>> (white - hidden).sum((1, 2, 3)).tolist()
    [27.0, 27.0]
    """
    count, _, height, width = pixels.shape
    side = min(max(round(math.sqrt(round(ratio * height * width))), 1), height, width)
    inside = []
    for length in (height, width):
        start = torch.randint(length - side + 1, (count, 1), generator=generator)
        along = torch.arange(length)
        inside.append((along >= start) & (along < start + side))
    square = (inside[0][:, :, None] & inside[1][:, None, :]).to(pixels.device)
    return pixels * ~square[:, None]
