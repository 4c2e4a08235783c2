"""Where a stream's domains begin and end, and how figures over time show it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from ostinato.report._runs import Shape, Variant
from ostinato.report.style import BAND, FAINT, INK

_NAMES = 60
"""Most visits whose domains are named above a figure."""
_WORDS = 8
"""Most rounds that are called so there; of more, the number alone, for there is no room."""


class Visit(NamedTuple):
    """Batches `start` to `end` (exclusive), all of one domain in one round.

    >>> Visit(0, 2, 0, "fog").end
    2
    """

    start: int
    end: int
    round: int
    domain: str


def visits(shape: Shape) -> list[Visit]:
    """The visits that a stream makes, in order.

    >>> visits(((0, "fog"), (0, "fog"), (1, "fog")))
    [Visit(start=0, end=2, round=0, domain='fog'), Visit(start=2, end=3, round=1, domain='fog')]
    """
    result, start = [], 0
    for (number, domain), group in groupby(shape):
        end = start + sum(1 for _ in group)
        result.append(Visit(start, end, number, domain))
        start = end
    return result


def _rounds(many: Sequence[Visit]) -> list[tuple[int, int, int]]:
    """(round, first batch, end) of every stretch of one round.

    >>> _rounds([Visit(0, 2, 0, "fog"), Visit(2, 3, 0, "snow"), Visit(3, 5, 1, "fog")])
    [(0, 0, 3), (1, 3, 5)]
    """
    result = []
    for number, group in groupby(many, key=lambda visit: visit.round):
        members = list(group)
        result.append((number, members[0].start, members[-1].end))
    return result


def by_stream(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Variants that met the same domains at the same time stand in one figure.

    A run that is not finished goes with those whose beginning it shares.
    """
    groups: list[list[Variant]] = []
    for variant in sorted(variants, key=lambda v: -len(v.first.shape)):
        shape = variant.first.shape
        for group in groups:
            if group[0].first.shape[: len(shape)] == shape:
                group.append(variant)
                break
        else:
            groups.append([variant])
    order = {id(v): place for place, v in enumerate(variants)}
    return [sorted(group, key=lambda v: order[id(v)]) for group in groups]


def longest(group: Sequence[Variant]) -> Shape:
    """The whole stream of a group."""
    return max((v.first.shape for v in group), key=len)


def draw_visits(axes: Any, many: Sequence[Visit], *, names: bool = True) -> None:
    """Bands for domains, lines between rounds; names of both above the axes."""
    for place, visit in enumerate(many):
        if place % 2:
            axes.axvspan(visit.start, visit.end, color=BAND, lw=0, zorder=0)
    stretches = _rounds(many)
    for _, (_, start, _) in pairwise(stretches):
        axes.axvline(start, color=FAINT, lw=1.1, zorder=1)
    axes.set_xlim(many[0].start, many[-1].end)
    if names:
        _draw_names(axes, many, stretches)


def _draw_names(
    axes: Any, many: Sequence[Visit], stretches: Sequence[tuple[int, int, int]]
) -> None:
    above = axes.get_xaxis_transform()
    named = len(many) <= _NAMES
    for visit in many if named else ():
        axes.text(
            (visit.start + visit.end) / 2,
            1.02,
            readable(visit.domain),
            transform=above,
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=11 if len(many) <= 24 else 8.5,
        )
    if len(stretches) < 2 or len(stretches) > 20:
        return
    lift = 1.03 if not named else 1.0
    width = max(len(readable(visit.domain)) for visit in many) if named else 0
    points = (6.3 if len(many) <= 24 else 4.9) * width + 10
    for number, start, end in stretches:
        axes.annotate(
            f"round {number + 1}" if len(stretches) <= _WORDS else str(number + 1),
            xy=((start + end) / 2, lift),
            xycoords=above,
            xytext=(0, points),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=11.5,
            fontweight="bold",
            color=INK,
        )


def readable(domain: str) -> str:
    """A domain's name for people.

    >>> readable("gaussian_noise")
    'gaussian noise'
    """
    return domain.replace("_", " ")
