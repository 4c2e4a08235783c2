"""When one group of images is two: the test by which domains are founded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ostinato.domains import _twofold as twofold
from ostinato.domains._distances import USUAL, along, held
from ostinato.domains._parting import parts
from ostinato.domains.verdict import LEAST

ROUNDS = 8
STEEP = 2.0
"""Fewer images than enough must lie farther off: by their number to this power."""
LATEST = 256
"""Images of a domain that a test looks at."""
WIDE = 4.0
"""Beside the source alone, no more variance of a group than this speaks against it."""
LARGE = 40
"""Images that both groups need for a finer test."""
FINE = 0.2
"""By which share two large groups may lie nearer, where time does not speak for one domain."""
TURNS = 0.6
"""Share of the changes to be expected by chance from which two groups come at the same time."""
TOGETHER = 1.0
"""Where traffic stays with a domain: by which share groups that come together must lie farther."""
MIXED = 0.5
"""Below this, traffic is not known to stay: a domain's images may be many groups at once."""
HASTE = 0.5
"""Where it stays, by which share fewer images are enough for a group that came after the rest."""
TWOFOLD = 4.75
"""Deviations in the images' own directions, in place of `apart`, between two halves of a domain."""
AXIS_ROUNDS = 10


def split_off(
    placed: Tensor,
    mean: Tensor,
    enough: int,
    apart: float,
    *,
    fixed: bool = False,
    mine: Tensor | None = None,
    others: Tensor | None = None,
    alone: float = 1.0,
    stay: float = 0.0,
    past: int = 0,
) -> Tensor | None:
    """Indices of the images that are a group of their own beside `mean`, or None.

    Where traffic is not known to stay with a domain, there may be many groups (`parting.parts`), of
    which the largest stays. Else, and beside the source, several starts are tried: the latest
    images, the farthest, and either side of the direction in which they vary most. From there
    images go to the nearer of two means, and what results counts where it lies `apart` deviations
    from the rest, along the line between them. Both are measured across two halves, so that a group
    found by chance is not confirmed by the images that made it. Where none is found, a domain may
    still be two in the directions in which its own images vary (`twofold`).

    Args:
        placed: (n, d) whitened descriptors of recent images, oldest first.
        mean: the domain's own.
        enough: images that a group needs; fewer do where they lie farther off, and are all that
            came lately or were the source's.
        apart: deviations that it must be off.
        fixed: whether the domain's mean stays where it is, as the source's does.
        mine: (n,) which of them are the domain's; all unless given. The others may join a group.
        others: (n,) each image's squared distance to the nearest other domain.
        alone: how far the domain came alone, from 0 in mixed traffic to 1 in blocks. Two looks that
            come at the same time, and nothing else with them, are likely to be one domain's; where
            one follows the other, or all domains are mixed, large groups may lie nearer.
        stay: how far traffic is known to stay with a domain for a while. Groups that come together
            must then lie farther off, and fewer images do where one came after the other.
        past: images of the domain that are in its mean, and no more among these.
    """
    first = max(len(placed) - LATEST, 0)
    count = len(placed) - first
    if count < LEAST:
        return None
    rows = (placed[first:] - mean).float()  # from here on the domain's mean is the origin
    own = torch.ones(count, dtype=torch.bool) if mine is None else mine[first:]
    off = rows.new_full((count,), float("inf")) if others is None else others[first:].float()
    past = 0 if fixed else past
    before = -rows[own].sum(0) / max(past, 1)  # all of the domain's images have mean 0 together
    past = min(past, LATEST - int(own.sum()))
    asked = _Test(rows, rows.square().sum(1), own, off, enough, fixed, alone, stay, past, before)
    side = _parted(asked, apart) if stay < MIXED and not fixed else _beside(asked, apart)
    side = _halved(asked) if side is None and not fixed else side
    return None if side is None else first + side.nonzero()[:, 0]


@dataclass(frozen=True)
class _Test:
    """What a test is about: see `split_off`.

    `origin` are the rows' squared lengths, `before` is the mean of `past` images.
    """

    rows: Tensor
    origin: Tensor
    mine: Tensor
    others: Tensor
    enough: int
    fixed: bool
    alone: float = 1.0
    stay: float = 0.0
    past: int = 0
    before: Tensor | None = None


