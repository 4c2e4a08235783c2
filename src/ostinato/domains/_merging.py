"""Which two domains are one, or would be the first to become one where there are too many."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.domains import _twofold as twofold
from ostinato.domains._distances import between
from ostinato.domains.verdict import LEAST, View, squared

TWO = 2.6
"""Deviations between the images of two domains, in their own directions, that keep them two."""
SOME = 30
"""Images of each that this takes."""


def likest(
    view: View, recent: Sequence[Tensor], reach: float, alike: float
) -> tuple[int, int, float]:
    """Rows of the two domains, younger and older, with the smallest gap on the line between them.

    Two that this would make one stay two if they are in directions of their own (`twofold`).

    Args:
        view: what is known; its first domain is the source, which nothing merges with.
        recent: some latest images of each domain.
        reach: means farther from each other than this are not compared.
        alike: the gap below which two are one.

    >>> means, even = torch.tensor([[0.0], [9.0], [9.5]]), torch.ones(3)
    >>> some = [mean + torch.arange(20.0)[:, None] / 10 for mean in means]
    >>> likest(View((0, 1, 2), means, even, 50 * even, even / 3), some, reach=20, alike=3)[:2]
    (2, 1)
    """
    known = [row for row, some in enumerate(recent) if row and len(some) >= LEAST]
    means, counts = view.means[known].float(), view.counts[known]
    chance = (1 / counts[:, None] + 1 / counts) * means.shape[1]
    apart = squared(means, means) - chance.float()
    best = (0, 0, float("inf"))
    for a, b in (apart < reach**2).tril(-1).nonzero().tolist():
        i, j = known[a], known[b]
        gap = between(means[a] - means[b], recent[i], recent[j], float(apart[a, b]))
        if gap < best[2] and not (gap < alike and _are_two(recent[i], recent[j])):
            best = (i, j, gap)
    return best


def _are_two(a: Tensor, b: Tensor) -> bool:
    """Whether the images of two domains lie apart in the directions in which both vary."""
    if min(len(a), len(b)) < SOME:
        return False
    even = twofold.evened(torch.cat([a, b]), twofold.MEASURED)
    return twofold.gap(even, torch.arange(len(even)) < len(a)) >= TWO


def nearest(view: View) -> tuple[int, int]:
    """Rows of the two nearest domains, younger and older, by their means and spreads alone.

    >>> means, even = torch.tensor([[0.0], [1.0], [9.0], [5.0]]), torch.ones(4)
    >>> nearest(View((0, 1, 2, 3), means, even, 50 * even, even / 4))
    (3, 1)
    """
    count = len(view.ids) - 1
    means, some = view.means[1:], 1 / view.counts[1:]
    wide = view.spreads[1:].clamp_min(1.0)
    chance = (some[:, None] + some) * means.shape[1]
    gaps = torch.cdist(means, means).square() / torch.maximum(wide[:, None], wide) - chance
    gaps[torch.ones(count, count, dtype=torch.bool).triu()] = float("inf")
    younger, older = divmod(int(gaps.argmin()), count)
    return 1 + younger, 1 + older
