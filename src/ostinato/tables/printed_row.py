"""What a printed table is made of: columns, cells and rows, each as printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["score", "round mean", "mean", "rf", "gain", "count", "diff", "share"]
Protocol: TypeAlias = Literal["raw", "normalised", "reservoir"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its printed heading, what it holds, and of which domain and round.

    >>> Column("Fog", "error", domain="fog").heading
    'Fog'
    """

    heading: str
    kind: Kind
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
    protocol: Protocol = "raw"