def _parted(test: _Test, apart: float) -> Tensor | None:
    """(n,) which images leave a domain: its largest group that can, the very largest stays."""
    own = test.mine.nonzero()[:, 0]

    def asked(a: Tensor, b: Tensor) -> float:
        both = torch.cat([torch.ones_like(a), torch.zeros_like(b)])[torch.cat([a, b]).argsort()]
        return _asked(test, min(len(a), len(b)), _exchanged(both > 0), apart)

    found = sorted(parts(test.rows[own], LEAST, asked), key=lambda part: -len(part[0]))
    for group, off in found[1:]:
        side = torch.zeros_like(test.mine)
        side[own[group]] = True
        if len(group) >= LEAST and off >= 1 and _weighs(test, side, off * apart, apart):
            return side
    return None


def _beside(test: _Test, apart: float) -> Tensor | None:
    """(n,) which images are a group beside the domain: the largest that stands."""
    sides = _settled(test, _starts(test))
    return next((side for side in sides if _stands(test, side, apart)), None)


def _halved(test: _Test) -> Tensor | None:
    """(n,) which images leave a domain that is two in its own directions: the fewer."""
    own = test.mine.nonzero()[:, 0]
    if len(own) < 2 * LARGE:
        return None
    even = twofold.evened(test.rows[own], twofold.MEASURED)
    half = twofold.halves(even[:, : twofold.SEARCHED], test.enough)
    if half is None:
        return None
    if twofold.gap(even, half) < _asked(test, LARGE, _exchanged(half), TWOFOLD):
        return None
    side = torch.zeros_like(test.mine)
    side[own[half if 2 * int(half.sum()) <= len(half) else ~half]] = True
    return side


def _starts(test: _Test) -> Tensor:
    """(S, n): the latest images, the domain's own latest and farthest, and its two sides."""
    count, own = len(test.rows), test.mine.nonzero()[:, 0]
    reach = torch.minimum(test.origin, test.others)[own]
    chosen = []
    for some in (LEAST, test.enough):
        if count >= some:
            chosen.append(torch.arange(count - some, count))
        if len(own) >= some:
            chosen += [own[-some:], own[reach.topk(some).indices]]
    if len(own) >= 2 * LARGE and not test.fixed:
        along = _widest(test.rows[own])
        chosen += [own[along > 0], own[along < 0]]
    starts = torch.zeros(len(chosen), count)
    for start, places in zip(starts, chosen, strict=True):
        start[places] = 1.0
    return starts


def _widest(rows: Tensor) -> Tensor:
    """(n,): rows along the direction in which they vary most, from their mean."""
    off = rows - rows.mean(0)
    along = off @ off[off.square().sum(1).argmax()]
    for _ in range(AXIS_ROUNDS):
        axis = along @ off
        along = off @ (axis / axis.norm().clamp_min(1e-12))
    return along


def _settled(test: _Test, starts: Tensor) -> list[Tensor]:
    """(n,) masks of the groups that the starts end in; those at rest are not looked at again."""
    sides = (_away(test, starts) < torch.minimum(test.origin, test.others)).float()
    at_rest: list[Tensor] = []
    for _ in range(ROUNDS):
        sides = sides[sides.sum(1) >= LEAST]
        if not len(sides):
            break
        moved = _nearer(test, sides).float()
        still = (moved == sides).all(1)
        at_rest.append(sides[still])
        sides = moved[~still]
    ended = torch.cat([*at_rest, sides]) if at_rest else sides
    found = [side.bool() for side in ended.unique(dim=0) if float(side.sum()) >= LEAST]
    return sorted(found, key=lambda side: -int(side.sum()))


def _nearer(test: _Test, sides: Tensor) -> Tensor:
    """(S, n): which images lie nearer to a group's mean than to everything else."""
    if test.fixed:
        return _left_out(_away(test, sides), sides) < torch.minimum(test.origin, test.others)
    # The rest has a mean of its own where it is enough, else the domain's.
    rest = test.mine * (1 - sides)
    both = torch.cat([sides, rest])
    past = torch.zeros(len(both), 1)
    past[len(sides) :] = test.past
    off = _left_out(_away(test, both, past), both, past)
    near, far = off[: len(sides)], off[len(sides) :]
    away = torch.where((rest.sum(1) + test.past >= test.enough)[:, None], far, test.origin)
    return near < torch.minimum(away, test.others)


