"""Rows of text as lines: for a terminal, or as Markdown. Needs nothing but Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns.

    >>> columns([("a", "one"), ("long", "two")])
    ['a     one', 'long  two']
    """
    rows = list(rows)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    pad = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in pad]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table.

    >>> print(markdown(("name", "is"), [("a", "b|c")]))
    | name | is |
    |---|---|
    | a | b\\|c |
    """
    cells = [[text.replace("|", "\\|") for text in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
