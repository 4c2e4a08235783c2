"""Processes that callers run in, started once: each of them has to import what the load does."""

from __future__ import annotations

import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from _serving import Note, run_callers


class Crowd:
    """Callers in a few processes.

    Args:
        processes: how many.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"))
        for _ in range(processes):  # they begin now, and not when the load does
            self._pool.submit(time.sleep, 1.0)

    def begin(
        self,
        port: int,
        groups: list[list[str]],
        bodies: list[bytes],
        seconds: float,
        options: dict[str, Any],
    ) -> list[Future[tuple[list[Note], int]]]:
        """One caller for each group of streams: what they will have noted, a process each."""
        count = min(self.processes, len(groups))
        return [
            self._pool.submit(run_callers, port, groups[at::count], bodies, seconds, options, at)
            for at in range(count)
        ]

    def stop(self) -> None:
        """Let the processes go."""
        self._pool.shutdown(cancel_futures=True)
