"""The demo's folder: where it may lie, what of an earlier demo can be gone on with."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ostinato import __version__
from ostinato.demo._plan import Plan, Row
from ostinato.errors import ConfigError, DataError, OstinatoError
from ostinato.running.chain import RecordChain
from ostinato.running.results import RunFolder
from ostinato.running.spec import Spec
from ostinato.scoring.record import Record
from ostinato.scoring.summary import Summary

HOME = "ostinato-demo"
_MARKER = "demo.json"
ASKED = "asked.json"


@dataclass
class Job:
    """One run of the demo and its own folder; what its records say so far."""

    row: Row
    spec: Spec
    home: Path
    batches: int
    records: list[Record] = field(default_factory=list)
    _read: int = 0
    _chain: RecordChain | None = None

    @property
    def error(self) -> float | None:
        """Error in % over the images so far."""
        seen = sum(record.counted for record in self.records)
        right = sum(record.correct for record in self.records)
        return 100 * (seen - right) / seen if seen else None

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete."""
        return any(self.home.glob("*/summary.json"))

    def folder(self) -> RunFolder:
        """The complete run."""
        return RunFolder.open(next(self.home.glob("*/summary.json")).parent)

    def summary(self) -> Summary:
        """What the complete run came to."""
        return self.folder().summary()

    def look(self) -> None:
        """Take in the records written since the last look.

        A run that goes on after a kill first drops what no checkpoint covers, so the file may
        be shorter than it was, or hold other bytes there: then everything is read again.
        """
        for path in self.home.glob("*/records.jsonl"):
            try:
                self._take(path)
            except (DataError, OSError):
                self._forget()

    def _take(self, path: Path) -> None:
        if path.stat().st_size < self._read:
            self._forget()
        if self._chain is None:
            self._chain = RunFolder.open(path.parent).chain()
        with path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            self.records.append(self._chain.read(line))
            self._read += len(line)

    def _forget(self) -> None:
        self.records, self._read, self._chain = [], 0, None


def choose_home(out: Path | None) -> tuple[Path, str | None]:
    """The demo's folder, ready to be written to, and why it is not the usual one."""
    home = out or Path(HOME)
    try:
        _claim(home)
        return home, None
    except OSError as error:
        reason = error.strerror or str(error)
        if out is not None:
            raise ConfigError(
                f"Cannot write to {out} ({reason}). Choose another folder with --out."
            ) from None
    try:
        other = Path(tempfile.mkdtemp(prefix=f"{HOME}-"))
        _claim(other)
    except OSError:
        raise ConfigError(
            f"Cannot write to {home} ({reason}), nor to a temporary folder. "
            "Choose a folder with --out."
        ) from None
    return other, f"Cannot write to {home} ({reason}); using {other}."


def _claim(home: Path) -> None:
    """Make the folder and mark it; one that holds something else stays as it is."""
    home.mkdir(parents=True, exist_ok=True)
    marker = home / _MARKER
    if not _is_ours(marker) and any(home.iterdir()):
        raise ConfigError(
            f"{home} holds other files. Choose a new or empty folder with --out, "
            "or one of an earlier demo."
        )
    # Written each time: this shows at once whether the folder can be written to.
    text = json.dumps({"made by": "ostinato demo", "version": __version__}) + "\n"
    marker.write_text(text, encoding="utf-8")


def _is_ours(marker: Path) -> bool:
    value = _read(marker)
    return isinstance(value, dict) and value.get("made by") == "ostinato demo"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def prepare(plan: Plan, home: Path) -> tuple[list[Job], bool]:
    """The plan's jobs, and whether an earlier demo's runs go on.

    A demo that was seen to its end starts anew. So does a run that is damaged, or that another
    version or plan left there.
    """
    jobs = [
        Job(row, spec, home / "runs" / _name(row, spec, plan), plan.batches)
        for row, spec in plan.specs()
    ]
    page = home / plan.page
    seen = page.exists() and all(job.is_finished for job in jobs)
    page.unlink(missing_ok=True)
    for job in jobs:
        if job.home.exists() and (seen or not _can_go_on(job)):
            shutil.rmtree(job.home)
    begun = any(any(job.home.glob("*/spec.json")) for job in jobs)
    for job in jobs:
        job.home.mkdir(parents=True, exist_ok=True)
        (job.home / ASKED).write_text(_asked(job.spec), encoding="utf-8")
    return jobs, begun


def _name(row: Row, spec: Spec, plan: Plan) -> str:
    return f"{row.title.lower().replace(' ', '-')}-{spec.seed}-{plan.images}"


def _asked(spec: Spec) -> str:
    value = {"version": __version__, "spec": spec.stored()}
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _can_go_on(job: Job) -> bool:
    from ostinato.ops.snapshot import load_state

    if _read(job.home / ASKED) != json.loads(_asked(job.spec)):
        return False
    try:
        for path in job.home.glob("*/provenance.json"):
            run = RunFolder.open(path.parent)
            run.provenance()
            records = run.records()
            if run.is_complete and run.summary().batches != len(records):
                return False
            if run.state_path.is_file():
                load_state(run.state_path)
    except OstinatoError:
        return False
    return True
