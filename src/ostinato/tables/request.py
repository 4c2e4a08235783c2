"""What was asked of a table: rows, seeds, settings of all of it and of single parts or rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from rich.console import Console

from ostinato.errors import ConfigError, OstinatoError, did_you_mean
from ostinato.registry import METHODS
from ostinato.running.spec import Spec, merge, parse_pairs
from ostinato.scoring.summary import Summary
from ostinato.tables._table import Scale, Table

Outcome: TypeAlias = Summary | OstinatoError
"""What became of one run."""


def spec_key(spec: Spec) -> str:
    """What tells specs apart before anything is opened; equal ones are one run."""
    return spec.model_dump_json()


class Engine(Protocol):
    """Runs specs somewhere else than in processes of this machine."""

    @property
    def said(self) -> str:
        """What a table says of where its rows ran."""
        ...

    def run(
        self, specs: Sequence[Spec], *, out: Path, again: bool, memory: float, console: Console
    ) -> Mapping[str, Outcome]:
        """Run specs of one seed each, or find them done in `out`; by `spec_key`."""
        ...


@dataclass(frozen=True)
class Request:
    """What was asked of a table.

    Attributes:
        scale: the paper's setting, or the package's own data.
        methods: `name` or `name:preset`; "all" for every registered one; empty for the usual.
        preset: of an ablation's rows; `paper` at full scale, `source-free` at small unless given.
        parts: the table's streams to run and show; all of them unless given.
        seeds: in place of the paper's.
        changes: spec values on top of the table's.
        only: further spec values, of one part or one method alone, by its name, or of a method on
            one part, by `part/name`.
        out: where runs are kept.
        again: run even what is done.
        finished: run nothing; show what is done.
        memory: GiB of made batches to keep for the rows that follow.
        jobs: rows that run side by side, each in a process of its own.
        factors: of learning rates, as a search chose them, by `name` or `name:preset`; each gives
            its method a second row.
        searched: methods with a factor have the row at that rate alone.
        command: as typed, to stand in the result.
        engine: what runs the rows, in place of processes of this machine.
    """

    scale: Scale = "small"
    methods: tuple[str, ...] = ()
    preset: str | None = None
    parts: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    changes: Mapping[str, Any] | None = None
    only: Mapping[str, Mapping[str, Any]] | None = None
    out: Path = Path("runs")
    again: bool = False
    finished: bool = False
    memory: float = 1.0
    jobs: int = 1
    factors: Mapping[str, float] | None = None
    searched: bool = False
    command: str = ""
    engine: Engine | None = None

    def __post_init__(self) -> None:
        if self.again and self.finished:
            raise ConfigError("again runs everything, finished runs nothing: leave one out.")
        if self.searched and self.factors is None:
            raise ConfigError("searched takes the rates of a file: pass its factors as well.")

    def changes_of(self, *names: str) -> dict[str, Any]:
        """Spec values on top of the table's, for a row or stream that goes by these names.

        >>> asked = Request(changes={"data": {"limit": 9}}, only={"foa": {"data": {"limit": 3}}})
        >>> asked.changes_of("Mixed", "foa"), asked.changes_of("Mixed", "tent")
        ({'data': {'limit': 3}}, {'data': {'limit': 9}})
        """
        values = dict(self.changes or {})
        for name in dict.fromkeys(names):
            values = merge(values, (self.only or {}).get(name, {}))
        return values

    def check_names(self, table: Table) -> None:
        """Refuse settings of a part or method that the table cannot have."""
        parts = [part.name for part in table.parts]
        known = [*parts, *METHODS.names()]
        for name in self.only or {}:
            part, slash, method = name.partition("/")
            rest = method if slash and part in parts else name
            if rest not in known and rest.partition(":")[0] not in METHODS:
                raise ConfigError(
                    f"{table.name} has no part or method {rest!r}. {did_you_mean(rest, known)}"
                )


def parse_only(words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings of single parts or methods from the command line.

    >>> parse_only(["foa:data.limit=50", "Batch 1:data.limit=10", "foa:data.rounds=1"])
    {'foa': {'data': {'limit': 50, 'rounds': 1}}, 'Batch 1': {'data': {'limit': 10}}}
    """
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        left, equals, value = word.partition("=")
        name, colon, key = left.rpartition(":")
        if not (equals and colon and name):
            raise ConfigError(f"{word!r}: write NAME:KEY=VALUE, such as foa:data.limit=100.")
        found[name] = merge(found.get(name, {}), parse_pairs([f"{key}={value}"]))
    return found
