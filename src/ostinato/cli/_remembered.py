"""Answers that follow from the installed files alone, kept so that asking again is immediate.

Listing the methods imports every one of them, and torch with them, which takes seconds; the list
changes only when a file does. What was printed is kept in the user's cache folder under a key made
of every file's path, size and time, and of the outside packages that register something.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from ostinato.errors import StateError
from ostinato.ops.files import write_atomically
from ostinato.registry import (
    CORRUPTIONS,
    DATASETS,
    DESCRIPTORS,
    DISCRIMINATORS,
    METHODS,
    STREAMS,
    TABLES,
)

Rows = list[list[str]]
_COLLECTIONS = (METHODS, DESCRIPTORS, DISCRIMINATORS, CORRUPTIONS, DATASETS, STREAMS, TABLES)


def remembered(name: str, make: Callable[[], Rows], folder: Path | None = None) -> Rows:
    """The rows that `make` gave when it was last asked, if no file has changed since.

    A cache that cannot be read or written is done without.

    Args:
        name: of the question.
        make: gives the answer.
        folder: where answers are kept; the user's cache folder unless given.
    """
    place = (folder or _folder()) / f"{name}-{_key()}.json"
    known = _read(place)
    if known is not None:
        return known
    rows = make()
    with contextlib.suppress(OSError, StateError):
        _write(place, rows, name)
    return rows


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ostinato"


def _key() -> str:
    """Which files and which outside packages there are."""
    total = hashlib.sha256()
    home = Path(__file__).parent
    for path in sorted(home.rglob("*.py")):
        facts = path.stat()
        total.update(f"{path}|{facts.st_size}|{facts.st_mtime_ns}\n".encode())
    for group in sorted({one.home for one in _COLLECTIONS if one.home is not None}):
        for point in sorted(entry_points(group=group), key=str):
            version = point.dist.version if point.dist is not None else ""
            total.update(f"{point}|{version}\n".encode())
    return total.hexdigest()[:16]


def _read(place: Path) -> Rows | None:
    try:
        rows = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    fine = isinstance(rows, list) and all(
        isinstance(row, list) and all(isinstance(text, str) for text in row) for row in rows
    )
    return rows if fine and rows else None


def _write(place: Path, rows: Rows, name: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, json.dumps(rows).encode())
    for old in place.parent.glob(f"{name}-*.json"):  # of files as they were before
        if old != place:
            old.unlink(missing_ok=True)
