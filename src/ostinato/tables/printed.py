"""Printed figures: the paper's tables as data, each cell as printed, with notes where it is wrong.

Tables set these rows beside measured ones, marked as printed; `recomputed` checks their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ostinato.errors import UnknownName, did_you_mean
from ostinato.scoring.forgetting import Cells, Metric, Score
from ostinato.tables import _printed_rows as rows

_Kind: TypeAlias = Literal["score", "round mean", "mean", "rf", "gain", "count", "diff", "share"]
_Protocol: TypeAlias = Literal["raw", "normalised", "reservoir"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its printed heading, what it holds, and of which domain and round.

    >>> Column("Fog", "error", domain="fog").heading
    'Fog'
    """

    heading: str
    kind: _Kind
    domain: str = ""
    round: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed cell; `text` stays as printed, `note` says what is wrong with it.

    >>> Cell("+4.8").value, Cell("/").value
    (4.8, None)
    """

    text: str
    note: str = ""

    @property
    def value(self) -> float | None:
        """The number, where the cell holds one."""
        try:
            return float(self.text)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Row:
    """One printed row.

    Attributes:
        method: as printed.
        reference: where the method was published, as printed.
        cells: one per column of the table; an empty text where nothing was printed.
        origin: "paper", or "elsewhere" for stronger figures that it does not list.
        needs: help beyond the unlabeled stream.
        predicts: which forward was scored; empty where the source does not say.
        note: what else to know about the row.
        protocol: what the model was shown: raw pixels, normalised ones, or another comparison's.
    """

    method: str
    reference: str
    cells: tuple[Cell, ...]
    origin: Literal["paper", "elsewhere"] = "paper"
    needs: tuple[str, ...] = ()
    predicts: str = ""
    note: str = ""
    protocol: _Protocol = "raw"


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """One table of the paper.

    >>> table = printed("imagenet-plus")
    >>> table.cell("ViDA", "RF")
    Cell(text='+5.0', note='Its own cells give +8.8.')
    """

    name: str
    metric: Metric
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    images: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def row(self, method: str) -> Row:
        """The row of a method."""
        for row in self.rows:
            if row.method == method:
                return row
        hint = did_you_mean(method, (row.method for row in self.rows))
        raise UnknownName(f"Table {self.name} prints no {method!r}. {hint}")

    def cell(self, method: str, heading: str, round: int | None = None) -> Cell:
        """One cell, by its method, heading and round."""
        row = self.row(method)
        for column, cell in zip(self.columns, row.cells, strict=True):
            if (column.heading, column.round) == (heading, round):
                return cell
        hint = did_you_mean(heading, {column.heading for column in self.columns})
        raise UnknownName(f"Table {self.name} has no column {heading!r} ({round}). {hint}")

    def scores(self, row: Row) -> Cells:
        """A row's scores by (round, domain), weighted by images where the table is."""
        return {
            (column.round or 0, column.domain): Score(cell.value, self.images[column.domain])
            for column, cell in zip(self.columns, row.cells, strict=True)
            if column.kind == "score" and cell.value is not None
        }


_ORIGIN: Mapping[_Protocol, Literal["paper", "elsewhere"]] = {
    "raw": "paper",
    "normalised": "elsewhere",
    "reservoir": "elsewhere",
}
_BEYOND = {
    "traffic": ("Recurring", "Mixed"),
    "ablation-objective": ("Recurring", "Mixed"),
}
"""Tables of this project's own, and headings that they begin with."""


def printed(name: str) -> PrintedTable:
    """The printed table of that name."""
    if name not in PRINTED:
        raise UnknownName(f"There is no printed table {name!r}. {did_you_mean(name, PRINTED)}")
    return PRINTED[name]


def _row(
    method: str,
    reference: str,
    cells: tuple[Cell, ...],
    protocol: _Protocol = "raw",
    origin: Literal["paper", "elsewhere"] = "paper",
) -> Row:
    needs, predicts = rows.NEEDS.get(method, ()), rows.PREDICTS.get(method, "")
    notes = (rows.PROTOCOL_NOTES.get(protocol, ""), rows.ROW_NOTES.get(method, ""))
    note = " ".join(filter(None, notes))
    return Row(method, reference, cells, origin, needs, predicts, note, protocol)


def _read(name: str, columns: tuple[Column, ...], line: str, protocol: _Protocol) -> Row:
    method, reference, *groups = (part.strip() for part in line.split("|"))
    texts = " ".join(groups).split()
    cells = (
        Cell(text, rows.NOTES.get((name, method, column.heading, column.round), ""))
        for column, text in zip(columns, texts, strict=True)
    )
    return _row(method, reference, tuple(cells), protocol, _ORIGIN[protocol])


