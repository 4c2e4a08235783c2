"""What a table is made of: streams, rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ostinato.data.stand_ins import STAND_IN_NOTE
from ostinato.errors import ConfigError, did_you_mean

Scale: TypeAlias = Literal["full", "small"]
Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A column: its heading, what it shows, and of which part, domain and round.

    Kinds are those of the printed tables, and for measured rows alone: by domains, ece, speed,
    purity, ami, delay, trained.

    >>> Measure("Mean", "mean").heading
    'Mean'
    """

    heading: str
    kind: str
    group: str = ""
    part: str = ""
    domain: str = ""
    round: int | None = None


@dataclass(frozen=True)
class Variant:
    """A row: a method under settings of its own, learning `factor` times as fast as they say.

    >>> Variant("TENT", "tent", factor=10.0).cosine
    False
    """

    label: str
    method: str
    preset: str | None = None
    settings: Values = field(default_factory=dict)
    cosine: bool = False
    factor: float = 1.0


@dataclass(frozen=True)
class Part:
    """One stream of a table, as spec values at both scales.

    >>> part = Part("CDC", full={"stream": "cdc"}, small={"stream": "cdc", "data": {"limit": 100}})
    >>> part.small["data"]
    {'limit': 100}
    """

    name: str
    full: Values
    small: Values
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Attributes:
        name: what users type; also the printed table's name.
        title: above the table.
        parts: the streams, one for most tables.
        columns: what is shown of every row.
        preset: of methods that name their settings after a benchmark.
        variants: fixed rows of an ablation; empty where rows are methods.
        reference: the row that gains or differences are taken to.
        notes: below the table; `small_notes` at small scale alone.
        methods: the usual rows, where they are not those of the paper's other tables.
        variant_presets: what fixed rows without a preset run under at either scale.

    >>> part = Part("", full={"stream": "continual"}, small={"stream": "continual"})
    >>> table = Table("mine", "My table", (part,), (Measure("Mean", "mean"),))
    >>> table.reference
    'source'
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    columns: tuple[Measure, ...]
    preset: str | None = None
    variants: tuple[Variant, ...] = ()
    reference: str = "source"
    notes: tuple[str, ...] = ()
    small_notes: tuple[str, ...] = (STAND_IN_NOTE,)
    methods: tuple[str, ...] = ()
    variant_presets: Mapping[Scale, str] = field(
        default_factory=lambda: {"full": "paper", "small": "source-free"}
    )

    def of_parts(self, names: Sequence[str]) -> Table:
        """The same table with some of its streams, and the columns that show them.

        >>> parts = tuple(Part(name, {}, {}) for name in ("Recurring", "CDC"))
        >>> columns = tuple(Measure(part.name, "mean", part=part.name) for part in parts)
        >>> [column.heading for column in Table("t", "T", parts, columns).of_parts(["CDC"]).columns]
        ['CDC']
        """
        known = [part.name for part in self.parts]
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name} has no part {name!r}. {did_you_mean(name, known)}")
        columns = [m for m in self.columns if (m.part or known[0]) in names]
        parts = [part for part in self.parts if part.name in names]
        return replace(self, parts=tuple(parts), columns=tuple(columns))
