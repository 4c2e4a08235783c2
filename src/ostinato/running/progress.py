"""What a run shows while it runs, on a terminal or in plain lines, and whom it tells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ostinato.scoring.metrics import mean_iou
from ostinato.scoring.record import Record

if TYPE_CHECKING:
    from ostinato.running.results import RunFolder

_LINES = 10
"""Lines that a run writes where there is no terminal."""


class RunningScore:
    """The score so far, from records: error of images, mIoU of pixels.

    >>> score = RunningScore()
    >>> score.add(
    ...     Record(run="a", index=0, domain="fog", images=4, correct=3, counted=4, hits="0111")
    ... )
    >>> str(score)
    'error 25.0 %'
    """

    def __init__(self) -> None:
        self.correct = self.counted = 0
        self.confusion: NDArray[np.int64] | None = None

    def add(self, record: Record) -> None:
        """Count one more batch."""
        self.correct += record.correct
        self.counted += record.counted
        if record.confusion:
            side = record.classes
            counts = np.sum(record.confusion, axis=0).reshape(side, side)
            self.confusion = counts if self.confusion is None else self.confusion + counts

    def __str__(self) -> str:
        if self.confusion is not None:
            return f"mIoU {100 * float(mean_iou(self.confusion)):.1f} %"
        wrong = self.counted - self.correct
        return f"error {100 * wrong / max(self.counted, 1):.1f} %"


class RunProgress:
    """Shows a run's batches as they come; a context manager.

    >>> with RunProgress("tent", 1, Console(), quiet=True) as progress:
    ...     progress.show(Record(run="a", index=0, domain="fog", images=1, correct=1, counted=1))
    >>> str(progress.score)
    'error 0.0 %'
    """

    def __init__(self, title: str, batches: int, console: Console, quiet: bool = False) -> None:
        self.title, self.batches, self.console, self.quiet = title, batches, console, quiet
        self.score = RunningScore()
        self._started = time.perf_counter()
        self._images = self._done = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        if self.console.is_terminal and not self.quiet:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}", markup=False),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.batches, state="")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None and not self.quiet:
            self.console.print(f"{self.title}: {self._state('')}", markup=False, highlight=False)

    def skip(self, records: list[Record]) -> None:
        """Count what an earlier start of the run had done."""
        for record in records:
            self.score.add(record)
        self._done = len(records)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done)

    def show(self, record: Record) -> None:
        """One more batch is done."""
        self.score.add(record)
        self._images += record.images
        self._done += 1
        state = self._state(record.domain)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, state=state)
        elif not self.quiet and self._done % max(1, self.batches // _LINES) == 0:
            line = f"{self.title}: {self._done}/{self.batches} {state}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _state(self, domain: str) -> str:
        seconds = max(time.perf_counter() - self._started, 1e-9)
        speed = f"{self._images / seconds:.0f} images/s"
        return " · ".join(part for part in (str(self.score), domain, speed) if part)


class Listener:
    """Told of every batch and checkpoint of a run; subclasses act on it, this one ignores it.

    >>> Listener().begun(None, 0, 30)
    """

    def begun(self, folder: RunFolder | None, done: int, total: int) -> None:
        """A run starts, or goes on, after so many of its batches."""

    def batch(self, record: Record) -> None:
        """One more batch is done."""

    def saved(self, folder: RunFolder) -> None:
        """A checkpoint was written."""
