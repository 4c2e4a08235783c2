"""How the files of a run's folder are written, read and kept to one writer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ostinato.errors import ConfigError, DataError
from ostinato.ops.files import write_atomically

try:
    import fcntl
except ImportError:  # Windows has no such lock; two writers there are the user's to avoid
    fcntl = None  # type: ignore[assignment]


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
