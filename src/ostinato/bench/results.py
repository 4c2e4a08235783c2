"""A run's folder: what was asked, where it came from, what happened, and how to go on.

```
spec.json           the resolved spec and its hash
provenance.json     versions, weights, data, seeds, commit, device, date
records.jsonl       one line per batch, flushed as it is written
state.safetensors   the latest checkpoint
summary.json        written last: a run that has it is complete
```
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ostinato.bench.provenance import Provenance, spec_hash
from ostinato.bench.record import Record
from ostinato.bench.summary import Summary
from ostinato.errors import ConfigError, DataError, StateError
from ostinato.ops.files import write_atomically

if TYPE_CHECKING:
    from ostinato.ops.snapshot import State

try:
    import fcntl
except ImportError:  # Windows has no such lock; two writers there are the user's to avoid
    fcntl = None  # type: ignore[assignment]

FORMAT = "ostinato-run"
VERSION = 1


class ResumePoint(NamedTuple):
    """Where to go on: the next batch, and the state that precedes it (None: from scratch)."""

    next_index: int
    state: State | None


class RunFolder:
    """One run on disk. Only the process that appends may change it.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> run = RunFolder.create(root / "tent", {"method": "tent"})
    >>> run.append(Record(run=run.hash, index=0, domain="fog", images=1, correct=1, counted=1))
    >>> run.close()
    >>> len(RunFolder.open(root / "tent").records()), find_run(root, run.hash) == run.path
    (1, True)
    """

    _file: BinaryIO | None = None

    def __init__(self, path: Path, spec: dict[str, Any], digest: str) -> None:
        self.path = path
        self.spec = spec
        self.hash = digest
        self._next = 0

    @classmethod
    def create(
        cls, path: str | Path, spec: Mapping[str, Any], provenance: Provenance | None = None
    ) -> RunFolder:
        """Start a run in a folder that is new or empty."""
        path, digest = Path(path), spec_hash(spec)
        if not _is_free(path):
            raise ConfigError(_occupied(path, digest))
        provenance = provenance or Provenance.collect()
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "provenance.json", provenance.model_dump(mode="json"))
        # The spec comes last: a folder without one was never begun.
        head = {"format": FORMAT, "version": VERSION, "hash": digest, "spec": dict(spec)}
        write_json(path / "spec.json", head)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run to read it or to go on with it."""
        path = Path(path)
        if not (path / "spec.json").is_file():
            raise DataError(f"{path} is not a run's folder: it has no spec.json.")
        head = _read_json(path / "spec.json")
        if head.get("format") != FORMAT or not isinstance(head.get("spec"), dict):
            raise DataError(f"{path}/spec.json is not one that Ostinato wrote.")
        if int(head.get("version", 0)) > VERSION:
            raise DataError(
                f"{path} has run version {head['version']}, this Ostinato reads up to {VERSION}: "
                "update it."
            )
        digest = spec_hash(head["spec"])
        if digest != head.get("hash"):
            raise DataError(
                f"{path}/spec.json was edited: it says {head.get('hash')}, its settings hash to "
                f"{digest}. Run the changed settings in a folder of their own."
            )
        return cls(path, head["spec"], digest)

    @property
    def state_path(self) -> Path:
        """Where the checkpoint lies."""
        return self.path / "state.safetensors"

    @property
    def is_complete(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "summary.json").is_file()

    def provenance(self) -> Provenance:
        """Where the result came from."""
        return Provenance.parse(_read_json(self.path / "provenance.json"))

    def summary(self) -> Summary:
        """What a complete run came to."""
        if not self.is_complete:
            raise DataError(f"{self.path} has no summary: the run is not complete. Resume it.")
        return Summary.parse(_read_json(self.path / "summary.json"))

    def records(self) -> list[Record]:
        """Every whole record, in order. The half line that a kill may leave is dropped."""
        return self._scan()[0]

    def append(self, record: Record) -> None:
        """Write one record and hand it to the system, so that a kill cannot take it back."""
        if record.run != self.hash:
            raise ConfigError(f"A record of run {record.run!r} does not belong to {self.hash!r}.")
        file = self._writer()
        if record.index != self._next:
            raise ConfigError(f"{self.path} expects batch {self._next}, not {record.index}.")
        file.write(record.to_line().encode() + b"\n")
        file.flush()
        self._next += 1

    def checkpoint(self, state: State) -> None:
        """Save the state that follows the last record, atomically and never ahead of it."""
        from ostinato.ops.snapshot import save_state

        file = self._writer()
        os.fsync(file.fileno())
        save_state(self.state_path, state, {"run": self.hash, "next_index": self._next})

    def resume_point(self) -> ResumePoint:
        """Find where to go on, and drop the records that the checkpoint does not cover.

        The dropped batches run again; with the same state they give the same records.
        """
        self._writer()
        start = ResumePoint(0, None)
        if self.state_path.is_file():
            start = self._checkpointed()
        if start.next_index > self._next:  # records were lost, so the state has no past
            start = ResumePoint(0, None)
        self._cut(start.next_index)
        return start

    def complete(self, summary: Summary) -> None:
        """Mark the run as finished."""
        file = self._writer()
        if summary.batches != self._next:
            raise ConfigError(
                f"The summary covers {summary.batches} batches, {self.path} holds {self._next}."
            )
        os.fsync(file.fileno())
        self.close()
        write_json(self.path / "summary.json", summary.model_dump(mode="json"))

    def close(self) -> None:
        """Let go of the records' file, and of the lock on it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # a run that nobody holds any more must not keep its lock

    def _checkpointed(self) -> ResumePoint:
        from ostinato.ops.snapshot import load_state

        try:
            state, header = load_state(self.state_path)
        except StateError as error:
            raise DataError(f"{error} Or delete it, and the run starts over.") from None
        if header.get("run") != self.hash:
            raise DataError(f"{self.state_path} belongs to run {header.get('run')!r}; delete it.")
        return ResumePoint(int(header["next_index"]), state)

    def _writer(self) -> BinaryIO:
        """The records' file, opened for this process alone, cut to its last whole line."""
        if self.is_complete:
            raise ConfigError(f"{self.path} is complete; nothing can be added to it.")
        if self._file is None:
            file = (self.path / "records.jsonl").open("ab")
            try:
                _lock(file, self.path)
                records, size = self._scan()
                file.truncate(size)
            except BaseException:
                file.close()
                raise
            self._file, self._next = file, len(records)
        return self._file

    def _scan(self, limit: int | None = None) -> tuple[list[Record], int]:
        """The whole records (the first `limit`), and the bytes that they take."""
        path = self.path / "records.jsonl"
        records: list[Record] = []
        size = 0
        if not path.is_file():
            return records, size
        with path.open("rb") as file:
            for line in file:
                if len(records) == limit or not line.endswith(b"\n"):
                    break
                records.append(self._check(line, len(records)))
                size += len(line)
        return records, size

    def _check(self, line: bytes, place: int) -> Record:
        where = f"{self.path}/records.jsonl, line {place + 1}"
        try:
            record = Record.from_line(line)
        except DataError as error:
            raise DataError(
                f"{where}: {error}. Cut the file before this line and resume."
            ) from None
        if record.run != self.hash or record.index != place:
            raise DataError(
                f"{where} is batch {record.index} of run {record.run!r}, where batch {place} of "
                f"{self.hash!r} should stand. Cut the file before this line and resume."
            )
        return record

    def _cut(self, count: int) -> None:
        file = self._writer()
        file.truncate(self._scan(count)[1])
        self._next = count


