"""A heat map of rows in every round, one panel per variant: domains, or classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.report._over_time import names_of
from ostinato.report._runs import Variant
from ostinato.report.figure import rounded
from ostinato.report.style import canvas, fold, to_svg
from ostinato.scoring.forgetting import Metric, higher_is_better

Cells = dict[tuple[int, str], float]
"""(round, row) to a figure in percent."""


class HeatMap:
    """Every variant's table, coloured by the difference to what it is compared with.

    Args:
        group: variants of one stream.
        tables: the cells of each.
        rows: their names, from top to bottom.
        metric: which says whether more is better.

    Attributes:
        words: what the cells are compared with.
        reach: the largest difference, in points.
    """

    def __init__(
        self, group: Sequence[Variant], tables: Sequence[Cells], rows: Sequence[str], metric: Metric
    ) -> None:
        self.group, self.tables, self.rows, self.metric = group, tables, rows, metric
        self._numbers = sorted({number for table in tables for number, _ in table})
        self._base, self.words = _reference(group, tables)
        pairs = zip(tables, self._base, strict=True)
        apart = [abs(v - base.get(k, v)) for table, base in pairs for k, v in table.items()]
        self.reach = max([*apart, 1.0])

    def alt(self, word: str, kind: str) -> str:
        """The picture in words: of what, and what the rows are."""
        return (
            f"A table of {word} for {len(self.rows)} {kind} in {len(self._numbers)} rounds, "
            f"coloured by the difference to {self.words}, for {names_of(self.group)}."
        )

    def draw(self, name: str, alt: str, labels: Sequence[str]) -> str:
        """The picture, with these labels for the rows."""
        group, count = self.group, len(self.rows)
        columns = max(1, min(len(group), 15 // max(len(self._numbers), 1), 5))
        lines = math.ceil(len(group) / columns)
        with canvas(940, lines * (25 * count + 84)) as figure:
            grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
            for place, axes in enumerate(grid.flat):
                if place >= len(group):
                    axes.axis("off")
                    continue
                table, base = self.tables[place], self._base[place]
                _panel(axes, table, base, self._numbers, self.rows, self.reach, self.metric)
                axes.set_title(fold(group[place].label, 105 // columns), color=group[place].colour)
                axes.set_yticks(range(count), labels)
            grid[0][0].set_ylim(count - 0.5, -0.5)
            return to_svg(figure, name, alt)

    def data(self) -> tuple[tuple[Any, ...], ...]:
        """What is drawn: variant, round, row and figure."""
        return tuple(
            (variant.label, number + 1, row, rounded(value))
            for variant, table in zip(self.group, self.tables, strict=True)
            for (number, row), value in table.items()
        )


def _reference(group: Sequence[Variant], tables: Sequence[Cells]) -> tuple[list[Cells], str]:
    """What each cell is compared with: the source model, or the method's own first round."""
    methods = [variant.first.spec.get("method") for variant in group]
    frozen = [table for name, table in zip(methods, tables, strict=True) if name == "source"]
    if frozen:
        return [frozen[0]] * len(tables), "the source model"
    first = [{d: t[n, d] for n, d in sorted(t, reverse=True)} for t in tables]
    own = [{key: f[key[1]] for key in t} for t, f in zip(tables, first, strict=True)]
    return own, "the same domain when it first came"


def _panel(
    axes: Any, table: Cells, against: Cells, numbers: Sequence[int], rows: Sequence[str],
    reach: float, metric: Metric,
) -> None:  # fmt: skip
    """One variant's numbers, coloured by how much better or worse they are than `against`."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("gain", ("#d9730a", "#f4f4f2", "#0a7cbc"))
    sign = 1.0 if higher_is_better(metric) else -1.0
    shape = (len(rows), len(numbers))
    gains = np.zeros(shape)
    for (number, row), value in table.items():
        place = (rows.index(row), numbers.index(number))
        gains[place] = sign * (value - against.get((number, row), value))
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
