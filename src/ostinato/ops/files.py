"""The one way that a file is replaced: whole or not at all, and nothing left lying about."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from ostinato.errors import ConfigError, StateError

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: str | Path, content: bytes) -> None:
    """Replace a file by new content; on any failure the old one is as it was.

    A link is followed, and the file it leads to keeps its mode. What is neither a file nor
    nothing (a folder, a device, a pipe) is refused. A kill may leave a part beside the file; the
    next write of the same file removes it.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "numbers"
    >>> write_atomically(place, b"1 2 3")
    >>> place.read_bytes(), len(list(place.parent.iterdir()))
    (b'1 2 3', 1)
    """
    target = check_writable(path)
    try:
        _sweep(target)
        _replace(target, content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StateError(
            f"Cannot save to {path}: {reason}. Nothing was changed; make room or choose another "
            "place."
        ) from error


def check_writable(path: str | Path) -> Path:
    """The file that a path leads to, if one may be written there; a StateError otherwise."""
    try:
        target = Path(path).resolve()
        mode = target.stat().st_mode if target.exists() else None
        has_folder = target.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name too long
        raise StateError(f"Cannot save to {path}: {error}. Choose another file.") from None
    if mode is not None and not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a file (a device, a pipe or a socket)"
        raise StateError(f"Cannot save to {path}: it is {what}. Name a file.")
    if not has_folder:
        raise StateError(f"Cannot save to {path}: the folder {target.parent} does not exist.")
    if mode is not None and not os.access(target, os.W_OK):
        raise StateError(f"Cannot save to {path}: it is write-protected. Choose another file.")
    return target


def make_folder(path: Path) -> None:
    """Make a folder and those above it, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot make the folder {path}: {error.strerror}. Choose another with --out."
        ) from None


def _replace(target: Path, content: bytes) -> None:
    part, handle = _begin(target)
    try:
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        _write(handle, content)
        os.fsync(handle)
        if fcntl is None:
            os.close(handle)  # Windows moves closed files alone
            handle = -1
        os.replace(part, target)  # noqa: PTH105 (one name for tests to make fail)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        if handle >= 0:
            os.close(handle)
    _keep_name(target.parent)


def _begin(target: Path) -> tuple[Path, int]:
    """A new file beside the target, locked so that no sweep takes it for a dead one."""
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(part, flags, 0o666)
        if fcntl is None or _lock(handle):
            return part, handle
        os.close(handle)  # a sweep was quicker: it took the file before it was locked


def _lock(handle: int) -> bool:
    """Lock a file of our own; False where a sweep has removed it meanwhile."""
    with suppress(OSError):  # a file system without locks has no sweeps either
        fcntl.flock(handle, fcntl.LOCK_EX)  # waits for a sweep that is looking at it
    return os.fstat(handle).st_nlink > 0


def _write(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _sweep(target: Path) -> None:
    """Remove what killed writes of this file have left; what is being written is locked."""
    ours = re.compile(re.escape(f".{target.name}.") + r"[0-9a-z_]{8}\.tmp")
    for part in target.parent.iterdir():
        if ours.fullmatch(part.name) is not None:
            with suppress(OSError):
                _remove_dead(part)


def _remove_dead(part: Path) -> None:
    if fcntl is None:
        part.unlink()  # fails while someone writes it
        return
    handle = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()
    finally:
        os.close(handle)


def _keep_name(folder: Path) -> None:
    """Hand the new name to the disk as well, where a folder can be told to."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
