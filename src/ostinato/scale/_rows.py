"""One row of a sweep on whatever machine Ray chose: run, reported, and brought back."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from ostinato.data.streams import Stream
from ostinato.errors import OstinatoError, Taken
from ostinato.running.progress import Listener, RunningScore
from ostinato.running.results import RunFolder
from ostinato.running.runner import run
from ostinato.running.spec import Spec
from ostinato.scale._batches import Hand, HandedStream
from ostinato.scale._desk import Files
from ostinato.scoring.record import Record

_OFTEN = 0.5
"""Seconds between two reports of a row."""
_PATIENCE = 120.0
"""Seconds to wait for the last words of a row's earlier try, which may hold its folder still."""
_LAST = ("records.jsonl", "state.safetensors", "summary.json")
"""Files whose order matters: a state never comes before the records that it follows."""


@dataclass(frozen=True)
class Task:
    """What a row is told.

    Attributes:
        digest: the run's hash, and the row's name towards the desk.
        spec: what to run, one seed.
        out: the runs' folder on the machine that asked.
        token: a file in it; whoever sees it shares the folder.
        again: run even what is complete.
        every: batches between checkpoints.
        threads: of its forwards.
    """

    digest: str
    spec: Spec
    out: str
    token: str
    again: bool
    every: int
    threads: int

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.spec.label} {self.spec.stream} {self.spec.seed}"


_Reply: TypeAlias = "str | OstinatoError"
"""The name of the finished run's folder, or why there is none."""


def run_row(
    task: Task,
    stream: Stream,
    dealt: Sequence[Sequence[int]],
    hands: Sequence[Any],
    desk: Any,
    *_: Any,
) -> _Reply:
    """Run a row, or go on with it where an earlier try had come.

    Args:
        task: what to run.
        stream: its stream.
        dealt: which batches lie in which hand.
        hands: references to them.
        desk: where to report.
    """
    import ray

    torch.set_num_threads(task.threads)

    @cache
    def take(number: int) -> Hand:
        return cast(Hand, ray.get(hands[number]))

    handed = cast(Stream, HandedStream(stream, dealt, take))
    if (Path(task.out) / task.token).is_file():
        return _attempt(task, Path(task.out), handed, _Reporter(desk, task))
    out = _scratch(task.token)
    known = ray.get(desk.read.remote(task.digest))
    if known is not None:
        unpack(out / known[0], known[1])
    carrier = _Carrier(desk, task)
    reply = _attempt(task, out, handed, carrier)
    if isinstance(reply, str):
        reply = carrier.finish(out / reply)
    return reply


def _attempt(task: Task, out: Path, stream: Stream, listener: Listener) -> _Reply:
    """Run; a defect of one row should not cost the others their hours."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            (folder,) = run(
                task.spec,
                out=out,
                again=task.again,
                every=task.every,
                quiet=True,
                stream=stream,
                listener=listener,
            )
            return folder.path.name
        except Taken as error:
            if time.monotonic() > until:
                return error
            time.sleep(_OFTEN)
        except OstinatoError as error:
            return error
        except Exception as error:
            traceback.print_exc()
            return OstinatoError(f"{type(error).__name__}: {str(error)[:200]}")


class _Reporter(Listener):
    """Tells the desk how far a row has come."""

    def __init__(self, desk: Any, task: Task) -> None:
        self.desk, self.task = desk, task
        self.score, self.done, self.said = RunningScore(), 0, 0.0

    def begun(self, folder: RunFolder | None, done: int, total: int) -> None:
        """The row starts, or goes on."""
        self.done = done
        self.desk.begun.remote(self.task.digest, self.task.title, done, total)
        for record in folder.records() if folder is not None else ():
            self.score.add(record)

    def batch(self, record: Record) -> None:
        """One more batch; not every one is worth a message."""
        self.score.add(record)
        self.done += 1
        if time.monotonic() - self.said >= _OFTEN:
            self.said = time.monotonic()
            self.desk.batches.remote({self.task.digest: (self.done, str(self.score))})


class _Carrier(_Reporter):
    """Also sends the run's files, where the disk here is not the one of who asked."""

    def begun(self, folder: RunFolder | None, done: int, total: int) -> None:
        """The folder is there: send all that will not change any more."""
        import ray

        super().begun(folder, done, total)
        assert folder is not None
        self.name = str(ray.get(self.desk.place.remote(folder.path.name, folder.hash)))
        self._send(folder.path, lambda name: name not in _LAST)

    def saved(self, folder: RunFolder) -> None:
        """A checkpoint: from here on another machine can go on."""
        self._send(folder.path, lambda name: name in _LAST)

    def finish(self, path: Path) -> str:
        """Send what is left, and clear up here; the run's name over there."""
        import ray

        self._send(path, lambda name: True)
        ray.get(self.desk.remove.remote(self.name, "state.safetensors"))
        shutil.rmtree(path)
        return self.name

    def _send(self, path: Path, wanted: Any) -> None:
        import ray

        ray.get(self.desk.write.remote(self.name, [f for f in pack(path) if wanted(f[0])]))


def pack(folder: Path) -> Files:
    """A run's files, those whose order matters last."""
    found = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    names = sorted(found, key=lambda name: _LAST.index(name) if name in _LAST else -1)
    return [(name, found[name].read_bytes()) for name in names]


def unpack(folder: Path, files: Files) -> None:
    """Put a run's files where it goes on; what an earlier try left here gives way."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _scratch(token: str) -> Path:
    """A folder of this machine for rows of one sweep."""
    return Path(tempfile.gettempdir()) / f"ostinato-sweep{token}"


def clear_scratch(token: str) -> None:
    """Remove it."""
    shutil.rmtree(_scratch(token), ignore_errors=True)
