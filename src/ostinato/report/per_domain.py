"""Error per domain and round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.report.figure import Data, Figure, Part, rounded
from ostinato.report.over_time import WORDS, heading, names_of
from ostinato.report.runs import Variant
from ostinato.report.style import canvas, fold, to_svg
from ostinato.report.timeline import by_stream, readable
from ostinato.scoring.forgetting import Metric, higher_is_better


def error_per_domain(variants: Sequence[Variant]) -> list[Part]:
    """A heat map of every domain in every round, one panel per variant."""
    groups = by_stream(variants)
    return [
        _heat(group, "" if len(groups) == 1 else f"-{place + 1}")
        for place, group in enumerate(groups)
    ]


Cells = dict[tuple[int, str], float]


def _mean_cells(variant: Variant) -> Cells:
    """(round, domain) to the mean over seeds."""
    found: dict[tuple[int, str], list[float]] = {}
    for run in variant.runs:
        for cell in run.summary.cells:
            found.setdefault((cell.round, cell.domain), []).append(cell.value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def reference(group: Sequence[Variant], tables: Sequence[Cells]) -> tuple[list[Cells], str]:
    """What each cell is compared with: the source model, or the method's own first round."""
    methods = [variant.first.spec.get("method") for variant in group]
    frozen = [table for name, table in zip(methods, tables, strict=True) if name == "source"]
    if frozen:
        return [frozen[0]] * len(tables), "the source model"
    first = [{d: t[n, d] for n, d in sorted(t, reverse=True)} for t in tables]
    own = [{key: f[key[1]] for key in t} for t, f in zip(tables, first, strict=True)]
    return own, "the same domain when it first came"


def _heat(group: Sequence[Variant], ending: str) -> Figure:
    tables = [_mean_cells(variant) for variant in group]
    metric = group[0].first.summary.metric
    word, name = WORDS[metric], f"error-per-domain{ending}"
    numbers = sorted({number for table in tables for number, _ in table})
    domains = list(dict.fromkeys(domain for table in tables for _, domain in table))
    base, words = reference(group, tables)
    apart = [abs(v - b.get(k, v)) for t, b in zip(tables, base, strict=True) for k, v in t.items()]
    reach = max([*apart, 1.0])
    columns = max(1, min(len(group), 15 // max(len(numbers), 1), 5))
    lines = math.ceil(len(group) / columns)
    alt = (
        f"A table of {word} for {len(domains)} domains in {len(numbers)} rounds, coloured by "
        f"the difference to {words}, for {names_of(group)}."
    )
    height = lines * (25 * len(domains) + 84)
    with canvas(940, height) as figure:
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for place, axes in enumerate(grid.flat):
            if place >= len(group):
                axes.axis("off")
                continue
            panel(axes, tables[place], base[place], numbers, domains, reach, metric)
            axes.set_title(fold(group[place].label, 105 // columns), color=group[place].colour)
            axes.set_yticks(range(len(domains)), [readable(d) for d in domains])
        grid[0][0].set_ylim(len(domains) - 0.5, -0.5)
        svg = to_svg(figure, name, alt)
    rows = tuple(
        (variant.label, number + 1, domain, rounded(value))
        for variant, table in zip(group, tables, strict=True)
        for (number, domain), value in table.items()
    )
    return Figure(
        name,
        f"{heading(word)} per domain and round",
        f"{heading(word)} in percent, mean over seeds. Blue is better and orange worse "
        f"than {words}, at most {reach:.1f} points. A method that remembers gets better from left "
        "to right; one that forgets, worse.",
        alt,
        svg,
        Data(("run", "round", "domain", word), rows),
        720,
    )


def panel(
    axes: Any, table: Cells, against: Cells, numbers: Sequence[int], domains: Sequence[str],
    reach: float, metric: Metric,
) -> None:  # fmt: skip
    """One variant's numbers, coloured by how much better or worse they are than `against`."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("gain", ("#d9730a", "#f4f4f2", "#0a7cbc"))
    sign = 1.0 if higher_is_better(metric) else -1.0
    shape = (len(domains), len(numbers))
    gains = np.zeros(shape)
    for (number, domain), value in table.items():
        place = (domains.index(domain), numbers.index(number))
        gains[place] = sign * (value - against.get((number, domain), value))
        axes.text(
            place[1], place[0], f"{value:.1f}", ha="center", va="center", fontsize=11,
            color="#fafafa" if abs(gains[place]) > 0.75 * reach else "#16181c",
        )  # fmt: skip
    edges = [np.arange(n + 1) - 0.5 for n in reversed(shape)]
    axes.pcolormesh(*edges, gains, cmap=colours, vmin=-reach, vmax=reach, lw=0)
    axes.tick_params(length=0)
    words = [f"round {n + 1}" if len(numbers) < 4 else str(n + 1) for n in numbers]
    axes.set_xticks(range(len(numbers)), words)
    for side in axes.spines.values():
        side.set_visible(False)
