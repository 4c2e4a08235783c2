"""The index of streams, snapshots, answers and events: SQLite, write-ahead.

States themselves are safetensors files beside it (`snapshots.py`). Reading and small changes that
a caller waits for are here; what is written behind the answers goes through `writer.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.errors import ConfigError, OstinatoError

if TYPE_CHECKING:
    from ostinato.ops.snapshot import State

try:
    import fcntl
except ImportError:  # Windows, where nobody takes the folder twice by accident
    fcntl = None  # type: ignore[assignment]

DATABASE = "index.db"
_TABLES = """
CREATE TABLE IF NOT EXISTS streams(
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, preset TEXT NOT NULL,
    frozen INTEGER NOT NULL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots(
    id INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL, file TEXT NOT NULL, name TEXT,
    version TEXT NOT NULL, learned INTEGER NOT NULL, domains INTEGER NOT NULL,
    bytes INTEGER NOT NULL, made REAL NOT NULL, UNIQUE(stream, name));
CREATE TABLE IF NOT EXISTS answers(
    id INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL, sequence INTEGER NOT NULL,
    digest TEXT NOT NULL, body TEXT NOT NULL, UNIQUE(stream, sequence));
CREATE TABLE IF NOT EXISTS events(
    id INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER, at REAL NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of ON events(stream, id);
CREATE TABLE IF NOT EXISTS keys(
    name TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, roles TEXT NOT NULL, made REAL NOT NULL);
"""


class StorageError(OstinatoError):
    """The folder of states cannot be written at present."""


@dataclass(frozen=True)
class StreamRow:
    """A stream as it is kept."""

    id: int
    name: str
    preset: str
    frozen: bool


@dataclass(frozen=True)
class SnapshotRow:
    """A state on disk as it is kept."""

    id: int
    file: str
    name: str | None
    version: str
    learned: int
    domains: int
    bytes: int
    made: float


_SNAPSHOT = "id, file, name, version, learned, domains, bytes, made"


class _Mine:
    """A thread's own connection, closed when the thread ends: threads of requests come and go."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class Store:
    """The index in a folder.

    Args:
        folder: made if it is not there, for its owner alone.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()))
    >>> store.add_stream("gate", "robust", frozen=False).id, store.streams()[0].name
    (1, 'gate')
    >>> store.close()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._local = threading.local()
        self._open: weakref.WeakSet[_Mine] = weakref.WeakSet()
        self._opening = threading.Lock()
        with self.changing() as connection:
            connection.executescript(_TABLES)
        self._lock: int | None = None

    def take(self) -> None:
        """Be the one server of this folder, or say that there is another."""
        if fcntl is None:
            return
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ConfigError(
                f"Another server uses {self.folder}: stop it, or choose another data folder."
            ) from None
        self._lock = handle

    def close(self) -> None:
        """Let go of the folder."""
        with self._opening:
            for mine in self._open:
                mine.connection.close()
            self._open.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def place(self, stream: int) -> Path:
        """The folder of a stream's states; named by number, never by what a request says."""
        return self.folder / "streams" / str(stream)

    def load(self, stream: int, file: str) -> tuple[State, dict[str, Any]]:
        """A state and its header; a StateError where the file is not whole."""
        from ostinato.ops.snapshot import load_state

        return load_state(self.place(stream) / file)

    @property
    def incoming(self) -> Path:
        """The folder of states on their way in or out; what a kill leaves there is nobody's."""
        return self.folder / "incoming"

    def connect(self) -> sqlite3.Connection:
        """A new connection, which the caller closes."""
        path = self.folder / DATABASE
        connection = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA busy_timeout=10000")
        except BaseException:
            connection.close()
            raise
        return connection

    def _mine(self) -> sqlite3.Connection:
        known: _Mine | None = getattr(self._local, "mine", None)
        if known is None:
            known = self._local.mine = _Mine(self.connect())
            with self._opening:
                self._open.add(known)
        return known.connection

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that the caller waits for; a StorageError where it cannot be."""
        try:
            connection = self._mine()
            with connection:
                yield connection
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            self._local.mine = None
            raise StorageError(f"The data folder cannot be written ({error}).") from error

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds."""
        try:
            return list(self._mine().execute(query, values))
        except sqlite3.Error as error:
            self._local.mine = None
            raise StorageError(f"The data folder cannot be read ({error}).") from error

    # Streams.

    def add_stream(self, name: str, preset: str, *, frozen: bool) -> StreamRow:
        """Note a new stream."""
        with self.changing() as connection:
            found = connection.execute(
                "INSERT INTO streams(name, preset, frozen, created) VALUES (?, ?, ?, ?)",
                (name, preset, int(frozen), time.time()),
            )
            number = int(found.lastrowid or 0)
        return StreamRow(number, name, preset, frozen)

    def streams(self) -> list[StreamRow]:
        """All streams, oldest first."""
        found = self.rows("SELECT id, name, preset, frozen FROM streams ORDER BY id")
        return [StreamRow(i, name, preset, bool(frozen)) for i, name, preset, frozen in found]

    def set_frozen(self, stream: int, frozen: bool) -> None:
        """Note whether a stream is frozen."""
        with self.changing() as connection:
            connection.execute("UPDATE streams SET frozen = ? WHERE id = ?", (int(frozen), stream))

    def remove_stream(self, stream: int) -> None:
        """Forget a stream and everything noted of it."""
        with self.changing() as connection:
            for table in ("snapshots", "answers", "events"):
                connection.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
            connection.execute("DELETE FROM streams WHERE id = ?", (stream,))

    def remove_orphans(self) -> None:
        """Forget what was still written of streams after they were removed, or half taken in."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        known = {row.id for row in self.streams()}
        with self.changing() as connection:
            for table in ("snapshots", "answers", "events"):
                connection.execute(
                    f"DELETE FROM {table} WHERE stream IS NOT NULL "
                    "AND stream NOT IN (SELECT id FROM streams)"
                )
        places = self.folder / "streams"
        for place in places.iterdir() if places.is_dir() else ():
            if place.name not in {str(one) for one in known}:
                shutil.rmtree(place, ignore_errors=True)

    # Snapshots.

    def snapshots(self, stream: int) -> list[SnapshotRow]:
        """A stream's states, newest first."""
        query = f"SELECT {_SNAPSHOT} FROM snapshots WHERE stream = ? ORDER BY id DESC"
        return [SnapshotRow(*row) for row in self.rows(query, (stream,))]

    def remove_snapshot(self, stream: int, row: SnapshotRow) -> None:
        """Forget one state, then remove its file."""
        with self.changing() as connection:
            connection.execute("DELETE FROM snapshots WHERE id = ?", (row.id,))
        (self.place(stream) / row.file).unlink(missing_ok=True)

    # Answers and events.

    def answer(self, stream: int, sequence: int) -> tuple[str, dict[str, Any]] | None:
        """The digest and the answer recorded for a sequence number."""
        query = "SELECT digest, body FROM answers WHERE stream = ? AND sequence = ?"
        for digest, body in self.rows(query, (stream, sequence)):
            return digest, json.loads(body)
        return None

    def highest_answered(self, stream: int) -> int:
        """The highest sequence number that an answer is recorded for; -1 where there is none."""
        query = "SELECT max(sequence) FROM answers WHERE stream = ?"
        found = self.rows(query, (stream,))[0][0]
        return -1 if found is None else int(found)

    def events(
        self,
        stream: int | None,
        *,
        after: int = 0,
        most: int = 1000,
        kind: str | None = None,
        latest: bool = False,
    ) -> list[tuple[int, int | None, float, str, dict[str, Any]]]:
        """Events after an id, oldest first: (id, stream, time, kind, body).

        Where there are too many, the oldest of them; with `latest`, the newest.
        """
        query = "SELECT id, stream, at, kind, body FROM events WHERE id > ?"
        values: list[Any] = [after]
        if stream is not None:
            query, values = query + " AND stream = ?", [*values, stream]
        if kind is not None:
            query, values = query + " AND kind = ?", [*values, kind]
        order = " ORDER BY id DESC LIMIT ?" if latest else " ORDER BY id LIMIT ?"
        found = sorted(self.rows(query + order, [*values, most]))
        return [(i, s, at, name, json.loads(body)) for i, s, at, name, body in found]
