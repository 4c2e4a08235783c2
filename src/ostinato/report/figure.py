"""What a page shows: a drawing with its words and its data, or a note why there is none."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

Value: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Data:
    """The numbers behind a figure.

    >>> print(Data(("domain", "error"), (("fog", 12.5),)).csv())
    domain,error
    fog,12.5
    <BLANKLINE>
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def csv(self) -> str:
        """As a table of comma-separated values; None is an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def uri(self) -> str:
        """The table as a link that needs no server.

        >>> Data(("a b",), ((1,),)).uri()
        'data:text/csv;charset=utf-8,a%20b%0A1%0A'
        """
        return "data:text/csv;charset=utf-8," + quote(self.csv(), safe=",;:=+-_.()")


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
        name: of the anchor and of the data's file.
        title: what is shown.
        caption: how to read it.
        alt: what there is to see, for those who cannot.
        svg: the drawing, as an element to stand inside a page.
        data: the numbers.
        width: pixels below which the drawing is scrolled rather than shrunk.

    >>> data = Data(("domain", "error"), (("fog", 12.5),))
    >>> Figure("x", "Error", "Lower is better.", "Fog: 12.5 %", "<svg></svg>", data).width
    560
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: str
    data: Data
    width: int = 560


@dataclass(frozen=True)
class Missing:
    """A figure that these runs do not allow, and why.

    >>> Missing("trust", "Trust over time", "No run has experts.").note
    'No run has experts.'
    """

    name: str
    title: str
    note: str


Part: TypeAlias = Figure | Missing


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A number short enough to print; None stays None.

    >>> rounded(1 / 3), rounded(None)
    (0.3333, None)
    """
    return None if value is None else round(float(value), digits)


def listing(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])
