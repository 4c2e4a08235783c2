"""The one who writes: states, events and answers of all shards, on one machine's disk.

Shards send what they have to write; nothing of theirs lies on their own disks, so that any machine
can go on. What comes under an old epoch is refused (`fence.py`).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ostinato.errors import OstinatoError
from ostinato.scale import fence
from ostinato.scale._placing import choose_shard
from ostinato.serve.settings import Settings
from ostinato.serve.snapshots import keep_latest, keep_snapshot, sweep
from ostinato.serve.store import SnapshotRow, Store, StreamRow
from ostinato.serve.writer import Row, Writer

_T = TypeVar("_T")


class Full(OstinatoError):
    """There are as many streams as there may be."""


class Keeper:
    """Keeps a server's folder; an actor on the machine that has it.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.data)
        self.store.take()
        self.store.remove_orphans()
        self._connection = self.store.connect()
        self._connection.executescript(fence.TABLES)
        self._lock = threading.Lock()
        self.writer = Writer(  # its thread is never started: shards wait until all is written
            self.store,
            keep=settings.snapshots.keep,
            events=settings.events,
            answers=settings.answers,
            log=settings.log,
        )
        self.refused = 0
        for row in self.store.streams():
            sweep(self.store, row.id)

    def _change(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """One transaction at a time."""
        with self._lock, self._connection:
            return work(self._connection)

    # Who has what.

    def spread(self, shards: int) -> None:
        """Give every stream a shard that has none, or one that there is no longer."""

        def work(connection: sqlite3.Connection) -> None:
            known = fence.owners(connection)
            for row in self.store.streams():
                if row.id not in known or known[row.id][0] >= shards:
                    fence.claim_stream(connection, row.id, choose_shard(row.name, range(shards)))

        self._change(work)

    def begin(self, shard: int) -> tuple[int, list[StreamRow]]:
        """A shard starts: its epoch and its streams. What it was before can write no more."""
        epoch = self._change(lambda connection: fence.claim_shard(connection, shard))
        mine = {row.id for row, owner in self.owned() if owner == shard}
        return epoch, [row for row in self.store.streams() if row.id in mine]

    def owned(self) -> list[tuple[StreamRow, int]]:
        """All streams, each with its shard."""
        found = dict(self.store.rows("SELECT stream, shard FROM owners"))
        return [(row, found[row.id]) for row in self.store.streams() if row.id in found]

    def assign(self, name: str, shard: int) -> tuple[StreamRow, int] | None:
        """Give a stream to a shard: its row and new epoch; None where there is no such stream."""
        row = next((one for one in self.store.streams() if one.name == name), None)
        if row is None:
            return None
        return row, self._change(lambda c: fence.claim_stream(c, row.id, shard))

    # What shards write.

    def add_stream(
        self, shard: int, epoch: int, name: str, preset: str, frozen: bool
    ) -> tuple[StreamRow, int]:
        """Note a new stream of a shard, and its epoch."""
        most = self.settings.limits.streams

        def work(connection: sqlite3.Connection) -> tuple[StreamRow, int]:
            fence.check_shard(connection, shard, epoch)
            if len(self.store.streams()) >= most:
                raise Full(f"There are {most} streams already: remove one, or raise the limit.")
            found = connection.execute(
                "INSERT INTO streams(name, preset, frozen, created) VALUES (?, ?, ?, ?)",
                (name, preset, int(frozen), time.time()),
            )
            row = StreamRow(int(found.lastrowid or 0), name, preset, frozen)
            return row, fence.claim_stream(connection, row.id, shard)

        return self._change(work)

    def note(self, shard: int, epoch: int, claims: Mapping[int, int], rows: Sequence[Row]) -> int:
        """Write events and answers; how many were refused, as their stream is another's now."""

        def work(connection: sqlite3.Connection) -> int:
            fence.check_shard(connection, shard, epoch)
            held = fence.owners(connection)
            good = [
                (table, row)
                for table, row in rows
                if row[0] is None or (shard, claims.get(row[0])) == held.get(row[0])
            ]
            self.writer.write_rows(connection, good)
            self.writer.write_log(good)
            return len(rows) - len(good)

        refused = self._change(work)
        self.refused += refused
        return refused

    def keep(
        self, stream: int, epoch: int, data: bytes, facts: dict[str, Any], name: str | None
    ) -> SnapshotRow:
        """Write a state, if it comes from whoever holds the stream."""

        def check(connection: sqlite3.Connection) -> None:
            fence.check_stream(connection, stream, epoch)
            said = {"version": facts["version"], "learned": facts["learned"]}
            fence.note(connection, stream, "saved", epoch=epoch, **said)

        with self._lock:
            try:
                row = keep_snapshot(self.store, self._connection, stream, data, facts, name, check)
            except fence.Fenced:
                self.refused += 1
                raise
            keep_latest(self.store, self._connection, stream, self.settings.snapshots.keep)
        return row

    def set_frozen(self, stream: int, epoch: int, frozen: bool) -> None:
        """Note whether a stream is frozen."""

        def work(connection: sqlite3.Connection) -> None:
            fence.check_stream(connection, stream, epoch)
            connection.execute("UPDATE streams SET frozen = ? WHERE id = ?", (int(frozen), stream))

        self._change(work)

    def remove_stream(self, stream: int, epoch: int) -> None:
        """Forget a stream with everything of it."""
        self._change(lambda connection: fence.check_stream(connection, stream, epoch))
        self.store.remove_stream(stream)
        self._change(lambda c: c.execute("DELETE FROM owners WHERE stream = ?", (stream,)) and None)
        self.store.remove_orphans()

    def remove_snapshot(self, stream: int, epoch: int, row: SnapshotRow) -> None:
        """Forget one state."""
        self._change(lambda connection: fence.check_stream(connection, stream, epoch))
        self.store.remove_snapshot(stream, row)

    # What shards read.

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds."""
        return self.store.rows(query, values)

    def load(self, stream: int, file: str) -> bytes | None:
        """A state's file; None where there is none."""
        path: Path = self.store.place(stream) / file
        return path.read_bytes() if path.is_file() else None

    def close(self) -> None:
        """Let go of the folder."""
        self._connection.close()
        self.store.close()
