"""What is written behind the answers: events, answers by sequence number, snapshots.

One thread writes; nobody waits for it. Where the disk is full or read-only it says so, keeps what
it has in bounded memory and tries again until it succeeds.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ostinato.errors import StateError
from ostinato.ops.allocator import give_back
from ostinato.ops.snapshot import State
from ostinato.serve._threads import Working
from ostinato.serve.snapshots import keep_latest, write_snapshot
from ostinato.serve.store import SnapshotRow, Store

Row: TypeAlias = tuple[str, tuple[Any, ...]]
"""A table, and what goes into it; a stream's id comes first."""
_PENDING = 20_000
"""Events and answers kept while nothing can be written; older ones are dropped, and counted."""
_RETRY = 1.0
"""Seconds between attempts while nothing can be written."""
_REST = 10.0
"""Seconds without anything to write after which free memory goes back to the system."""
_PRUNE = 2000
"""Rows after which old ones are removed."""


def _append_whole(log: str, lines: bytes) -> None:
    """Add lines to a file, all of them or none; "-" is standard output."""
    if log == "-":
        print(lines.decode(), end="", flush=True)
        return
    with Path(log).open("ab", buffering=0) as file:
        start, rest = file.tell(), memoryview(lines)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(start)  # no half line for the next one to be joined to
            raise


@dataclass
class SnapshotJob:
    """A state to be written; `done` tells its row.

    Attributes:
        since: when the oldest update happened that is in it and not on disk, by the monotonic
            clock. The state with the oldest one is written first.
        began: when its turn came.
        finished: told the row, and when the turn came. It must not know the job: a cycle would
            keep the state until the collector comes, which takes minutes.
    """

    stream: int
    state: State
    header: dict[str, Any]
    name: str | None = None
    since: float = field(default_factory=time.monotonic)
    began: float = 0.0
    finished: Callable[[SnapshotRow, float], None] | None = None
    done: Future[SnapshotRow] = field(default_factory=Future)


