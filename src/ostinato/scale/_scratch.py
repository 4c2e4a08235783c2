"""A shard's folder for what is on its way; one that a kill left behind goes with the next start."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

PREFIX = "ostinato-shard-"
_LOCK = "lock"


class Scratch:
    """A folder that is this process's for as long as it lives.

    >>> scratch = Scratch()
    >>> scratch.folder.is_dir(), scratch.close(), scratch.folder.exists()
    (True, None, False)
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = (self.folder / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _remove_abandoned() -> None:
    """Remove folders of shards that are gone: a process that lives holds its lock."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        try:
            with path.open() as lock:
                if _free(lock):
                    shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:  # another user's, or gone meanwhile
            continue


def _free(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
