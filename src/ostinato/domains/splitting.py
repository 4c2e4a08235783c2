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
    new = torch.ones(len(placed), dtype=torch.bool)
    width = placed.shape[1]
    if len(recent):
        new &= _squared(placed, recent).amin(1) > SAME * width
    own = _squared(placed, placed) <= SAME * width
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
    rows = placed[first:]
    if len(rows) < enough:
        return None
    far = (rows - mean).square().sum(1).topk(enough).indices
    for start in (rows[-enough:].mean(0), rows[far].mean(0)):
        side = _settle(rows, mean, start, enough, fixed)
        if side is not None and _gap(rows, side, mean, enough, fixed) >= apart:
            return first + side.nonzero()[:, 0]
    return None


def _squared(a: Tensor, b: Tensor) -> Tensor:
    cross = a @ b.T
    squares = a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * cross
    return squares.clamp_min(0)


def _reference(rows: Tensor, side: Tensor, mean: Tensor, enough: int, fixed: bool) -> Tensor:
    """Where the rest lies: its own mean where it has one, else the domain's."""
    rest = ~side
    return mean if fixed or int(rest.sum()) < enough else rows[rest].mean(0)


def _settle(rows: Tensor, mean: Tensor, start: Tensor, enough: int, fixed: bool) -> Tensor | None:
    side = (rows - start).square().sum(1) < (rows - mean).square().sum(1)
    for _ in range(ROUNDS):
        count = int(side.sum())
        if count < enough:
            return None
        reference = _reference(rows, side, mean, enough, fixed)
        near = (rows - rows[side].mean(0)).square().sum(1)
        away = (rows - reference).square().sum(1)
        # A mean lies nearer to the images it is made of: measure as if each were left out.
        near = torch.where(side, near * (count / (count - 1)) ** 2, near)
        rest = len(rows) - count
        if reference is not mean:
            away = torch.where(side, away, away * (rest / (rest - 1)) ** 2)
        moved = near < away
        if torch.equal(moved, side):
            break
        side = moved
    return side if int(side.sum()) >= enough else None


def _gap(rows: Tensor, side: Tensor, mean: Tensor, enough: int, fixed: bool) -> float:
    """Deviations between the group and the rest, each half measured along the other's axis."""
    group, rest = rows[side], rows[~side]
    alone = fixed or len(rest) < enough
    halves = (group[::2], group[1::2])
    others = (rest[::2], rest[1::2])
    means = (mean, mean) if alone else (others[0].mean(0), others[1].mean(0))
    one, two = (half.mean(0) - other for half, other in zip(halves, means, strict=True))
    squared = float(one @ two)
    spread = 0.0
    for axis, half, other in ((one, halves[1], others[1]), (two, halves[0], others[0])):
        line = axis / axis.norm().clamp_min(1e-12)
        within = float((half @ line).var())
        around = 1.0 if alone else float((other @ line).var())
        spread += 0.25 * ((min(within, WIDE) if alone else within) + around)
    return math.sqrt(max(squared, 0.0) / max(spread, 1e-12))
