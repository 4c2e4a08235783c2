"""How far groups of placed images lie from each other, in their own deviations."""

from __future__ import annotations

import math

from torch import Tensor

PRIOR = 4.0
"""Images that the spread of a few along a line is held near `USUAL` by."""
USUAL = 2.0


def between(gap: Tensor, a: Tensor, b: Tensor, squared_length: float) -> float:
    """Deviations between two domains along the line between their means.

    Args:
        gap: (d,) from one mean to the other.
        a: some images of the one.
        b: some of the other.
        squared_length: of the gap, less what chance alone gives.
    """
    scale = float(gap.square().sum().clamp_min(1e-12))
    wide = [held(float((some @ gap).var()) / scale, len(some)) for some in (a, b)]
    return math.sqrt(max(squared_length, 0.0) / (0.5 * sum(wide)))


def held(variance: float, count: int) -> float:
    """The variance of a few images along a line, held near the usual one.

    >>> held(0.0, 5), held(3.0, 10**6) > 2.99
    (1.0, True)
    """
    return (variance * (count - 1) + PRIOR * USUAL) / (count - 1 + PRIOR)


def along(rows: Tensor, axis: Tensor) -> float:
    """The variance of rows along an axis of any length.

    >>> import torch
    >>> round(along(torch.tensor([[0.0, 9.0], [2.0, 5.0]]), torch.tensor([3.0, 0.0])), 3)
    2.0
    """
    return float((rows @ axis).var() / axis.square().sum().clamp_min(1e-12))


def halved(a: Tensor, b: Tensor) -> float:
    """Deviations between two groups of images, each half measured along the other's axis.

    A line drawn through some images and measured on others does not confirm what chance made.

    Args:
        a: (n, d) of the one, at least four.
        b: of the other.

    >>> import torch
    >>> rows = torch.randn(80, 8, generator=torch.Generator().manual_seed(0))
    >>> halved(rows[:40], rows[40:]) < 1, 5 < halved(rows[:40], rows[40:] + 2) < 7
    (True, True)
    """
    first, second = (a[::2], b[::2]), (a[1::2], b[1::2])
    axes = [one.mean(0) - other.mean(0) for one, other in (first, second)]
    spread = 0.0
    for axis, halves in zip(axes, (second, first), strict=True):
        spread += sum(0.25 * held(along(half, axis), len(half)) for half in halves)
    return math.sqrt(max(float(axes[0] @ axes[1]), 0.0) / max(spread, 1e-12))
