"""A finished table on a terminal, as wide as the terminal is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.tables._render import TableResult, mark, note_lines, varying

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_EXTRA = ("ECE", "img/s", "K", "Mean by domains")
"""Columns that go last but one: useful, and not what a table is made for."""


def to_terminal(result: TableResult, width: int | None = None) -> RichTable:
    """A rich table; what is the same in all measured rows stands below it.

    Args:
        result: the table.
        width: of the terminal; what does not fit is left out, and named.
    """
    from rich.markup import escape
    from rich.table import Table

    marks, facts = result.footnotes(), varying(result)
    columns, shown = _fitting(result, facts, width)
    lines = note_lines(result, marks, "", facts)
    gone = [str(h) for n, h in enumerate(result.headings) if n not in columns]
    gone += [name for name in facts if name not in shown]
    if gone:
        said = ", ".join(gone) if len(gone) < 5 else f"{gone[0]} … {gone[-1]}"
        lines.append(f"Too narrow for {len(gone)} columns ({said}): --format markdown has all.")
    table = Table(title=f"{result.title} ({result.scale})", caption=escape("\n".join(lines)))
    table.caption_justify = "left"
    table.add_column("Method", no_wrap=True)
    for n in columns:
        table.add_column(str(result.headings[n]).replace(" ", "\n"), justify="right", no_wrap=True)
    for name in shown:
        table.add_column(name)
    for row in result.rows:
        texts = [_row_label(row.label, row.origin) + mark(row.note, marks)]
        texts += [f"{row.values[n]}{mark(row.values[n].note, marks)}" for n in columns]
        texts += [row.facts.get(name, "") for name in shown]
        style = "dim" if row.origin == "printed" else None
        table.add_row(*(escape(text) for text in texts), style=style)
    return table


def _row_label(label: str, origin: str) -> str:
    """A row's name; printed ones say so."""
    return f"{label} (printed)" if origin == "printed" else label


def _fitting(
    result: TableResult, facts: list[str], width: int | None
) -> tuple[list[int], list[str]]:
    """The columns and facts that fit: single domains go first, then facts, then extras."""
    every = list(range(len(result.headings)))
    sums = [n for n in every if result.headings[n].summary]
    short = [n for n in sums if result.headings[n].name not in _EXTRA]
    choices = [(every, facts), (sums, facts), (sums, []), (short, [])]
    for columns, shown in choices:
        if columns and (width is None or _needed(result, columns, shown) <= width):
            return columns, shown
    return short or every, []


def _needed(result: TableResult, columns: list[int], facts: list[str]) -> int:
    """Characters that a table takes without wrapping any number."""
    marks = result.footnotes()
    rows = result.rows
    labels = [_row_label(r.label, r.origin) + mark(r.note, marks) for r in rows]
    sizes = [max((len(text) for text in labels), default=0)]
    for n in columns:
        cells = [f"{row.values[n]}{mark(row.values[n].note, marks)}" for row in rows]
        sizes.append(max(len(text) for text in (*str(result.headings[n]).split(), *cells)))
    for name in facts:
        # Words of a fact may wrap, so its longest one decides.
        words = [word for row in rows for word in row.facts.get(name, "").split()]
        sizes.append(max(len(text) for text in (name, *words)))
    return sum(size + 3 for size in sizes) + 1
