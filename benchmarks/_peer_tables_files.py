"""The folder of `peer_tables.py`: how it begins, what is packed of it, and what docs get."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from _peer_tables import DOCS, WEIGHTS

KEPT = ("spec.json", "provenance.json", "summary.json")
"""What is packed of a run."""


def set_up(folder: Path, root: Path, weights: Path) -> None:
    """The folder in which commands run, with links to images and weights."""
    for path, what in ((root / "imagenet-val", "images"), (weights, "weights")):
        if not path.exists():
            raise SystemExit(f"There are no {what} at {path}.")
    for link, target in ((folder / "data", root), (folder / WEIGHTS, weights)):
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.resolve() != target.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(target.resolve())
    for name in ("logs", "results", "runs"):
        (folder / name).mkdir(exist_ok=True)


def read_known(folder: Path) -> dict[str, Any]:
    """What earlier calls noted of each step."""
    file = folder / "steps.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return known


def complete_runs(folder: Path) -> list[Path]:
    """The folders of runs that have ended."""
    return sorted(file.parent for file in folder.glob("runs*/*/summary.json"))


def pack(folder: Path, archive: Path) -> int:
    """Put complete runs, results, logs and notes into one archive; how many runs."""
    runs = complete_runs(folder)
    files = [run / name for run in runs for name in KEPT]
    files += [run / "records.jsonl" for run in runs if run.parent.name == "runs-20"]
    files += [*folder.glob("logs/*.txt"), *folder.glob("results/*/*.*"), folder / "steps.json"]
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.part")
    packing = {".xz": "xz", ".bz2": "bz2", ".gz": "gz", ".tgz": "gz"}.get(archive.suffix, "")
    with tarfile.open(part, f"w:{packing}") as tar:  # type: ignore[call-overload]
        for file in files:
            if file.is_file():
                tar.add(file, str(file.relative_to(folder)))
    part.replace(archive)
    print(f"packed {len(runs)} runs: {archive}, {archive.stat().st_size:,} bytes", flush=True)
    return len(runs)


def unpack(archives: list[Path], folder: Path) -> None:
    """Take up what was packed; the later of two files with one name stays."""
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def publish(folder: Path, docs: Path) -> list[str]:
    """Copy results, in all their forms, to the names that they have in the docs."""
    made = []
    for source, name in DOCS.items():
        for file in sorted((folder / "results").glob(f"{source}.*")):
            shutil.copyfile(file, docs / f"{name}{file.suffix}")
            made.append(f"{name}{file.suffix}")
    return made
