"""What rows elsewhere report to, on the machine that asked for them: progress, and files.

An actor of its own, so that the rows of all nodes have one place to send to; it loads nothing
heavy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.ops.files import write_atomically

Files = list[tuple[str, bytes]]


class Desk:
    """Keeps what rows say of themselves, and writes files that they send.

    Args:
        out: the folder of the runs.

    >>> import tempfile
    >>> desk = Desk(tempfile.mkdtemp())
    >>> desk.begun("a", "tent", 0, 30)
    >>> desk.batches({"a": (5, "error 4.0 %")})
    >>> desk.look()["a"]["done"]
    5
    """

    def __init__(self, out: str) -> None:
        self.out = Path(out)
        self.rows: dict[str, dict[str, Any]] = {}

    def begun(self, row: str, title: str, done: int, total: int) -> None:
        """A row starts, or goes on, after so many batches."""
        known = self.rows.setdefault(row, {"starts": []})
        known["starts"].append(done)
        known |= {"title": title, "done": done, "total": total, "state": ""}

    def batches(self, said: dict[str, tuple[int, str]]) -> None:
        """How far rows have come."""
        for row, (done, state) in said.items():
            if row in self.rows:
                self.rows[row] |= {"done": done, "state": state}

    def look(self) -> dict[str, dict[str, Any]]:
        """All rows."""
        return self.rows

    # Files of runs that are made on another disk.

    def place(self, name: str, digest: str) -> str:
        """The name of a run's folder here: the one it was begun in, or one that is free."""
        begun = self._begun(digest)
        if begun is not None:
            return begun.name
        number, found = 2, name
        while (self.out / found / "spec.json").exists():
            found, number = f"{name}-{number}", number + 1
        return found

    def read(self, digest: str) -> tuple[str, Files] | None:
        """What there is of a run that was begun."""
        begun = self._begun(digest)
        if begun is None:
            return None
        files = sorted(path for path in begun.rglob("*") if path.is_file())
        return begun.name, [(str(path.relative_to(begun)), path.read_bytes()) for path in files]

    def write(self, name: str, files: Files) -> None:
        """Write files of a run, in the order in which they come."""
        for path, data in files:
            place = self.out / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, data)

    def remove(self, name: str, path: str) -> None:
        """Remove one file of a run."""
        (self.out / name / path).unlink(missing_ok=True)

    def _begun(self, digest: str) -> Path | None:
        for file in sorted(self.out.glob("*/spec.json")):
            if (file.parent / "summary.json").exists():
                continue
            if json.loads(file.read_text()).get("hash") == digest:
                return file.parent
        return None
