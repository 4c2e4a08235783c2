"""States on disk: written whole, the latest kept, found again after a crash."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ostinato.errors import StateError
from ostinato.ops.files import write_atomically
from ostinato.ops.snapshot import State, encode_state
from ostinato.serve.store import SnapshotRow, Store

_SUFFIX = ".safetensors"


def write_snapshot(
    store: Store,
    connection: sqlite3.Connection,
    stream: int,
    state: State,
    header: dict[str, Any],
    name: str | None,
) -> SnapshotRow:
    """Write a state."""
    data = encode_state(state, header)
    return keep_snapshot(store, connection, stream, data, header["stream"], name)


def keep_snapshot(
    store: Store,
    connection: sqlite3.Connection,
    stream: int,
    data: bytes,
    facts: dict[str, Any],
    name: str | None,
    check: Callable[[sqlite3.Connection], None] | None = None,
) -> SnapshotRow:
    """Write a state's bytes: its file first, then its row, so that a row always has a whole file.

    Args:
        store: the index.
        connection: of the writer.
        stream: whose state it is.
        data: the file's content.
        facts: of the stream, as its header has them.
        name: of a checkpoint.
        check: called within the transaction; where it raises, nothing is kept.
    """
    place = store.place(stream)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = f"{facts['version']}-{secrets.token_hex(4)}{_SUFFIX}"
    write_atomically(place / file, data)
    made = time.time()
    numbers = (facts["version"], facts["learned"], len(facts["domains"]), len(data), made)
    try:
        with connection:
            if check is not None:
                check(connection)
            if name is not None:
                connection.execute(
                    "UPDATE snapshots SET name = NULL WHERE stream = ? AND name = ?", (stream, name)
                )
            found = connection.execute(
                "INSERT INTO snapshots(stream, file, name, version, learned, domains, bytes, made) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (stream, file, name, *numbers),
            )
    except BaseException:
        with suppress(OSError):
            (place / file).unlink()
        raise
    return SnapshotRow(int(found.lastrowid or 0), file, name, *numbers)


def keep_latest(store: Store, connection: sqlite3.Connection, stream: int, keep: int) -> None:
    """Remove all but the latest unnamed states: rows first, so that no row lacks its file."""
    old = list(
        connection.execute(
            "SELECT id, file FROM snapshots WHERE stream = ? AND name IS NULL "
            "ORDER BY id DESC LIMIT -1 OFFSET ?",
            (stream, keep),
        )
    )
    if not old:
        return
    with connection:
        connection.executemany("DELETE FROM snapshots WHERE id = ?", [(row[0],) for row in old])
    for _, file in old:
        with suppress(OSError):
            (store.place(stream) / file).unlink()


def whole_states(
    store: Store, stream: int
) -> Iterator[tuple[SnapshotRow, State | None, dict[str, Any], str]]:
    """A stream's states, newest first; a damaged one comes without a state, and says why."""
    for row in store.snapshots(stream):
        try:
            state, header = store.load(stream, row.file)
            yield row, state, header, ""
        except StateError as error:
            yield row, None, {}, str(error)


def sweep(store: Store, stream: int) -> int:
    """Remove files that no row names: a kill came between file and row."""
    place, known = store.place(stream), {row.file for row in store.snapshots(stream)}
    count = 0
    for path in place.iterdir() if place.is_dir() else ():
        if path.is_file() and path.name not in known:
            path.unlink(missing_ok=True)
            count += 1
    return count
