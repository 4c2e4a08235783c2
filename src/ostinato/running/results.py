"""A run's folder: what was asked, where it came from, what happened, and how to go on.

```
spec.json           the resolved spec and its hash
provenance.json     versions, weights, data, seeds, commit, device, date
records.jsonl       one line per batch, each with a checksum that hangs on the line before
state.safetensors   the latest checkpoint
diagnostics.json    what the method says of its state after the last batch, where it does
summary.json        written last: a run that has it is complete
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ostinato.errors import ConfigError, DataError, StateError
from ostinato.ops.files import make_folder
from ostinato.running._run_files import (
    is_free,
    lock,
    read_json,
    read_records,
    seal,
    unseal,
    write_json,
)
from ostinato.running.chain import RecordChain
from ostinato.running.provenance import Provenance, spec_hash
from ostinato.scoring.record import Record
from ostinato.scoring.summary import Summary

if TYPE_CHECKING:
    from ostinato.ops.snapshot import State

_FORMAT = "ostinato-run"
_VERSION = 2
"""Since 2 every record, the summary and the provenance carry a checksum."""


class ResumePoint(NamedTuple):
    """Where to go on: the next batch, and the state that precedes it (None: from scratch).

    >>> ResumePoint(3, None).next_index
    3
    """

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

    def __init__(
        self, path: Path, spec: dict[str, Any], digest: str, version: int = _VERSION
    ) -> None:
        self.path = path
        self.spec = spec
        self.hash = digest
        self.version = version
        self._chain = self.chain()
        self._size = 0

    @classmethod
    def create(
        cls, path: str | Path, spec: Mapping[str, Any], provenance: Provenance | None = None
    ) -> RunFolder:
        """Start a run in a folder that is new or empty."""
        path, digest = Path(path), spec_hash(spec)
        if not is_free(path):
            raise ConfigError(_occupied(path, digest))
        provenance = provenance or Provenance.collect()
        make_folder(path)
        content = seal(digest, provenance.model_dump(mode="json"))
        write_json(path / "provenance.json", content)
        # The spec comes last: a folder without one was never begun.
        head = {"format": _FORMAT, "version": _VERSION, "hash": digest, "spec": dict(spec)}
        write_json(path / "spec.json", head)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run to read it or to go on with it."""
        path = Path(path)
        if not (path / "spec.json").is_file():
            raise DataError(f"{path} is not a run's folder: it has no spec.json.")
        head = read_json(path / "spec.json")
        if head.get("format") != _FORMAT or not isinstance(head.get("spec"), dict):
            raise DataError(f"{path}/spec.json is not one that Ostinato wrote.")
        version = head.get("version")
        if type(version) is not int or version < 1:
            raise DataError(f"{path}/spec.json has no version that can be read ({version!r:.20}).")
        if version > _VERSION:
            raise DataError(
                f"{path} has run version {version}, this Ostinato reads up to {_VERSION}: "
                "update it."
            )
        try:
            digest = spec_hash(head["spec"])
        except ConfigError as error:
            raise DataError(f"{path}/spec.json cannot be hashed: {error}") from None
        if digest != head.get("hash"):
            raise DataError(
                f"{path}/spec.json was edited: it says {head.get('hash')}, its settings hash to "
                f"{digest}. Run the changed settings in a folder of their own."
            )
        return cls(path, head["spec"], digest, version)

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
        return Provenance.parse(self._sealed("provenance.json"))

    def summary(self) -> Summary:
        """What a complete run came to."""
        if not self.is_complete:
            raise DataError(f"{self.path} has no summary: the run is not complete. Resume it.")
        return Summary.parse(self._sealed("summary.json"))

    def records(self) -> list[Record]:
        """Every whole record, in order. The half line that a kill may leave is dropped."""
        records, size, _ = self._scan()
        if self.is_complete:
            wanted = self.summary().batches
            if len(records) != wanted or self._file_size() != size:
                raise DataError(
                    f"{self.path}/records.jsonl, line {len(records) + 1}: the run is complete "
                    f"with {wanted} batches, and {len(records)} whole lines are there. Use "
                    "another copy of the run, or run its spec anew."
                )
        return records

    def append(self, record: Record) -> None:
        """Write one record and hand it to the system, so that a kill cannot take it back."""
        if record.run != self.hash:
            raise ConfigError(f"A record of run {record.run!r} does not belong to {self.hash!r}.")
        file = self._writer()
        if record.index != self._chain.count:
            raise ConfigError(f"{self.path} expects batch {self._chain.count}, not {record.index}.")
        line = self._chain.line(record)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(self._size)
            raise StateError(
                f"Cannot write to {self.path}: {error.strerror}. The batches before this one are "
                f"kept: make room, then go on with ostinato run {self.path}"
            ) from error
        self._chain.read(line)
        self._size += len(line)

    def checkpoint(self, state: State) -> None:
        """Save the state that follows the last record, atomically and never ahead of it.

        A state that is no longer finite could not be loaded: the checkpoint before it stays.
        """
        from ostinato.ops.expect import check_finite
        from ostinato.ops.snapshot import save_state

        try:
            check_finite(state)
        except StateError:
            return
        self._hand_over()
        header = {"run": self.hash, "next_index": self._chain.count}
        save_state(self.state_path, state, header)

    def resume_point(self) -> ResumePoint:
        """Find where to go on, and drop the records that the checkpoint does not cover.

        The dropped batches run again; with the same state they give the same records.
        """
        self._writer()
        start = ResumePoint(0, None)
        if self.state_path.is_file():
            start = self._checkpointed()
        if start.next_index > self._chain.count:  # records were lost, so the state has no past
            start = ResumePoint(0, None)
        self._cut(start.next_index)
        return start

    def complete(self, summary: Summary) -> None:
        """Mark the run as finished."""
        self._writer()
        held = self._chain.count
        if summary.batches != held:
            raise ConfigError(
                f"The summary covers {summary.batches} batches, {self.path} holds {held}."
            )
        self._hand_over()
        self.close()
        content = summary.model_dump(mode="json")
        write_json(self.path / "summary.json", seal(self.hash, content))

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
        index = header.get("next_index")
        if type(index) is not int or index < 0:
            raise DataError(f"{self.state_path} does not say which batch it precedes; delete it.")
        return ResumePoint(index, state)

    def _sealed(self, name: str) -> dict[str, Any]:
        """A JSON file of the run, if it is as it was written."""
        values = read_json(self.path / name)
        if self.version < 2:
            return values
        try:
            return unseal(self.hash, values)
        except DataError as error:
            raise DataError(
                f"{self.path / name} {error}. Use another copy of the run, or run its spec anew."
            ) from None

    def chain(self) -> RecordChain:
        """What reads the records from the first line on."""
        return RecordChain(self.hash, sealed=self.version >= 2)

    def _file_size(self) -> int:
        path = self.path / "records.jsonl"
        return path.stat().st_size if path.is_file() else 0

    def _hand_over(self) -> None:
        """Hand the records to the disk."""
        try:
            os.fsync(self._writer().fileno())
        except OSError as error:
            raise StateError(f"Cannot write to {self.path}: {error.strerror}.") from error

    def _writer(self) -> BinaryIO:
        """The records' file, opened for this process alone, cut to its last whole line."""
        if self.is_complete:
            raise ConfigError(f"{self.path} is complete; nothing can be added to it.")
        if self._file is None:
            try:
                file = (self.path / "records.jsonl").open("ab")
            except OSError as error:
                raise StateError(f"Cannot write to {self.path}: {error.strerror}.") from None
            try:
                lock(file, self.path)
                _, size, chain = self._scan()
                file.truncate(size)
            except BaseException:
                file.close()
                raise
            self._file, self._chain, self._size = file, chain, size
        return self._file

    def _scan(self, limit: int | None = None) -> tuple[list[Record], int, RecordChain]:
        """The whole records (the first `limit`), the bytes they take, and the chain's end."""
        chain = self.chain()
        return *read_records(self.path / "records.jsonl", chain, limit), chain

    def _cut(self, count: int) -> None:
        file = self._writer()
        _, self._size, self._chain = self._scan(count)
        file.truncate(self._size)


def find_run(
    root: str | Path, digest: str, tell: Callable[[str], None] | None = None, begun: bool = False
) -> Path | None:
    """The folder under `root` that holds the run of this hash; complete (or `begun`) ones first.

    A folder that cannot be read is left out, and `tell` is told why.
    """
    root = Path(root)
    found = []
    for file in sorted(root.glob("*/spec.json")) if root.is_dir() else []:
        try:
            run = RunFolder.open(file.parent)
        except DataError as error:
            if tell is not None:
                tell(f"left out: {error}")
            continue
        if run.hash == digest:
            found.append(run)
    found.sort(key=lambda run: run.is_complete == begun)
    return found[0].path if found else None


def _occupied(path: Path, digest: str) -> str:
    try:
        held = RunFolder.open(path)
    except DataError:
        return f"{path} exists and is not a run's folder; choose a new or empty one."
    if held.hash == digest:
        return f"{path} already holds this very run ({digest}); open it to resume it."
    return f"{path} holds another run ({held.hash}, not {digest}); choose another folder."
