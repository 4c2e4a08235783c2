"""Runs over one stream after another: each row in turn, or several side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from ostinato.data.kept import keep
from ostinato.data.shared import share
from ostinato.data.streams import Stream
from ostinato.errors import ConfigError, OstinatoError
from ostinato.running.job import open_stream
from ostinato.running.runner import Interrupted, finished, run
from ostinato.running.spec import Spec
from ostinato.scoring.summary import Summary
from ostinato.tables.request import Engine, Outcome, Request, spec_key

_T = TypeVar("_T")


class Workers:
    """Processes for rows side by side, started when first needed and kept from stream to stream.

    >>> with Workers(2) as workers:
    ...     workers.jobs
    2
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ConfigError(f"jobs = {jobs}: at least one process has to run.")
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    @property
    def pool(self) -> ProcessPoolExecutor:
        """Processes that share the cores; spawned, since a forked one cannot use a GPU."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            threads = max(1, (os.cpu_count() or 1) // self.jobs)
            self._pool = ProcessPoolExecutor(self.jobs, context, _limit_threads, (threads,))
        return self._pool

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def run_rows(
    specs: Mapping[str, Spec],
    *,
    out: Path,
    again: bool = False,
    finished_alone: bool = False,
    memory: float = 1.0,
    workers: Workers | None = None,
    console: Console | None = None,
) -> dict[str, Outcome]:
    """Run specs of one seed and one stream by label. A row that fails is returned as its error.

    Args:
        specs: what to run; all of them see the first one's stream, which is made once.
        out: where runs are kept.
        again: run even what is done.
        finished_alone: run nothing, and leave out what is not done.
        memory: GiB of made batches to keep for the rows that follow.
        workers: processes for rows side by side; one after the other unless given.
        console: where progress goes.
    """
    console = console or Console(stderr=True)
    stream = open_stream(next(iter(specs.values())))
    found = {} if again else _done(specs, out, stream)
    if finished_alone:
        return found
    todo = {label: spec for label, spec in specs.items() if label not in found}
    if workers is not None and len(todo) > 1 and workers.jobs > 1:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".batches-", dir=out) as folder:
            found |= _side_by_side(todo, workers, Path(folder), stream, out, again, memory, console)
    else:
        kept = keep(stream, memory)
        found |= {label: _one(spec, out, again, kept, console) for label, spec in todo.items()}
    return {label: found[label] for label in specs}


def _done(specs: Mapping[str, Spec], out: Path, stream: Stream) -> dict[str, Outcome]:
    """Rows that need not run, found before any batch is made, on whatever device they ran."""
    found: dict[str, Outcome] = {}
    for label, spec in specs.items():
        with suppress(OstinatoError):  # which its own turn brings up again
            folder = finished(spec, out, stream)
            if folder is not None:
                found[label] = folder.summary()
    return found


def _side_by_side(
    specs: Mapping[str, Spec],
    workers: Workers,
    folder: Path,
    stream: Stream,
    out: Path,
    again: bool,
    memory: float,
    console: Console,
) -> dict[str, Outcome]:
    pool = workers.pool

    def spread(work: Callable[..., _T], tasks: list[tuple[Any, ...]]) -> list[_T]:
        return [future.result() for future in [pool.submit(work, *task) for task in tasks]]

    try:
        shared = share(stream, folder, memory, workers.jobs, spread)
        # Two rows may be the same run, which must not be begun twice at once.
        futures: dict[Future[Outcome], list[str]] = {}
        for labels in _equal(specs):
            future = pool.submit(_elsewhere, specs[labels[0]], out, again, shared)
            futures[future] = labels
        found: dict[str, Outcome] = {}
        for future in as_completed(futures):
            for label in futures[future]:
                found[label] = future.result()
            _tell(console, futures[future], future.result(), len(found), len(specs))
    except KeyboardInterrupt:
        pool.shutdown(wait=True, cancel_futures=True)
        raise Interrupted(
            f"Stopped; what was done is in {out}. The same command goes on from there."
        ) from None
    return {label: found[label] for label in specs}


def _one(spec: Spec, out: Path, again: bool, stream: Stream, console: Console | None) -> Outcome:
    quiet = console is None
    try:
        (folder,) = run(spec, out=out, again=again, console=console, quiet=quiet, stream=stream)
    except OstinatoError as error:
        return error
    except Exception as error:  # one row's defect should not cost the others their hours
        traceback.print_exc()
        return OstinatoError(f"{type(error).__name__}: {str(error)[:200]}")
    return folder.summary()


def _elsewhere(spec: Spec, out: Path, again: bool, stream: Stream) -> Outcome:
    """A run in a process of its own, which listens to Ctrl-C while it has something to stop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _one(spec, out, again, stream, None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _equal(specs: Mapping[str, Spec]) -> list[list[str]]:
    """Labels of equal specs together."""
    groups: dict[str, list[str]] = {}
    for label, spec in specs.items():
        groups.setdefault(spec_key(spec), []).append(label)
    return list(groups.values())


def _tell(console: Console, labels: Sequence[str], outcome: Outcome, done: int, total: int) -> None:
    said = str(outcome)
    if isinstance(outcome, Summary):
        speed = outcome.cost.images_per_second or 0.0
        said = f"{outcome.metric} {outcome.mean:.1f} % · {speed:.0f} images/s"
    line = f"{', '.join(labels)}: {said} ({done} of {total})"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _limit_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
    # Ctrl-C reaches every process; one that waits for work has nothing to say to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def by_stream(specs: Mapping[str, Spec]) -> list[dict[str, Spec]]:
    """Rows that see the same batches, together."""
    groups: dict[str, dict[str, Spec]] = {}
    shown = {"stream", "data", "roots", "seeds", "batch_size", "device"}
    for label, spec in specs.items():
        groups.setdefault(spec.model_dump_json(include=shown), {})[label] = spec
    return list(groups.values())


def run_group(
    specs: Mapping[str, Spec],
    request: Request,
    workers: Workers,
    console: Console,
    ahead: Mapping[str, Outcome],
) -> dict[str, list[Outcome]]:
    """Rows of one stream, seed by seed; what became of each."""
    outcomes: dict[str, list[Outcome]] = {label: [] for label in specs}
    for seed in next(iter(specs.values())).seeds:
        rows = {
            label: spec.replace(seeds=(seed,))
            for label, spec in specs.items()
            if not any(isinstance(one, OstinatoError) for one in outcomes[label])
        }
        if ahead:  # an engine has run everything already
            for label, spec in rows.items():
                outcomes[label].append(ahead[spec_key(spec)])
            continue
        made = run_rows(
            rows,
            out=request.out,
            again=request.again,
            finished_alone=request.finished,
            memory=request.memory,
            workers=workers,
            console=console,
        )
        for label, outcome in made.items():
            outcomes[label].append(outcome)
    return outcomes


def run_ahead(
    engine: Engine, specs: Sequence[Spec], request: Request, console: Console
) -> Mapping[str, Outcome]:
    """Every seed of every row at once, wherever the engine runs them."""
    return engine.run(
        [one for spec in specs for one in spec.runs()],
        out=request.out,
        again=request.again,
        memory=request.memory,
        console=console,
    )
