"""How the files of a run's folder are written, read, kept to one writer and sealed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ostinato.errors import DataError, Taken
from ostinato.ops.files import make_folder, write_atomically
from ostinato.running.chain import RecordChain, checksum
from ostinato.scoring.record import Record

try:
    import fcntl
except ImportError:  # Windows has no such lock; two writers there are the user's to avoid
    fcntl = None  # type: ignore[assignment]

_KEY = "sum"


def write_json(path: Path, value: Any) -> None:
    """Write atomically: readers see the old file or the new one, never half of it."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


def is_free(path: Path) -> bool:
    """Whether a run may start here; what a kill within `create` leaves does not count."""
    if not path.exists():
        return True
    remains = ("provenance.json", ".provenance.json.*.tmp", ".spec.json.*.tmp")
    return path.is_dir() and all(any(map(f.match, remains)) for f in path.iterdir())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or a DataError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); use another copy of the run.") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} should hold a JSON object; use another copy of the run.")
    return value


def lock(file: BinaryIO, path: Path) -> None:
    """Keep every other process from writing to the same run."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Taken(f"Another process is writing to {path}; wait for it.") from None


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside, no other process makes the file; who comes later waits, and then finds it.

    >>> import tempfile
    >>> with alone(Path(tempfile.mkdtemp()) / "prepared.safetensors"):
    ...     pass
    """
    make_folder(path.parent)
    with path.with_suffix(".lock").open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield


def read_records(path: Path, chain: RecordChain, limit: int | None) -> tuple[list[Record], int]:
    """A file's whole records (the first `limit`), read along a chain, and the bytes they take."""
    records: list[Record] = []
    size = 0
    if not path.is_file():
        return records, size
    with path.open("rb") as file:
        for line in file:
            if len(records) == limit or not line.endswith(b"\n"):
                break
            try:
                records.append(chain.read(line))
            except DataError as error:
                raise DataError(
                    f"{path}, line {len(records) + 1} {error}. Cut the file before this line "
                    "and resume."
                ) from None
            size += len(line)
    return records, size


def seal(run: str, values: dict[str, Any]) -> dict[str, Any]:
    """Values with a checksum beside them.

    >>> unseal("a", seal("a", {"mean": 1.5}))
    {'mean': 1.5}
    """
    return {**values, _KEY: checksum(run, _text(values))}


def unseal(run: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values, if their checksum is theirs; a DataError otherwise."""
    plain = {key: value for key, value in values.items() if key != _KEY}
    if values.get(_KEY) != checksum(run, _text(plain)):
        raise DataError("does not match its checksum: it was changed or damaged")
    return plain


def _text(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
