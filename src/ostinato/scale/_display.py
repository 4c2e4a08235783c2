"""All rows of a sweep in one display: a bar each on a terminal, a line for each end elsewhere."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from ostinato.scoring.summary import Summary


class Display:
    """Shows rows as they run; a context manager.

    Args:
        total: rows there are.
        console: where to.

    >>> with Display(2, Console(quiet=True)) as display:
    ...     display.ended("a", "error 3.0 %")
    >>> display.done
    1
    """

    def __init__(self, total: int, console: Console) -> None:
        self.total, self.console, self.done = total, console, 0
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False),
        )
        self._bars = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}
        self._ended: set[str] = set()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bars.start()
            self._tasks[""] = self._bars.add_task("rows", total=self.total, state="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bars.stop()

    def show(self, rows: dict[str, dict[str, Any]]) -> None:
        """How far rows have come, by their digest."""
        if not self.console.is_terminal:
            return
        for digest, row in rows.items():
            if digest in self._ended:
                continue
            if digest not in self._tasks:
                self._tasks[digest] = self._bars.add_task(row["title"], total=None, state="")
            tries = len(row["starts"])
            state = row["state"] + (f" · try {tries}" if tries > 1 else "")
            self._bars.update(
                self._tasks[digest], total=row["total"], completed=row["done"], state=state
            )

    def ended(self, title: str, said: str, digest: str = "") -> None:
        """A row has ended, one way or another."""
        self.done += 1
        self._ended.add(digest)
        if self.console.is_terminal:
            self._bars.update(self._tasks[""], completed=self.done)
            if digest in self._tasks:
                self._bars.remove_task(self._tasks.pop(digest))
        line = f"{title}: {said} ({self.done} of {self.total})"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def said_of(summary: Summary) -> str:
    """A finished row in a few words."""
    speed = summary.cost.images_per_second or 0.0
    return f"{summary.metric} {summary.mean:.1f} % · {speed:.0f} images/s"
