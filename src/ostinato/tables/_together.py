"""Rows side by side on one machine: whoever is free takes the next, whatever stream it is of."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from ostinato.data.shared import share
from ostinato.data.streams import Stream
from ostinato.errors import ConfigError
from ostinato.running.job import open_stream
from ostinato.running.runner import Interrupted
from ostinato.running.spec import Spec
from ostinato.scoring.summary import Summary
from ostinato.tables._rows import by_stream, find_done, run_one
from ostinato.tables.request import Outcome, Request, spec_key

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
        self._context = multiprocessing.get_context("spawn")  # a forked one cannot use a GPU
        self._stopped = self._context.Event()
        self._pool: ProcessPoolExecutor | None = None

    @property
    def pool(self) -> ProcessPoolExecutor:
        """Processes that share the cores."""
        if self._pool is None:
            given = (max(1, (os.cpu_count() or 1) // self.jobs), self._stopped)
            self._pool = ProcessPoolExecutor(self.jobs, self._context, _set_up, given)
        return self._pool

    def stop(self) -> None:
        """Wait for what is running; what a process has been handed already is not begun."""
        self._stopped.set()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def spread(self, work: Callable[..., _T], tasks: list[tuple[Any, ...]]) -> list[_T]:
        """Call a function with each of the argument lists in these processes, and wait."""
        return [future.result() for future in [self.pool.submit(work, *task) for task in tasks]]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)


@dataclass
class _Group:
    """Rows of one stream and seed that are still to run."""

    stream: Stream
    specs: list[Spec]


def run_together(
    specs: Sequence[Spec], request: Request, workers: Workers, console: Console
) -> dict[str, Outcome]:
    """Run specs of one seed each, or find them done; what became of each, by `spec_key`.

    Rows start in the order given, stream by stream. The batches of a stream are made as soon as
    a process has nothing left to do of the one before, so that no row waits for the slowest of
    another stream; they are removed with the last row that sees them.
    """
    found, groups = _look(specs, request)
    total = sum(len(group.specs) for group in groups)
    waiting: dict[Future[Outcome], Spec] = {}
    try:
        with ExitStack() as folders:
            for group in groups:
                request.out.mkdir(parents=True, exist_ok=True)
                folder = tempfile.TemporaryDirectory(prefix=".batches-", dir=request.out)
                folders.enter_context(folder)
                begun = _begin(group, request, workers, Path(folder.name))
                _when_all_are_done(begun, folder.cleanup)
                waiting |= begun
                for future, spec in begun.items():
                    future.add_done_callback(_teller(console, spec, waiting, total))
            for future in as_completed(waiting):
                found[spec_key(waiting[future])] = future.result()
    except KeyboardInterrupt:
        workers.stop()
        raise Interrupted(
            f"Stopped; what was done is in {request.out}. The same command goes on from there."
        ) from None
    return found


def _look(specs: Sequence[Spec], request: Request) -> tuple[dict[str, Outcome], list[_Group]]:
    """What is done, before any batch is made, and the rest stream by stream; equal specs once."""
    found: dict[str, Outcome] = {}
    groups = []
    for rows in by_stream({spec_key(spec): spec for spec in specs}):
        stream = open_stream(next(iter(rows.values())))
        done = {} if request.again else find_done(rows, request.out, stream)
        found |= done
        rest = [spec for key, spec in rows.items() if key not in done]
        if rest:
            groups.append(_Group(stream, rest))
    return found, groups


def _begin(
    group: _Group, request: Request, workers: Workers, folder: Path
) -> dict[Future[Outcome], Spec]:
    """Make the stream's batches and hand its rows out."""
    shared = share(group.stream, folder, request.memory, workers.jobs, workers.spread)
    return {
        workers.pool.submit(_elsewhere, spec, request.out, request.again, shared): spec
        for spec in group.specs
    }


def _when_all_are_done(futures: dict[Future[Outcome], Spec], act: Callable[[], None]) -> None:
    left = set(futures)

    def one(future: Future[Outcome]) -> None:
        left.discard(future)
        if not left:
            act()

    for future in futures:
        future.add_done_callback(one)


def _teller(
    console: Console, spec: Spec, waiting: dict[Future[Outcome], Spec], total: int
) -> Callable[[Future[Outcome]], None]:
    """Says what became of a row, and how many are done."""

    def tell(future: Future[Outcome]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        outcome = future.result()
        said = str(outcome)
        if isinstance(outcome, Summary):
            speed = outcome.cost.images_per_second or 0.0
            said = f"{outcome.metric} {outcome.mean:.1f} % · {speed:.0f} images/s"
        done = sum(one.done() for one in list(waiting))
        which = f"{spec.label} ({spec.stream}, batch {spec.batch_size}, seed {spec.seed})"
        line = f"{which}: {said} ({done} of {total})"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return tell


def _elsewhere(spec: Spec, out: Path, again: bool, stream: Stream) -> Outcome:
    """A run in a process of its own, which listens to Ctrl-C while it has something to stop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _told_to_stop is not None and _told_to_stop.is_set():
            raise Interrupted("Not begun.")
        return run_one(spec, out, again, stream, None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


_told_to_stop: Event | None = None
"""In a process for rows: whether no further row is to begin."""


def _set_up(threads: int, stopped: Event) -> None:
    """What a process for rows begins with."""
    import torch

    global _told_to_stop
    _told_to_stop = stopped
    torch.set_num_threads(threads)
    # Ctrl-C reaches every process; one that waits for work has nothing to say to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
