"""When one group of images is two: the test by which domains are founded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDS = 8
LATEST = 256
"""Images of a domain that a test looks at."""
WIDE = 4.0
"""Beside the source alone, no more variance of a group than this speaks against it."""
SAME = 1e-3
"""Mean squared difference of placed descriptors below which two images are one; usual is 2."""


def fresh(placed: Tensor, recent: Tensor) -> Tensor:
    """Which rows show something new: neither in `recent` nor earlier in the batch.

    >>> fresh(torch.tensor([[0.0], [1.0], [1.0], [2.0]]), torch.tensor([[2.0]])).tolist()
    [True, True, False, False]
    """
    placed, recent = placed.float(), recent.float()  # far more exact than what is asked
    new = torch.ones(len(placed), dtype=torch.bool)
    width = placed.shape[1]
    if len(recent):
        new &= squared(placed, recent).amin(1) > SAME * width
    own = squared(placed, placed) <= SAME * width
    return new & ~own.tril(-1).any(1)


def split_off(
    placed: Tensor, mean: Tensor, enough: int, apart: float, *, fixed: bool = False
) -> Tensor | None:
    """Indices of the images that are a group of their own beside `mean`, or None.

    Two starts are tried, the latest images and the farthest. From there images go to the nearer of
    two means, and what results counts where it has `enough` images and lies `apart` deviations from
    the rest, along the line between them. Both are measured across two halves, so that a group
    found by chance is not confirmed by the images that made it.

    Args:
        placed: (n, d) whitened descriptors of a domain's recent images, oldest first.
        mean: the domain's own.
        enough: images that a group needs.
        apart: deviations that it must be off.
        fixed: whether the domain's mean stays where it is, as the source's does.
    """
    first = max(len(placed) - LATEST, 0)
    count = len(placed) - first
    if count < enough:
        return None
    rows = placed[first:] - mean  # from here on the domain's mean is the origin
    inner = (rows.float() @ rows.float().T).double()
    latest = torch.zeros(count, dtype=torch.bool)
    latest[-enough:] = True
    farthest = torch.zeros(count, dtype=torch.bool)
    farthest[inner.diagonal().topk(enough).indices] = True
    for start in (latest, farthest):
        side = _settle(inner, start, enough, fixed)
        if side is not None and _gap(inner, side, enough, fixed) >= apart:
            return first + side.nonzero()[:, 0]
    return None


def squared(a: Tensor, b: Tensor) -> Tensor:
    """(n, m): squared distances between the rows of two tensors.

    >>> squared(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
    25.0
    """
    squares = a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * (a @ b.T)
    return squares.clamp_min(0)


def _mean(side: Tensor) -> Tensor:
    """The weights by which a group's mean is made of all rows."""
    weights = side.double()
    return weights / weights.sum()


def _away(inner: Tensor, weights: Tensor) -> Tensor:
    """Every row's squared distance from a mean, all from inner products."""
    along = inner @ weights
    return inner.diagonal() - 2 * along + weights @ along


def _settle(inner: Tensor, start: Tensor, enough: int, fixed: bool) -> Tensor | None:
    origin = inner.diagonal()
    side = _away(inner, _mean(start)) < origin
    for _ in range(ROUNDS):
        count = int(side.sum())
        if count < enough:
            return None
        rest = len(inner) - count
        near = _away(inner, _mean(side))
        # A mean lies nearer to the images it is made of: measure as if each were left out.
        near = torch.where(side, near * (count / (count - 1)) ** 2, near)
        away = origin
        if not fixed and rest >= enough:  # the rest has a mean of its own, else the domain's
            away = _away(inner, _mean(~side))
            away = torch.where(side, away, away * (rest / (rest - 1)) ** 2)
        moved = near < away
        if torch.equal(moved, side):
            break
        side = moved
    return side if int(side.sum()) >= enough else None


def _halves(side: Tensor) -> tuple[Tensor, Tensor]:
    """Every other image of a group."""
    odd = (side.cumsum(0) % 2 == 1) & side
    return odd, side & ~odd


def _gap(inner: Tensor, side: Tensor, enough: int, fixed: bool) -> float:
    """Deviations between the group and the rest, each half measured along the other's axis."""
    alone = fixed or int((~side).sum()) < enough
    halves, others = _halves(side), _halves(~side)
    axes = [
        _mean(half) - (torch.zeros(len(inner)).double() if alone else _mean(other))
        for half, other in zip(halves, others, strict=True)
    ]
    along = [inner @ axis for axis in axes]
    spread = 0.0
    for axis, line, half, other in zip(axes, along, halves[::-1], others[::-1], strict=True):
        scale = (axis @ line).clamp_min(1e-24)  # the axis' own squared length
        within = float(line[half].var() / scale)
        around = 1.0 if alone else float(line[other].var() / scale)
        spread += 0.25 * ((min(within, WIDE) if alone else within) + around)
    return math.sqrt(max(float(axes[0] @ along[1]), 0.0) / max(spread, 1e-12))
