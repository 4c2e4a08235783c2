"""A file system of a few megabytes, for a disk that is really full; only root can make one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, megabytes: int = 3) -> Iterator[None]:
    """The folder is a disk of its own inside; skips where none can be made."""
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    size = f"size={megabytes}m"
    made = mount and umount and _run(mount, "-t", "tmpfs", "-o", size, "tmpfs", str(place))
    if not made:
        pytest.skip("no small disk can be made here")
    try:
        yield
    finally:
        _run(str(umount), "--lazy", str(place))


def _run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """Not one byte is free on the disk inside."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()
