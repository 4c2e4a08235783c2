"""A shard's index and writer: the same as a server's own, with the keeper behind them."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ostinato.errors import StateError
from ostinato.ops.snapshot import State, encode_state, load_state
from ostinato.scale._scratch import Scratch
from ostinato.scale.fence import StaleShard, StaleStream
from ostinato.serve.settings import Settings
from ostinato.serve.store import SnapshotRow, StorageError, Store, StreamRow
from ostinato.serve.writer import Row, SnapshotJob, Writer

Ask = Callable[..., Any]
"""Calls a method of the keeper by its name, and waits for what it says."""


class RemoteStore(Store):
    """An index that lies elsewhere.

    Args:
        ask: how to reach it.
        shard: who asks.

    Attributes:
        epoch: of this start of the shard.
        claims: under which epoch every stream is held, by its id.
    """

    def __init__(self, ask: Ask, shard: int) -> None:
        self.ask, self.shard = ask, shard
        self._kept = Scratch()
        self.folder = self._kept.folder
        self.epoch, self._mine_at_first = ask("begin", shard)
        self.claims = {row.id: self.epoch for row in self._mine_at_first}

    def take(self) -> None:
        """The keeper has taken it."""

    def remove_orphans(self) -> None:
        """The keeper has done so."""

    def close(self) -> None:
        """Nothing is open here; what was on its way goes."""
        self._kept.close()

    def connect(self) -> sqlite3.Connection:
        """Stands for a connection, which only the keeper has."""
        return sqlite3.connect(":memory:", check_same_thread=False)

    def changing(self) -> NoReturn:
        """Changes are the keeper's to make: each has a method of its own here."""
        raise StorageError("A shard changes its index through the keeper alone.")

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds."""
        found: list[tuple[Any, ...]] = self.ask("rows", query, list(values))
        return found

    def load(self, stream: int, file: str) -> tuple[State, dict[str, Any]]:
        """A state and its header."""
        data = self.ask("load", stream, file)
        if data is None:
            raise StateError(f"There is no state file {file}.")
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".safetensors") as kept:
            kept.write(data)
            kept.flush()
            return load_state(kept.name)

    def streams(self) -> list[StreamRow]:
        """Those that were this shard's when it started."""
        return list(self._mine_at_first)

    def add_stream(self, name: str, preset: str, *, frozen: bool) -> StreamRow:
        """Note a new stream."""
        row, epoch = self.ask("add_stream", self.shard, self.epoch, name, preset, frozen)
        self.claims[row.id] = epoch
        found: StreamRow = row
        return found

    def set_frozen(self, stream: int, frozen: bool) -> None:
        """Note whether a stream is frozen."""
        self.ask("set_frozen", stream, self._claim(stream), frozen)

    def remove_stream(self, stream: int) -> None:
        """Forget a stream and everything noted of it."""
        self.ask("remove_stream", stream, self._claim(stream))
        self.claims.pop(stream, None)

    def remove_snapshot(self, stream: int, row: SnapshotRow) -> None:
        """Forget one state."""
        self.ask("remove_snapshot", stream, self._claim(stream), row)

    def keep(self, job: SnapshotJob) -> SnapshotRow:
        """Write a state."""
        data, facts = encode_state(job.state, job.header), job.header["stream"]
        row = self.ask("keep", job.stream, self._claim(job.stream), data, facts, job.name)
        found: SnapshotRow = row
        return found

    def note(self, rows: list[Row]) -> None:
        """Write events and answers."""
        self.ask("note", self.shard, self.epoch, dict(self.claims), rows)

    def _claim(self, stream: int) -> int:
        found: int = self.claims.get(stream, -1)
        return found


class ShardWriter(Writer):
    """The thread that sends what has to be written.

    Args:
        store: the index elsewhere.
        settings: of the server.
        stale: called where a newer start of this shard has taken over.
        lost: called with a stream's id that is another shard's by now.
    """

    def __init__(
        self,
        store: RemoteStore,
        settings: Settings,
        stale: Callable[[], None],
        lost: Callable[[int], None],
    ) -> None:
        super().__init__(
            store,
            keep=settings.snapshots.keep,
            events=settings.events,
            answers=settings.answers,
        )
        self.remote, self.stale, self.lost = store, stale, lost

    def write_rows(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        """Send events and answers."""
        try:
            self.remote.note(rows)
        except StaleShard:
            self.stale()
        except StorageError as error:
            raise OSError(str(error)) from None  # to be tried again, like a disk that is full

    def write_job(self, connection: sqlite3.Connection, job: SnapshotJob) -> None:
        """Send a state; where the stream is another's, that one's state counts."""
        if not job.done.set_running_or_notify_cancel():
            return
        try:
            row = self.remote.keep(job)
        except StaleStream as error:
            job.done.set_exception(StateError(str(error)))
            self.lost(job.stream)
            return
        except (StorageError, StateError) as error:
            job.done.set_exception(error)
            raise OSError(str(error)) from None
        if job.finished is not None:
            job.finished(row, job.began)
        job.done.set_result(row)