def _away(test: _Test, sides: Tensor, past: Tensor | None = None) -> Tensor:
    """(S, n): every row's squared distance from the means of some, and of (S, 1) earlier images."""
    sums, count = sides @ test.rows, sides.sum(1, keepdim=True)
    if past is not None and test.before is not None and test.past:
        sums, count = torch.addmm(sums, past, test.before[None]), count + past
    means = sums / count.clamp_min(1)
    return torch.addmm(
        test.origin + means.square().sum(1, keepdim=True), means, test.rows.T, alpha=-2
    )


def _left_out(near: Tensor, sides: Tensor, past: Tensor | float = 0.0) -> Tensor:
    """A mean lies nearer to the images it is made of: measure as if each were left out."""
    count = sides.sum(1, keepdim=True) + past
    return torch.where(sides > 0, near * (count / (count - 1).clamp_min(1)).square(), near)


def _stands(test: _Test, side: Tensor, apart: float) -> bool:
    """Whether a group is one: far enough off, and by enough images for that distance."""
    count = int(side.sum())
    least = LEAST if test.fixed or bool(side[-LEAST:].all()) else test.enough
    if count < least:
        return False
    gap = _gap(test, side)
    rest = test.mine & ~side
    exchanged = _exchanged(side[side | rest])
    haste = HASTE * test.stay * (1 - exchanged)
    least_gap = _asked(test, min(count, int(rest.sum()) + test.past), exchanged, apart)
    return gap >= least_gap and _weighs(test, side, gap, apart, haste)


def _asked(test: _Test, fewest: int, exchanged: float, apart: float) -> float:
    """Deviations that two groups must be off each other, by what time says.

    Args:
        test: what the test is about.
        fewest: images of the smaller group.
        exchanged: how far they come at the same time.
        apart: deviations where time says nothing.
    """
    if fewest >= LARGE:
        apart *= 1 - FINE * (1 - test.alone * exchanged)
    return apart if test.fixed else apart * (1 + TOGETHER * test.stay * exchanged)


def _weighs(test: _Test, side: Tensor, gap: float, apart: float, haste: float = 0.0) -> bool:
    """Whether images are enough for their distance; those that hardly differ count as fewer."""
    group = test.rows[side]
    spread = float(group.var(0).mean())
    evidence: float = (len(group) * min(1.0, spread)) ** STEEP * gap**2
    needed: float = (test.enough * (1 - haste)) ** STEEP * apart**2
    return evidence >= needed


def _exchanged(side: Tensor) -> float:
    """How far two groups come at the same time: 0 one after the other, 1 in any order.

    >>> both = torch.tensor([True, False] * 20)
    >>> _exchanged(both), round(_exchanged(both.sort().values), 2)
    (1.0, 0.01)
    """
    share = float(side.float().mean())
    turns = float((side[1:] != side[:-1]).float().mean())
    return min(1.0, turns / max(TURNS * 2 * share * (1 - share), 1e-6)) ** 2


def _gap(test: _Test, side: Tensor) -> float:
    """Deviations between the group and the rest, each half measured along the other's axis."""
    group, rest = test.rows[side], test.rows[test.mine & ~side]
    alone = test.fixed or len(rest) + test.past < test.enough
    groups, rests = (group[::2], group[1::2]), (rest[::2], rest[1::2])
    axes = [
        half.mean(0) - (0 if alone else _centre(test, other))
        for half, other in zip(groups, rests, strict=True)
    ]
    spread = 0.0
    for axis, half, other in zip(axes, groups[::-1], rests[::-1], strict=True):
        within = held(along(half, axis), len(half))
        around = along(other, axis) if len(other) >= LEAST else USUAL
        spread += 0.25 * (min(within, WIDE) + 1.0 if alone else within + around)
    chance = 0.0 if alone else test.past / (len(rest) + test.past) ** 2 * test.rows.shape[1]
    return math.sqrt(max(float(axes[0] @ axes[1]) - chance, 0.0) / max(spread, 1e-12))


def _centre(test: _Test, half: Tensor) -> Tensor:
    """The mean of half of the rest, and of the domain's earlier images."""
    if not test.past:
        return half.mean(0)
    assert test.before is not None
    return (half.sum(0) + 0.5 * test.past * test.before) / (len(half) + 0.5 * test.past)
