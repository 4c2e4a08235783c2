"""How the files of a run's folder are written, read, kept to one writer and sealed.

Every line of records hangs on the one before it by its checksum. That is no signature: it shows
damage and careless edits, not the work of someone who computes it anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ostinato.errors import ConfigError, DataError
from ostinato.ops.files import write_atomically
from ostinato.scoring.record import Record

try:
    import fcntl
except ImportError:  # Windows has no such lock; two writers there are the user's to avoid
    fcntl = None  # type: ignore[assignment]

_KEY = "sum"
_SEAL = re.compile(rb',"sum":"([0-9a-f]{16})"\}\Z')


class Taken(ConfigError):
    """Another process is writing to the run.

    >>> isinstance(Taken("Another process writes to runs/tent."), ConfigError)
    True
    """


def write_json(path: Path, value: Any) -> None:
    """Write atomically: readers see the old file or the new one, never half of it."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


def make_folder(path: Path) -> None:
    """Make a folder and those above it, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot make the folder {path}: {error.strerror}. Choose another with --out."
        ) from None


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


def checksum(before: str, text: bytes) -> str:
    """Of a text that follows another checksum.

    >>> checksum("a", b"x") != checksum("b", b"x")
    True
    """
    return hashlib.sha256(before.encode() + b"\n" + text).hexdigest()[:16]


class RecordChain:
    """Turns records into lines and back, in order; each line's checksum covers all before it.

    Args:
        run: the run's hash, which the first line hangs on.
        sealed: whether lines carry checksums; those of runs of version 1 do not.

    >>> record = Record(run="a", index=0, domain="fog", images=1, correct=1, counted=1)
    >>> line = RecordChain("a").line(record)
    >>> RecordChain("a").read(line) == record
    True
    >>> RecordChain("b").read(line)
    Traceback (most recent call last):
        ...
    ostinato.errors.DataError: does not follow from the line before it: ...
    """

    def __init__(self, run: str, sealed: bool = True) -> None:
        self.run, self.sealed = run, sealed
        self.last = run
        self.count = 0

    def line(self, record: Record) -> bytes:
        """The record as the next line; the chain itself stays where it is until `read`."""
        text = record.to_line().encode()
        if self.sealed:
            mark = checksum(self.last, text)
            text = text[:-1] + f',"{_KEY}":"{mark}"}}'.encode()
        return text + b"\n"

    def read(self, line: bytes) -> Record:
        """The next line's record; one that does not belong there is a DataError."""
        text = line.removesuffix(b"\n")
        last = self.last
        if self.sealed:
            text, last = self._unseal(text)
        record = Record.from_line(text)
        if record.run != self.run or record.index != self.count:
            raise DataError(
                f"is batch {record.index} of run {record.run!r}, where batch {self.count} of "
                f"{self.run!r} should stand"
            )
        self.last = last
        self.count += 1
        return record

    def _unseal(self, text: bytes) -> tuple[bytes, str]:
        found = _SEAL.search(text)
        if found is None:
            raise DataError("carries no checksum: it is damaged, or not one that Ostinato wrote")
        plain, mark = text[: found.start()] + b"}", found.group(1).decode()
        if checksum(self.last, plain) != mark:
            raise DataError(
                "does not follow from the line before it: one of them was changed, removed or "
                "written twice"
            )
        return plain, mark


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