def _build(
    name: str,
    columns: tuple[Column, ...],
    text: str,
    *,
    metric: Metric = "error",
    images: Mapping[str, float] | None = None,
    stronger: Mapping[str, str] | None = None,
    normalised: Mapping[str, str] | None = None,
    protocol: _Protocol = "raw",
    notes: tuple[str, ...] = (),
) -> PrintedTable:
    known = [_read(name, columns, line, protocol) for line in text.strip().splitlines()]
    known += _means_alone(stronger or {}, columns, "raw")
    known += _means_alone(normalised or {}, columns, "normalised")
    weights = images or {column.domain: 1.0 for column in columns if column.kind == "score"}
    return PrintedTable(name, metric, columns, tuple(known), weights, notes)


def _means_alone(
    means: Mapping[str, str], columns: tuple[Column, ...], protocol: _Protocol
) -> Iterator[Row]:
    """Rows of which no more than the mean is known."""
    for method, mean in means.items():
        cells = tuple(Cell(mean if column.kind == "mean" else "") for column in columns)
        reference = rows.STRONGER_REFERENCE.get(method, "")
        yield _row(method, reference, cells, protocol, "elsewhere")


def _once(names: Mapping[str, str]) -> tuple[Column, ...]:
    scores = (Column(heading, "score", domain, 0) for heading, domain in names.items())
    return (*scores, Column("Mean", "mean"), Column("Gain", "gain"))


def _three_rounds(names: Mapping[str, str]) -> tuple[Column, ...]:
    columns: list[Column] = []
    for number in range(3):
        columns += (Column(h, "score", domain, number) for h, domain in names.items())
        columns.append(Column("Mean", "round mean", round=number))
    return (*columns, Column("Mean", "mean"), Column("RF", "rf"), Column("Gain", "gain"))


def _by_domain(images: Mapping[str, int]) -> dict[str, float]:
    return {rows.VARIANTS[heading]: float(count) for heading, count in images.items()}


_CRS = _three_rounds(rows.VARIANTS)
_CRS_NOTES = (rows.ORDER_NOTE, rows.WEIGHT_NOTE)

PRINTED: dict[str, PrintedTable] = {
    table.name: table
    for table in (
        _build(
            "imagenet-c",
            _once(rows.CORRUPTIONS),
            rows.IMAGENET_C,
            stronger=rows.STRONGER_IMAGENET_C,
            normalised=rows.NORMALISED_IMAGENET_C,
        ),
        _build(
            "cifar100-c",
            _once(rows.CORRUPTIONS),
            rows.CIFAR100_C,
            stronger=rows.STRONGER_CIFAR100_C,
        ),
        _build(
            "imagenet-plus",
            _CRS,
            rows.IMAGENET_PLUS,
            images=_by_domain(rows.PLUS_IMAGES),
            notes=_CRS_NOTES,
        ),
        _build(
            "imagenet-plus-plus",
            _CRS,
            rows.IMAGENET_PLUS_PLUS,
            images=_by_domain(rows.PLUS_PLUS_IMAGES),
            notes=_CRS_NOTES,
        ),
        _build("acdc", _three_rounds(rows.WEATHER), rows.ACDC, metric="miou"),
        _build(
            "camvid",
            _three_rounds({heading: f"driving_{name}" for heading, name in rows.WEATHER.items()}),
            "",
            metric="miou",
            notes=("The paper has no such table, so there are no printed rows.",),
        ),
        *(
            _build(
                name,
                tuple(Column(heading, "mean") for heading in headings),
                "",
                notes=("The paper has no such table, so there are no printed rows.",),
            )
            for name, headings in _BEYOND.items()
        ),
        _build(
            "recurring-20",
            (Column("R1", "round mean", round=0), Column("R20", "round mean", round=19)),
            rows.RECURRING_20,
            protocol="reservoir",
        ),
        _build(
            "ablation-experts",
            tuple(Column(h, "mean") for h in ("ImageNet-C", "ImageNet+", "ImageNet++")),
            rows.ABLATION_EXPERTS,
        ),
        _build(
            "ablation-fdd",
            (Column("K", "count"), Column("Error", "mean"), Column("Diff", "diff")),
            rows.ABLATION_FDD,
        ),
        _build(
            "ablation-descriptor",
            (),
            "",
            metric="accuracy",
            notes=("The paper draws this ablation as a figure and prints no number.",),
        ),
        _build(
            "parameters",
            (Column("Added", "share"), Column("Trained", "share")),
            rows.PARAMETERS,
            notes=("Shares of the whole model in percent, from the text; there is no table.",),
        ),
    )
}
"""Every table of the paper by name."""