def find_run(root: str | Path, digest: str) -> Path | None:
    """The folder under `root` that holds the run of this hash; complete ones come first."""
    root = Path(root)
    found = []
    for file in sorted(root.glob("*/spec.json")) if root.is_dir() else []:
        try:
            run = RunFolder.open(file.parent)
        except DataError:
            continue  # a foreign folder is none of our business
        if run.hash == digest:
            found.append(run)
    found.sort(key=lambda run: not run.is_complete)
    return found[0].path if found else None


def write_json(path: Path, value: Any) -> None:
    """Write atomically: readers see the old file or the new one, never half of it."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); use another copy of the run.") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} should hold a JSON object; use another copy of the run.")
    return value


def _is_free(path: Path) -> bool:
    """Whether a run may start here; what a kill within `create` leaves does not count."""
    if not path.exists():
        return True
    remains = ("provenance.json", ".provenance.json.*.tmp", ".spec.json.*.tmp")
    return path.is_dir() and all(any(map(f.match, remains)) for f in path.iterdir())


def _occupied(path: Path, digest: str) -> str:
    try:
        held = RunFolder.open(path)
    except DataError:
        return f"{path} exists and is not a run's folder; choose a new or empty one."
    if held.hash == digest:
        return f"{path} already holds this very run ({digest}); open it to resume it."
    return f"{path} holds another run ({held.hash}, not {digest}); choose another folder."


def _lock(file: BinaryIO, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"Another process is writing to {path}; wait for it.") from None
