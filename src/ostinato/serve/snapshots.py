"""States on disk: written whole, the latest kept, found again after a crash."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ostinato.errors import StateError
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.serve.store import SnapshotRow, Store

SUFFIX = ".safetensors"


def write_snapshot(
    store: Store,
    connection: sqlite3.Connection,
    stream: int,
    state: State,
    header: dict[str, Any],
    name: str | None,
) -> SnapshotRow:
    """Write a state: its file first, then its row, so that a row always has a whole file."""
    place = store.place(stream)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = f"{header['stream']['version']}-{secrets.token_hex(4)}{SUFFIX}"
    save_state(place / file, state, header)
    size, made = (place / file).stat().st_size, time.time()
    kept = header["stream"]
    numbers = (kept["version"], kept["learned"], len(kept["domains"]), size, made)
    try:
        with connection:
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
            state, header = load_state(store.place(stream) / row.file)
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
