"""Whether a domain's images are two kinds, seen in the directions and deviations of their own.

In coordinates that clean images were evened out in, the images of a shifted domain vary more in
some directions than in others, and two domains may lie apart along a line that is none of the
widest. Once the images themselves are evened out, a line along which they fall into two is the one
that dividing them by explains the most of.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.domains._parting import turned

SEARCHED, MEASURED = 6, 24
"""Widest directions in which halves are looked for, and those in which their gap is measured."""
ROUNDS = 8
SHRINK = 0.1
"""How far the spread within two groups is drawn to an even one."""
_LEAST = 1e-12


def evened(rows: Tensor, axes: int) -> Tensor:
    """(n, axes): rows along the widest directions, widest first, with spread one in each.

    >>> rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(8)
    >>> found = evened(rows, 3)
    >>> bool(torch.allclose(found.T @ found / 50, torch.eye(3), atol=1e-4))
    True
    """
    wide = turned(rows, axes)
    values, vectors = torch.linalg.eigh(wide.T @ wide / len(wide))
    even: Tensor = (wide @ vectors / values.clamp_min(_LEAST).sqrt()).flip(1)
    return even


def halves(even: Tensor, least: int) -> Tensor | None:
    """(n,) which rows are one side of the division that explains the most; None without any.

    Args:
        even: (n, axes) evened rows.
        least: rows that each side has.

    >>> draw = torch.Generator().manual_seed(0)
    >>> two = torch.randn(80, 8, generator=draw) + 6 * (torch.arange(80) % 2)[:, None].eq(1)
    >>> side = halves(evened(two, 4), least=8)
    >>> sorted([int(side[::2].sum()), int(side[1::2].sum())])
    [0, 40]
    """
    sides = (even > 0).T.to(even.dtype)  # a start for each direction: its two halves
    for _ in range(ROUNDS):
        apart, middle, _ = _means(even, sides)
        sides = (apart @ even.T > middle[:, None]).to(even.dtype)
    apart, _, count = _means(even, sides)
    share = count / len(even)
    explained = share * (1 - share) * apart.square().sum(1)
    explained[(count < least) | (len(even) - count < least)] = 0.0
    best = int(explained.argmax())
    return sides[best] > 0 if float(explained[best]) > 0 else None


def _means(even: Tensor, sides: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The way from the rest's mean to each side's, where its middle lies, and the side's count."""
    count = sides.sum(1)
    own = sides @ even
    rest = even.sum(0) - own
    own, rest = (
        total / number.clamp_min(1)[:, None]
        for total, number in ((own, count), (rest, len(even) - count))
    )
    return own - rest, 0.5 * (own.square().sum(1) - rest.square().sum(1)), count


def gap(even: Tensor, side: Tensor) -> float:
    """Deviations between two sides, along the line that tells them apart best.

    The line is drawn through the earlier rows and measured on the later, and the other way round
    (Fisher, 1936). What a drive shows for a while tells its frames apart, but not the next ones.

    Args:
        even: (n, axes) evened rows, oldest first.
        side: (n,) which are one side's, at least four of each.

    >>> draw = torch.Generator().manual_seed(0)
    >>> rows, side = torch.randn(200, 16, generator=draw), torch.arange(200) < 100
    >>> gap(evened(rows, 8), side) < 1, gap(evened(rows + 2 * side[:, None], 8), side) > 5
    (True, True)
    """
    earlier, later = zip(*(_by_time(even[one]) for one in (side, ~side)), strict=True)
    found = 0.0
    for (a, b), (c, d) in ((earlier, later), (later, earlier)):
        off = torch.cat([a - a.mean(0), b - b.mean(0)])
        within = (1 - SHRINK) * off.T @ off / len(off)
        size = within.diagonal().mean().clamp_min(_LEAST)
        within.diagonal().add_(SHRINK * size)
        line = torch.linalg.solve(within, a.mean(0) - b.mean(0))
        u, v = c @ line, d @ line
        spread = (0.5 * (u.var() + v.var())).clamp_min(_LEAST).sqrt()
        found += 0.5 * float((u.mean() - v.mean()) / spread)
    return found


def _by_time(rows: Tensor) -> tuple[Tensor, Tensor]:
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]