class Writer(Working):
    """The thread that writes; when it stops, what is left is written or given up.

    Args:
        store: the index.
        keep: snapshots kept of every stream.
        events: events kept of every stream.
        answers: answers kept of every stream.
        log: a file that gets every event as a line of JSON; "-" is standard output.

    Attributes:
        trouble: what is wrong with the folder; None while all is well.
        dropped: rows that were given up.
    """

    def __init__(
        self, store: Store, *, keep: int, events: int, answers: int, log: str | None = None
    ) -> None:
        super().__init__("ostinato-writer")
        self.log = log
        self.store, self.keep = store, keep
        self.most = {"events": events, "answers": answers}
        self.trouble: str | None = None
        self.dropped = 0
        self._rows: deque[Row] = deque()
        self._jobs: deque[SnapshotJob] = deque()
        self._job: SnapshotJob | None = None  # the one that is being written
        self._lines: deque[bytes] = deque(maxlen=_PENDING)  # for the log
        self._idle = False
        self._unpruned: dict[int, int] = {}
        self._resting = True  # nothing was done since free memory went back

    # What others hand over.

    def event(self, stream: int | None, kind: str, **body: Any) -> None:
        """Note that something happened."""
        text = json.dumps(body, sort_keys=True)
        self._put("events", (stream, time.time(), kind, text))

    def answer(self, stream: int, sequence: int, digest: str, body: str) -> None:
        """Note what a sequence number was answered."""
        self._put("answers", (stream, sequence, digest, body))

    def snapshot(self, job: SnapshotJob) -> None:
        """Write a state; an older one of the same stream that still waits is not needed."""
        with self._ready:
            if job.name is None:
                waiting = [one for one in self._jobs if one.stream == job.stream and not one.name]
                for old in waiting:
                    self._jobs.remove(old)
                    old.done.cancel()
                    job.since = min(job.since, old.since)  # it does not go to the end of the line
            self._jobs.append(job)
            self._ready.notify()

    @property
    def waiting(self) -> int:
        """States that were handed over and are not written, each of them a copy."""
        return len(self._jobs) + (self._job is not None)

    def oldest(self) -> float:
        """Seconds since the oldest update that waits to be written, or is being written."""
        with self._ready:
            since = [job.since for job in (*self._jobs, self._job) if job is not None]
            return time.monotonic() - min(since) if since else 0.0

    def forget(self, stream: int) -> None:
        """A stream is gone: nothing of it is to be written any more."""
        with self._ready:
            self._rows = deque(row for row in self._rows if row[1][0] != stream)
            gone = [job for job in self._jobs if job.stream == stream]
            for job in gone:
                self._jobs.remove(job)
                job.done.cancel()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all is written; whether it is."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            with self._ready:
                if self._idle and not self._rows and not self._jobs:
                    return True
            time.sleep(0.005)
        return False

    def _put(self, table: str, row: tuple[Any, ...]) -> None:
        with self._ready:
            self._rows.append((table, row))
            while len(self._rows) > _PENDING:
                self._rows.popleft()
                self.dropped += 1
            self._ready.notify()

    # The thread.

    def _next(self) -> SnapshotJob | None:
        """Take out the job whose oldest update is the oldest of all."""
        job = min(self._jobs, key=lambda one: one.since, default=None)
        if job is not None:
            self._jobs.remove(job)
            job.began = time.monotonic()
        return job

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            job = None  # what was written is let go of before the next one comes
            with self._ready:
                self._idle = True
                while not (self._rows or self._jobs or self._lines or self._stopping):
                    self._rest()
                self._idle = self._resting = False
                if self._stopping and not (self._rows or self._jobs):
                    break
                rows = [self._rows.popleft() for _ in range(min(len(self._rows), 1000))]
                job = self._job = self._next()
            try:
                connection = connection or self.store.connect()
                if rows:
                    self.write_rows(connection, rows)
                    self._lines.extend(self._told(rows))
                    rows = []
                if job is not None:
                    self.write_job(connection, job)
                self._job = None
                self._write_lines()
                self.trouble = None
            except (sqlite3.Error, OSError, StateError) as error:
                if connection is not None:
                    connection.close()
                connection = self._job = None
                self._give_back(rows, job, error)
        if connection is not None:
            connection.close()

    def _rest(self) -> None:
        """Wait until there is something to write; after a while let free memory go, once.

        Not under load: what is free is used again within a second. Each thread has its own, so
        that bodies that wait to be learned from do not come between the tensors of forwards.
        """
        came = self._ready.wait(None if self._resting else _REST)
        if not came and not self._resting:
            self._resting = True
            give_back()

    def write_rows(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        """Write events and answers, and remove old ones."""
        events = [row for table, row in rows if table == "events"]
        answers = [row for table, row in rows if table == "answers"]
        with connection:
            connection.executemany(
                "INSERT INTO events(stream, at, kind, body) VALUES (?, ?, ?, ?)", events
            )
            connection.executemany(
                "INSERT OR REPLACE INTO answers(stream, sequence, digest, body) "
                "VALUES (?, ?, ?, ?)",
                answers,
            )
            self._prune(connection, [row[0] for _, row in rows if row[0] is not None])

    def _told(self, rows: list[Row]) -> list[bytes]:
        """Events as lines of the log."""
        if self.log is None:
            return []
        return [
            json.dumps(
                {"at": row[1], "stream": row[0], "kind": row[2], **json.loads(row[3])}
            ).encode()
            + b"\n"
            for table, row in rows
            if table == "events"
        ]

    def write_log(self, rows: list[Row]) -> None:
        """Write events to the log; what cannot be written now comes with the next ones."""
        self._lines.extend(self._told(rows))
        self._write_lines()

    def _write_lines(self) -> None:
        if self._lines and self.log is not None:
            _append_whole(self.log, b"".join(self._lines))
            self._lines.clear()

    def _prune(self, connection: sqlite3.Connection, streams: list[int]) -> None:
        for stream in streams:
            self._unpruned[stream] = self._unpruned.get(stream, 0) + 1
        for stream in [s for s, count in self._unpruned.items() if count >= _PRUNE]:
            self._unpruned[stream] = 0
            for table, most in self.most.items():
                connection.execute(
                    f"DELETE FROM {table} WHERE stream = ? AND id <= (SELECT id FROM {table} "
                    "WHERE stream = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    (stream, stream, most),
                )

    def write_job(self, connection: sqlite3.Connection, job: SnapshotJob) -> None:
        """Write a state, and remove old ones."""
        if not job.done.set_running_or_notify_cancel():
            return
        try:
            row = write_snapshot(
                self.store, connection, job.stream, job.state, job.header, job.name
            )
            keep_latest(self.store, connection, job.stream, self.keep)
        except (sqlite3.Error, OSError, StateError) as error:
            job.done.set_exception(error)
            raise
        if job.finished is not None:
            job.finished(row, job.began)
        job.done.set_result(row)

    def _give_back(self, rows: list[Row], job: SnapshotJob | None, error: Exception) -> None:
        """Say what is wrong and try again later; a failed snapshot is made anew by its stream."""
        self.trouble = f"{type(error).__name__}: {error}"[:200]
        _without_traceback(error)
        if job is not None and not job.done.done():  # its turn did not even come
            job.done.set_exception(error)
        with self._ready:
            if self._stopping:
                self.dropped += len(rows) + len(self._rows)
                self._rows.clear()
                self._lines.clear()
                return
            self._rows.extendleft(reversed(rows))
            self._ready.wait(_RETRY)


def _without_traceback(error: BaseException | None) -> None:
    """Let go of the frames that an error came through: they hold the state, and its job the error.

    Each state that could not be written would stay until the collector comes.
    """
    while error is not None:
        error.__traceback__, error = None, error.__context__
