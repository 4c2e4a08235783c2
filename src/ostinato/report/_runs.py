"""Runs as a report sees them: read from their folders, named, coloured and put side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from ostinato.errors import ConfigError, DataError
from ostinato.methods.contract import own_methods
from ostinato.registry import METHODS
from ostinato.report.style import DASHES, GREY, MARKERS, PALETTE
from ostinato.running.provenance import Provenance
from ostinato.running.results import RunFolder
from ostinato.running.samples import read_diagnostics
from ostinato.scoring.record import Record
from ostinato.scoring.summary import Summary, summarise

Shape: TypeAlias = tuple[tuple[int, str], ...]
"""The round and the true domain of every batch."""
ATTENTION = "attention.npz"


@dataclass(frozen=True)
class Run:
    """One run's folder, read."""

    path: Path
    spec: Mapping[str, Any]
    provenance: Provenance
    records: tuple[Record, ...]
    summary: Summary
    complete: bool
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """The run's seed, where the spec tells."""
        seeds = self.spec.get("seeds") or ()
        return int(seeds[0]) if seeds else self.provenance.seeds.get("method")

    @cached_property
    def shape(self) -> Shape:
        """Which domain came when."""
        return tuple((r.round, r.domain) for r in self.records)

    def setting(self, *keys: str, default: Any = None) -> Any:
        """One of the method's settings, by its path."""
        place: Any = self.spec.get("settings") or {}
        for key in keys:
            place = place.get(key) if isinstance(place, Mapping) else None
        return default if place is None else place

    @property
    def decided(self) -> bool:
        """Whether the method recognises domains."""
        return any(r.decision is not None for r in self.records)


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone."""

    label: str
    colour: str
    dash: Any
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for the others where only one can be shown."""
        return self.runs[0]

    @property
    def turn(self) -> int:
        """How often its colour was given before it; dash and marker tell those apart."""
        return DASHES.index(self.dash)

    @property
    def marker(self) -> str:
        """The shape of its points."""
        return MARKERS[self.turn]

    @property
    def score(self) -> float:
        """The mean score over seeds."""
        return sum(r.summary.mean for r in self.runs) / len(self.runs)


def _read_run(path: str | Path) -> Run:
    """Read one folder; what is damaged in it is an error that says so."""
    folder = RunFolder.open(path)
    records = tuple(folder.records())
    if not records:
        raise DataError(f"{path} holds no record yet: let the run finish a batch first.")
    summary = folder.summary() if folder.is_complete else summarise(records)
    return Run(
        Path(path),
        folder.spec,
        folder.provenance(),
        records,
        summary,
        folder.is_complete,
        read_diagnostics(folder),
    )


def _find_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The folders of runs that are meant: each path, or the runs that lie right under it."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise DataError(f"There is no folder {path}; name the folder of a run.")
        inside = sorted((file.parent for file in path.glob("*/spec.json")), key=_usual_order)
        many = inside if inside and not (path / "spec.json").is_file() else [path]
        found += [one for one in many if one.resolve() not in {f.resolve() for f in found}]
    if not found:
        raise ConfigError("Name at least one run's folder, such as runs/tent-recurring-2025-1a2b.")
    return found


def _usual_order(path: Path) -> tuple[bool, bool, str]:
    """The source model first and this project's method last, as tables have it."""
    ours = path.name.startswith(tuple(own_methods()))
    return not path.name.startswith("source"), ours, path.name


def read_variants(paths: Iterable[str | Path]) -> list[Variant]:
    """Read all runs, and put those together that differ in their seed alone."""
    groups: dict[str, list[Run]] = {}
    paths = list(paths)
    named = {Path(path).resolve() for path in paths}
    for path in _find_folders(paths):
        try:
            run = _read_run(path)
        except DataError as error:
            if path.resolve() in named:
                raise
            print(f"left out: {error}", file=sys.stderr)  # one of many must not spoil the page
            continue
        groups.setdefault(repr(_flat(_without_seed(run.spec))), []).append(run)
    if not groups:
        raise DataError("None of these folders holds a run that can be read.")
    members = [sorted(g, key=lambda run: run.seed or 0) for g in groups.values()]
    labels = _name_all([group[0] for group in members])
    looks = _looks([group[0] for group in members])
    return [
        Variant(label, *look, tuple(group))
        for label, look, group in zip(labels, looks, members, strict=True)
    ]


def _name_all(runs: Sequence[Run]) -> list[str]:
    """A name for each: method and preset, and what else sets namesakes apart."""
    names = [_base_label(run.spec) for run in runs]
    result = []
    for run, name in zip(runs, names, strict=True):
        others = [o for o, n in zip(runs, names, strict=True) if n == name and o is not run]
        result.append(f"{name}{_apart(run, others)}")
    return result


def _base_label(spec: Mapping[str, Any]) -> str:
    """How tables call the method: its title, with the preset where one is named."""
    from ostinato.registry import METHODS

    name = str(spec.get("method", "method"))
    title = str(METHODS[name].info.title) if name in METHODS.names() else name
    return f"{title} {spec.get('preset') or ''}".strip()


def _apart(run: Run, others: Sequence[Run]) -> str:
    own = _flat(_without_seed(run.spec))
    theirs = [_flat(_without_seed(other.spec)) for other in others]
    differing = [key for key in own if any(own[key] != t.get(key) for t in theirs)]
    if not differing:
        return ""
    # A setting that most namesakes share is the usual one and needs no word.
    unusual = [k for k in differing if sum(own[k] == t.get(k) for t in theirs) < len(theirs) / 2]
    return "".join(f", {key.rpartition('.')[2]} {own[key]}" for key in unusual[:3])


def _without_seed(spec: Mapping[str, Any]) -> dict[str, Any]:
    data = {k: v for k, v in (spec.get("data") or {}).items() if k != "seed"}
    return {**{k: v for k, v in spec.items() if k not in ("seeds", "device")}, "data": data}


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in sorted(values):
        value = values[key]
        if isinstance(value, Mapping):
            result |= _flat(value, f"{before}{key}.")
        else:
            result[f"{before}{key}"] = value
    return result


def _kept_colour(method: str, preset: str) -> str | None:
    """The colour that a method declares for a preset, or for all of them."""
    if method not in METHODS:
        return None
    places = METHODS[method].info.colours
    place = places.get(preset, places.get(""))
    return None if place is None else GREY if place < 0 else PALETTE[place]


def _looks(runs: Sequence[Run]) -> list[tuple[str, Any]]:
    """A colour for each, and another dash where a colour comes again."""
    chosen: list[str | None] = []
    for run in runs:
        wanted = _kept_colour(str(run.spec.get("method")), str(run.spec.get("preset")))
        chosen.append(wanted if wanted not in chosen else None)
    free = [c for c in PALETTE if c not in chosen]
    looks: list[tuple[str, Any]] = []
    left = 0
    for colour in chosen:
        if colour is None:
            pool = free or list(PALETTE)
            colour, turn = pool[left % len(pool)], left // len(pool) + (not free)
            left += 1
        else:
            turn = 0
        looks.append((colour, DASHES[turn % len(DASHES)]))
    return looks
