"""Starts the process of a soak, kills it now and then, starts it again, and shows how it goes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from ostinato.errors import OstinatoError, StateError
from ostinato.soak import _log as log
from ostinato.soak.plan import LOCK, LOG, Plan

_WAIT = 0.02
"""Seconds between looks at the log."""
SHOWN = 20.0
"""Seconds between lines of progress."""
_SAID = "errors.txt"
"""The file that gets what the process says."""
_ENDLESS = 1_000_000_000
"""A number of batches that no soak reaches, where only time ends it."""


class Child(Protocol):
    """A process, as `subprocess` has them."""

    returncode: int | Any

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""

    def wait(self) -> int:
        """Wait until it has ended."""


Launch = Callable[[Path, int], Child]
"""Starts the process that goes on with a folder until a position."""


def soak(
    folder: Path,
    plan: Plan,
    *,
    batches: int | None = None,
    seconds: float | None = None,
    kills: int = 0,
    stop: Event | None = None,
    launch: Launch | None = None,
) -> None:
    """Run until so many batches are done in all, so many seconds have passed or `stop` is set.

    `kills` are spread over the batches; where time alone ends the soak, one comes every 1,000.
    `launch` starts the process, in place of a new interpreter.
    """
    stop = stop or Event()
    end = batches if batches is not None else _ENDLESS
    deadline = None if seconds is None else time.monotonic() + seconds
    with _alone(folder):
        targets = kill_points(plan, batches, kills)
        while done(folder) < end and not (_late(deadline) or stop.is_set()):
            coming = next((point for point in targets if point > done(folder)), None)
            child = (launch or _start)(folder, end)
            _life(folder, child, coming, lambda: _late(deadline) or stop.is_set())


def kill_points(plan: Plan, batches: int | None, kills: int) -> list[int]:
    """Positions after which the process is killed, one at random in each equal part."""
    if kills < 1:
        return []
    part = 1000.0 if batches is None else batches / kills
    count = 10_000 if batches is None else kills
    draw = random.Random(plan.seed)
    return [int((n + draw.random()) * part) for n in range(count)]


def done(folder: Path) -> int:
    """Batches that the log holds."""
    blocks = log.settled(log.read(folder / LOG))
    return blocks[-1].end if blocks else 0


def _start(folder: Path, end: int) -> Child:
    """A new interpreter that goes on with the soak in a folder; what it says goes into a file."""
    words = [sys.executable, "-m", "ostinato.soak._worker", str(folder), str(end), str(os.getpid())]
    with (folder / _SAID).open("wb") as said:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def _life(folder: Path, child: Child, kill: int | None, enough: Callable[[], bool]) -> None:
    """One process, until it ends by itself, or is killed as planned or because it is enough."""
    draw = random.Random(kill)
    try:
        while child.poll() is None:
            time.sleep(_WAIT)
            last = None if kill is None else log.last(folder / LOG)
            if kill is not None and last is not None and last.end >= kill:
                time.sleep(draw.random() * last.seconds)  # anywhere within the next block
                _kill(child)
                return
            if enough():
                _kill(child)
                return
    except BaseException:
        _kill(child)  # what is done is kept: the same command goes on
        raise
    if child.returncode:
        said = (folder / _SAID).read_text(errors="replace").strip()[-2000:]
        raise OstinatoError(
            f"The soak's process ended with status {child.returncode} after {done(folder)} "
            f"batches. It said:\n{said}"
        )


def _kill(child: Child) -> None:
    with suppress(ProcessLookupError):
        child.send_signal(signal.SIGKILL)
    child.wait()


def progress(folder: Path, end: int | None) -> str:
    """One line: how far, and how the method stands against the source."""
    blocks = log.settled(log.read(folder / LOG))
    if not blocks:
        return "starting"
    images = max(1, sum(b.images for b in blocks))
    gap = 100 * sum(b.wrong - b.source_wrong for b in blocks) / images
    last = blocks[-1]
    of = "" if end is None else f" of {end:,}"
    return (
        f"{last.end:,}{of} batches, error {gap:+.2f} against the source, "
        f"{last.memory / 2**20:.0f} MB, {last.domains} domains, life {last.life + 1}"
    )


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a second soak in the same folder."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover (no /proc there either)
        raise OstinatoError("A soak needs Linux: it reads its memory from /proc.") from None
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(f"Another soak runs in {folder}: name another --out.") from None
        yield
