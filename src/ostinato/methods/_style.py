"""The style of a batch: how strongly small filters respond, apart from what is shown.

A fixed bank of 3×3 cosine filters at three scales takes the place of a trained network's early
layers: nothing to download, no dependence on the adapted model, and per-image sums from which the
style of any batch follows exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_SCALES = 3
_FLOOR = 1e-6  # keeps the logarithm of a flat image finite


def cosine_filters(size: int = 3) -> Tensor:
    """The orthonormal two-dimensional cosine basis, (size², size, size).

    >>> bank = cosine_filters().flatten(1)
    >>> bool(torch.allclose(bank @ bank.T, torch.eye(9), atol=1e-6))
    True
    """
    n = torch.arange(size)
    basis = torch.cos(math.pi * (2 * n[None] + 1) * n[:, None] / (2 * size))
    basis = basis * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return torch.einsum("ux,vy->uvxy", basis, basis).flatten(0, 1)


@torch.no_grad()
def image_moments(pixels: Tensor) -> Tensor:
    """Per image, mean and mean square of every filter's response: (B, 2, 81)."""
    bank = cosine_filters().to(pixels.device)[:, None].repeat(3, 1, 1, 1)
    found = []
    level = pixels.float()
    for _ in range(_SCALES):
        padded = F.pad(level, (1, 1, 1, 1), mode="replicate")
        responses = F.conv2d(padded, bank, groups=3)
        found.append(torch.stack([responses.mean((2, 3)), responses.square().mean((2, 3))], 1))
        if min(level.shape[-2:]) >= 4:
            level = F.avg_pool2d(level, 2)
    return torch.cat(found, 2)


def style_of(moments: Tensor) -> Tensor:
    """Logarithm of each response's variance over all pixels of all images: (81,).

    Args:
        moments: (B, 2, 81) from `image_moments`.
    """
    first, second = moments.mean(0)
    style: Tensor = (second - first.square()).clamp_min(_FLOOR).log()
    return style


def distance_quantile(
    moments: Tensor, batch: int, quantile: float, generator: torch.Generator, draws: int = 256
) -> float:
    """A quantile of the distances between styles of random source batches of this size."""
    chosen = torch.stack(
        [torch.randperm(len(moments), generator=generator)[:batch] for _ in range(draws)]
    )
    styles = torch.stack([style_of(moments[index]) for index in chosen.to(moments.device)])
    apart = torch.pdist(styles)
    return float(torch.quantile(apart, quantile))
