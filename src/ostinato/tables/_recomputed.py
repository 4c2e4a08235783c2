"""What printed rows give by their own cells, and where the print says otherwise.

`recompute` derives means, Repeat Forget and gains with the definitions that measured rows use,
and `disagreements` lists the cells that differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ostinato.scoring.forgetting import gain, repeat_forget, round_means, total_mean
from ostinato.tables.printed import Column, PrintedTable, Row


class Disagreement(NamedTuple):
    """A printed cell that the row's own cells do not give."""

    table: str
    method: str
    column: Column
    printed: float
    computed: float


def recompute(table: PrintedTable, row: Row) -> dict[Column, float]:
    """What a row's own cells give for its derived columns.

    Means weigh by images; the gain and the difference are taken to the table's first row.

    >>> from ostinato.tables.printed import printed
    >>> table = printed("imagenet-plus")
    >>> given = recompute(table, table.row("ViDA"))
    >>> {c.heading: round(v, 1) for c, v in given.items() if c.kind in ("mean", "rf")}
    {'Mean': 52.0, 'RF': 8.8}
    """
    if any(column.kind == "diff" for column in table.columns):
        return _difference(table, row)
    scores = table.scores(row)
    if not scores:
        return {}
    source = total_mean(table.scores(table.rows[0])).by_images
    average = total_mean(scores).by_images
    forget = repeat_forget(scores, table.metric)
    by_round = round_means(scores)
    result: dict[Column, float] = {}
    for column in table.columns:
        if column.kind == "round mean" and column.round is not None:
            result[column] = by_round[column.round].by_images
        elif column.kind == "mean":
            result[column] = average
        elif column.kind == "rf" and forget is not None:
            result[column] = forget.by_images
        elif column.kind == "gain":
            result[column] = gain(average, source, table.metric)
    return result


def _difference(table: PrintedTable, row: Row) -> dict[Column, float]:
    place = {column.kind: at for at, column in enumerate(table.columns)}
    own = row.cells[place["mean"]].value
    best = table.rows[0].cells[place["mean"]].value
    if own is None or best is None:
        return {}
    return {table.columns[place["diff"]]: own - best}


def disagreements(table: PrintedTable, tolerance: float = 0.1) -> Iterator[Disagreement]:
    """The derived cells that differ from the row's own cells by more than `tolerance`.

    >>> from ostinato.tables.printed import printed
    >>> [(d.method, d.printed, round(d.computed, 1)) for d in disagreements(printed("imagenet-c"))]
    [('Pseudo-label', 61.2, 66.8), ('Pseudo-label', -5.4, -11.0)]
    """
    for row in table.rows:
        computed = recompute(table, row)
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column not in computed or cell.value is None:
                continue
            if abs(cell.value - computed[column]) > tolerance + 1e-9:
                yield Disagreement(table.name, row.method, column, cell.value, computed[column])
