"""Who is told what a run does, where somebody elsewhere has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.running.results import RunFolder
    from ostinato.scoring.record import Record


class Listener:
    """Told of every batch and checkpoint of a run; this one makes nothing of it.

    >>> Listener().begun(None, 0, 30)
    """

    def begun(self, folder: RunFolder | None, done: int, total: int) -> None:
        """A run starts, or goes on, after so many of its batches."""

    def batch(self, record: Record) -> None:
        """One more batch is done."""

    def saved(self, folder: RunFolder) -> None:
        """A checkpoint was written."""
