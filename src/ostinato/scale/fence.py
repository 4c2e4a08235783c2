"""Who may write a stream: epochs, kept in the index beside what they guard.

Every start of a shard and every move of a stream takes the next epoch. Whoever writes names the
epoch under which it holds the stream; the check is part of the transaction that writes, so that a
shard which was given up and lives on somewhere can change nothing.
"""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

from ostinato.errors import OstinatoError

TABLES = """
CREATE TABLE IF NOT EXISTS epochs(
    epoch INTEGER PRIMARY KEY AUTOINCREMENT, shard INTEGER NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS shards(shard INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS owners(
    stream INTEGER PRIMARY KEY, shard INTEGER NOT NULL, epoch INTEGER NOT NULL);
"""


class Fenced(OstinatoError):
    """Another one writes here by now."""


class StaleShard(Fenced):
    """A newer start of the same shard has taken its streams."""


class StaleStream(Fenced):
    """The stream belongs to another shard, or to a newer start of this one."""


def _next_epoch(connection: sqlite3.Connection, shard: int) -> int:
    """A number that nobody has had."""
    found = connection.execute("INSERT INTO epochs(shard, at) VALUES (?, ?)", (shard, time.time()))
    return int(found.lastrowid or 0)


def claim_shard(connection: sqlite3.Connection, shard: int) -> int:
    """A shard starts: it and its streams get a new epoch, and every earlier one is void."""
    epoch = _next_epoch(connection, shard)
    connection.execute("INSERT OR REPLACE INTO shards(shard, epoch) VALUES (?, ?)", (shard, epoch))
    owned = connection.execute("SELECT stream FROM owners WHERE shard = ?", (shard,)).fetchall()
    connection.execute("UPDATE owners SET epoch = ? WHERE shard = ?", (epoch, shard))
    for (stream,) in owned:
        note(connection, stream, "claimed", epoch=epoch, shard=shard)
    return epoch


def claim_stream(connection: sqlite3.Connection, stream: int, shard: int) -> int:
    """A stream goes to a shard, whoever has it now."""
    epoch = _next_epoch(connection, shard)
    connection.execute(
        "INSERT OR REPLACE INTO owners(stream, shard, epoch) VALUES (?, ?, ?)",
        (stream, shard, epoch),
    )
    note(connection, stream, "claimed", epoch=epoch, shard=shard)
    return epoch


def check_shard(connection: sqlite3.Connection, shard: int, epoch: int) -> None:
    """Refuse what an earlier start of a shard wants.

    An update that changes nothing, since only a change begins the transaction.
    """
    done = connection.execute(
        "UPDATE shards SET epoch = epoch WHERE shard = ? AND epoch = ?", (shard, epoch)
    )
    if done.rowcount != 1:
        raise StaleShard(f"Shard {shard} has started anew since epoch {epoch}.")


def check_stream(connection: sqlite3.Connection, stream: int, epoch: int) -> None:
    """Refuse to write a stream under any epoch but its present one."""
    done = connection.execute(
        "UPDATE owners SET epoch = epoch WHERE stream = ? AND epoch = ?", (stream, epoch)
    )
    if done.rowcount != 1:
        raise StaleStream(f"Stream {stream} is not held under epoch {epoch} any more.")


def owners(connection: sqlite3.Connection) -> dict[int, tuple[int, int]]:
    """Shard and epoch of every stream."""
    found = connection.execute("SELECT stream, shard, epoch FROM owners")
    return {stream: (shard, epoch) for stream, shard, epoch in found}


def note(connection: sqlite3.Connection, stream: int, kind: str, **body: Any) -> None:
    """An event in the same transaction."""
    connection.execute(
        "INSERT INTO events(stream, at, kind, body) VALUES (?, ?, ?, ?)",
        (stream, time.time(), kind, json.dumps(body, sort_keys=True)),
    )
