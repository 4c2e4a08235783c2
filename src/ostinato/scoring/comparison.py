"""A paired comparison as a table for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ostinato.scoring.compare import Comparison, Contrast


def comparison_table(comparison: Comparison, *, parts: bool = True) -> Table:
    """The difference over all, per round and per domain, with its interval and p-value."""
    share = f"{100 * comparison.confidence:g} %"
    title = f"{comparison.other} against {comparison.baseline}: {comparison.verdict}"
    table = Table(
        title=escape(title),
        caption=f"{comparison.metric} in percent; [{share} interval] of {comparison.resamples:,} "
        "paired draws over images".replace("[", "\\["),
    )
    for name in ("part", "answers", "baseline", "other", "difference", "p"):
        table.add_column(name, justify="left" if name == "part" else "right")
    _add(table, "all", comparison.overall)
    if parts:
        if len(comparison.rounds) > 1:
            for number, contrast in comparison.rounds.items():
                _add(table, f"round {number + 1}", contrast)
        for domain, contrast in comparison.domains.items():
            _add(table, domain, contrast)
    return table


def _add(table: Table, name: str, contrast: Contrast) -> None:
    mark = "*" if contrast.differs else " "
    table.add_row(
        escape(name),
        f"{contrast.images:,}",
        f"{contrast.baseline.estimate:.2f}",
        f"{contrast.other.estimate:.2f}",
        escape(f"{contrast.difference}{mark}"),
        f"{contrast.p_value:.4f}",
    )
