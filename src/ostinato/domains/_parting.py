"""Many groups in one pool of images, found at once: what mixed traffic begins with.

Where fifteen domains come together, each is a few images of a pool, and halves of the pool say
little. In the directions in which the pool varies most, which are those between domains, the images
of one lie together; so groups are grown from where images lie dense, and those that do not lie
apart in all directions become one again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.domains._distances import halved
from ostinato.domains.verdict import squared

AXES, TURNS = 16, 4
"""Directions in which a pool is looked at, and rounds in which they are found."""
PARTS, ROUNDS = 24, 6
DENSE = 3.0
"""Squared distance from all groups, in units of that to its own neighbours, of an image that begins
another group."""
SOME, COMPARED = 4, 2
"""Images that a group needs to be compared, and with how many of the nearest others it is."""
Asked = Callable[[Tensor, Tensor], float]


def parts(rows: Tensor, least: int, asked: Asked) -> list[tuple[Tensor, float]]:
    """Groups of a pool, each with its gap to the next one, in units of what is asked of the two.

    Args:
        rows: (n, d) placed descriptors, oldest first.
        least: images by which density is told.
        asked: deviations that two groups, given by their places, must be off each other.

    >>> draw = torch.Generator().manual_seed(0)
    >>> rows = torch.randn(90, 16, generator=draw) + 12 * torch.eye(16)[:3].repeat(30, 1)
    >>> [len(group) for group, _ in parts(rows, 8, lambda a, b: 5.5)]
    [30, 30, 30]
    """
    if len(rows) < 2 * least:
        return []
    belongs = _grown(turned(rows, AXES), least)
    groups = [g for k in belongs.unique() if len(g := (belongs == k).nonzero()[:, 0]) >= SOME]
    return _joined(rows, groups, asked)


def turned(rows: Tensor, axes: int) -> Tensor:
    """(n, axes): the rows, from their mean, in the directions in which they vary most.

    >>> rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(8)
    >>> bool(turned(rows, 3).var(0).sum() > 0.9 * rows[:, 5:].var(0).sum())
    True
    """
    off = rows - rows.mean(0)
    found = off[torch.linspace(0, len(off) - 1, axes).long()].T
    for _ in range(TURNS):
        found = off.T @ (off @ torch.linalg.qr(found).Q)
    result: Tensor = off @ torch.linalg.qr(found).Q
    return result


def _grown(rows: Tensor, least: int) -> Tensor:
    """(n,): the group of each row, from where rows lie dense."""
    near = squared(rows, rows).topk(least, largest=False)
    dense = near.values.mean(1).clamp_min(1e-12)
    first = rows[near.indices[int(dense.argmin())]].mean(0)
    means, away = [first], squared(rows, first[None])[:, 0]
    while len(means) < PARTS:
        place = int((away / dense).argmax())
        if float(away[place] / dense[place]) < DENSE:
            break
        means.append(rows[near.indices[place]].mean(0))
        away = torch.minimum(away, squared(rows, means[-1][None])[:, 0])
    centres = torch.stack(means)
    for _ in range(ROUNDS):
        one = F.one_hot(squared(rows, centres).argmin(1), len(centres)).float()
        count = one.sum(0)[:, None]
        centres = torch.where(count > 0, one.T @ rows / count.clamp_min(1), centres)
    return squared(rows, centres).argmin(1)


def _joined(rows: Tensor, groups: list[Tensor], asked: Asked) -> list[tuple[Tensor, float]]:
    """Groups nearer than is asked become one, the nearest first; each with its gap to the next."""
    means = [rows[group].mean(0) for group in groups]

    def next_to(one: int) -> tuple[float, int]:
        """The gap to the nearest other group, in units of what is asked, and which that is."""
        if len(groups) < 2:
            return math.inf, one
        chance = torch.tensor([rows.shape[1] / len(group) for group in groups])
        away = (torch.stack(means) - means[one]).square().sum(1) - chance
        away[one] = math.inf
        near = away.topk(min(COMPARED, len(groups) - 1), largest=False).indices.tolist()
        mine = groups[one]
        return min((halved(rows[mine], rows[groups[k]]) / asked(mine, groups[k]), k) for k in near)

    nearest = [next_to(k) for k in range(len(groups))]
    while len(groups) > 1:
        one = min(range(len(groups)), key=lambda k: nearest[k][0])
        gap, other = nearest[one]
        if gap >= 1:
            break
        gone, into = max(one, other), min(one, other)
        groups[into] = torch.cat([groups[into], groups[gone]]).sort().values
        means[into] = rows[groups[into]].mean(0)
        del groups[gone], means[gone], nearest[gone]
        for k, (kept, old) in enumerate(nearest):
            if k == into or old in (one, other):
                nearest[k] = next_to(k)
            elif old > gone:
                nearest[k] = (kept, old - 1)
    return [(group, gap) for group, (gap, _) in zip(groups, nearest, strict=True)]
