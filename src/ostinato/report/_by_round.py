"""Error by round: who remembers, who forgets, who collapses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ostinato.report._over_time import WORDS, heading, names_of
from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Part, Value, rounded
from ostinato.report.style import End, canvas, label_ends, room_for, to_svg
from ostinato.scoring.forgetting import Metric, higher_is_better

_LEAST = 3
"""Rounds from which on a line by round says more than two numbers."""
_APART = 1.0
"""Points below which two rounds count as equal."""
_RUIN = 5.0
"""Points behind the source model from which on a method has collapsed."""


def verdict(means: Sequence[float], metric: Metric, source: float | None = None) -> str:
    """One word for a method's rounds.

    Args:
        means: the score of each round.
        metric: whether higher is better.
        source: the source model's score in the last round, where it is known.

    >>> verdict([70.0, 66.0, 63.0], "error", 78.0), verdict([70.0, 72.0], "error", 78.0)
    ('remembers', 'forgets')
    >>> verdict([70.0, 99.0], "error", 78.0), verdict([77.8, 77.5], "error", 78.0)
    ('collapses', 'stays')
    """
    sign = -1.0 if higher_is_better(metric) else 1.0
    last = sign * means[-1]
    if source is not None and last > sign * source + _RUIN:
        return "collapses"
    if last > min(sign * mean for mean in means) + _APART:
        return "forgets"
    return "remembers" if last < sign * means[0] - _APART else "stays"


def error_by_round(variants: Sequence[Variant]) -> list[Part]:
    """One figure for all runs of as many rounds, whatever the number of their images."""
    groups: dict[tuple[int, Metric], list[Variant]] = {}
    for variant in variants:
        metric = variant.first.summary.metric
        groups.setdefault((len(_round_scores(variant)), metric), []).append(variant)
    many = [group for (rounds, _), group in groups.items() if rounds >= _LEAST]
    return [
        _figure(group, "" if len(many) == 1 else f"-{place + 1}")
        for place, group in enumerate(many)
    ]


def _round_scores(variant: Variant) -> list[float]:
    """The mean of each round, over seeds; as many rounds as every seed has begun."""
    least = min(len(run.summary.rounds) for run in variant.runs)
    table = [[one.by_images for one in run.summary.rounds[:least]] for run in variant.runs]
    return [float(value) for value in np.mean(table, axis=0)]


def _figure(group: Sequence[Variant], ending: str) -> Figure:
    metric = group[0].first.summary.metric
    word, name = WORDS[metric], f"error-by-round{ending}"
    scores = {variant.label: _round_scores(variant) for variant in group}
    frozen = next((v for v in group if v.first.spec.get("method") == "source"), None)
    source = None if frozen is None else scores[frozen.label][-1]
    numbers = range(1, len(scores[group[0].label]) + 1)
    alt = f"Lines of {word} in each of {len(numbers)} rounds for {names_of(group)}."
    rows: list[tuple[Value, ...]] = []
    ends = []
    with canvas(940, max(420, room_for(len(group)))) as figure:
        axes = figure.subplots()
        for variant in group:
            means = scores[variant.label]
            says = "" if variant is frozen else verdict(means, metric, source)
            rows += [(variant.label, n, rounded(m), says) for n, m in enumerate(means, 1)]
            axes.plot(numbers, means, color=variant.colour, ls=variant.dash, marker=".")
            said = f"{variant.label} {means[-1]:.1f} {says}".strip()
            ends.append(End(means[-1], said, variant.colour))
        axes.set_xlabel("round")
        axes.set_ylabel(f"{word} in %")
        axes.set_xlim(1, numbers[-1])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        label_ends(axes, ends)
        svg = to_svg(figure, name, alt)
    return Figure(
        name,
        f"{heading(word)} by round",
        f"Mean {word} of each round; the number after a name is the last round's. A method "
        f"remembers where its last round is {_APART:g} point or more ahead of its first, forgets "
        f"where it is as far behind its best, and collapses where it is {_RUIN:g} points or more "
        "behind the source model.",
        alt,
        svg,
        Data(("run", "round", word, "verdict"), tuple(rows)),
        760,
    )
