"""Carrying a trial out: every method on every kind of traffic, each run resumable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ostinato.errors import OstinatoError
from ostinato.running.results import RunFolder
from ostinato.running.runner import run
from ostinato.scoring.compare import Interval, compare
from ostinato.scoring.record import Record
from ostinato.trial._advice import Outcome, Refused, gained
from ostinato.trial._plan import FORWARD, ROBUST, SOURCE, Row, Traffic, tried
from ostinato.trial.setting import Preparations

_RESAMPLES = 2000


@dataclass(frozen=True)
class Results:
    """What a trial came to.

    Attributes:
        outcomes: one for every method and kind of traffic.
        refused: methods that could not be tried.
        folders: the runs' folders, by kind of traffic.
        extra: points that learning gains on top of the maps alone, where domains return.
    """

    outcomes: tuple[Outcome, ...]
    refused: tuple[Refused, ...]
    folders: dict[str, tuple[Path, ...]]
    extra: Interval | None = None


def carry_out(
    home: Path,
    preparations: Preparations,
    traffic: Sequence[Traffic],
    rows: Sequence[Row],
    console: Console,
) -> Results:
    """Run what is missing, and compare every method with the source model, image by image."""
    outcomes: list[Outcome] = []
    refused: dict[str, str] = {}
    folders: dict[str, tuple[Path, ...]] = {}
    extra: Interval | None = None
    for kind in traffic:
        done: dict[str, RunFolder] = {}
        for row in rows:
            if row.title in refused or not tried(row, kind):
                continue
            try:
                done[row.title] = _run(home, preparations, kind, row, console)
            except OstinatoError as error:
                refused[row.title] = str(error)
                _tell(console, f"{row.title} is left out: {error}")
        outcomes += _outcomes_of(kind.name, done)
        folders[kind.name] = tuple(folder.path for folder in done.values())
        if FORWARD.title in done and ROBUST.title in done:
            pair = {name: done[name].records() for name in (FORWARD.title, ROBUST.title)}
            (found,) = compare(pair, metric="error", resamples=_RESAMPLES)
            extra = gained(found.overall)
    many = tuple(Refused(title, reason) for title, reason in refused.items())
    return Results(tuple(outcomes), many, folders, extra)


def _run(
    home: Path, preparations: Preparations, kind: Traffic, row: Row, console: Console
) -> RunFolder:
    started = time.perf_counter()
    (folder,) = run(
        preparations.spec(row, kind),
        out=home / "runs" / kind.name,
        console=console,
        quiet=True,
        stream=kind.stream,
    )
    spent = time.perf_counter() - started
    mean = folder.summary().mean
    _tell(console, f"{kind.title:20} {row.title:22} {mean:5.1f} %  {spent:6.1f} s")
    return folder


def _outcomes_of(kind: str, done: dict[str, RunFolder]) -> list[Outcome]:
    """The figures of all methods on one kind of traffic, beside the source model's."""
    records: dict[str, Sequence[Record]] = {name: one.records() for name, one in done.items()}
    contrasts = {}
    if SOURCE.title in records and len(records) > 1:
        found = compare(records, baseline=SOURCE.title, metric="error", resamples=_RESAMPLES)
        contrasts = {one.other: one for one in found}
    result = []
    for name, folder in done.items():
        short, contrast = folder.summary(), contrasts.get(name)
        speed = short.cost.images_per_second
        result.append(
            Outcome(
                traffic=kind,
                row=name,
                error=short.mean,
                gain=None if contrast is None else gained(contrast.overall),
                domains={}
                if contrast is None
                else {domain: gained(one) for domain, one in contrast.domains.items()},
                milliseconds=None if not speed else 1000 / speed,
                memory=short.cost.peak_memory,
                trained=short.cost.trained,
                found=short.domains_found,
            )
        )
    return result


def _tell(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
