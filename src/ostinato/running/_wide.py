"""A run on several processes: the first leads and writes, the others follow what it says.

Every process makes its part of each batch, and all get the whole of it; the method splits the
forwards. Only the first process needs the run's folder. A follower needs the data and the model,
and is told the rest: which spec, where to begin, and from which state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import safetensors.torch
import torch
from torch import distributed

from ostinato.data.streams import Stream
from ostinato.errors import DataError
from ostinato.methods.base import Method
from ostinato.ops.processes import ALONE, Processes
from ostinato.ops.snapshot import State
from ostinato.running.job import Job, open_job
from ostinato.running.results import ResumePoint
from ostinato.running.spec import Spec
from ostinato.types import Batch

_PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others before it gives up."""
Stop = Callable[[], bool]


@contextmanager
def started_processes(device: str | None = None) -> Iterator[Processes]:
    """The processes that `torchrun` started this one among; this one alone, where it did not.

    Args:
        device: as a run is told; "cpu" keeps messages off the GPUs.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield ALONE
        return
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if gpus and device != "cpu":
        torch.cuda.set_device(local % gpus)
    one_each = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", size)) and device != "cpu"
    distributed.init_process_group("nccl" if one_each else "gloo", timeout=_PATIENCE)
    try:
        yield Processes(distributed.group.WORLD, given="whole")
    finally:
        distributed.destroy_process_group()


class _WideStream:
    """Stands for a stream whose batches several processes make together.

    Args:
        stream: the stream, open on every process.
        processes: those that make it.
    """

    def __init__(self, stream: Stream, processes: Processes) -> None:
        self._stream, self._processes = stream, processes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, index: int) -> Batch:
        count = self._stream.count(index)
        rows = self._processes.share(torch.arange(count))
        part = self._stream.part(index, slice(int(rows[0]), int(rows[-1]) + 1))
        return self._joined(part, count)

    def _joined(self, part: Batch, count: int) -> Batch:
        processes = self._processes
        own = processes.counts(count)[processes.rank]
        said = {
            "sizes": [
                part.images.shape[1:],
                None if part.labels is None else part.labels.shape[1:],
            ],
            "keys": part.keys[:own],
            "domains": None if part.image_domains is None else part.image_domains[:own],
        }
        parts = [json.loads(text) for text in processes.texts(json.dumps(said))]
        if any(one["sizes"] != parts[0]["sizes"] for one in parts):
            raise DataError(
                f"Images or label maps of batch {part.index} have different sizes: name a "
                "transform, such as resize256-crop224."
            )
        domains = part.image_domains and tuple(d for one in parts for d in one["domains"])
        return replace(
            part,
            images=processes.gathered(part.images, count),
            labels=None if part.labels is None else processes.gathered(part.labels, count),
            keys=tuple(key for one in parts for key in one["keys"]),
            image_domains=domains,
        )


def widened(job: Job, processes: Processes) -> Job:
    """The job, with batches that all processes make together."""
    if processes.alone:
        return job
    return replace(job, stream=cast(Stream, _WideStream(job.stream, processes)))


class Leader:
    """What the first process tells the others; alone, nothing. A context manager.

    Args:
        processes: all of them.
    """

    def __init__(self, processes: Processes = ALONE) -> None:
        self.processes = processes
        self._running = False

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Within a run the others are in the middle of a batch, and would take it for an answer.
        if not self.processes.alone and not self._running:
            self.processes.told("")

    def begin(self, job: Job) -> None:
        """A run begins."""
        self._running = True
        if not self.processes.alone:
            self.processes.told(json.dumps(job.spec.stored()))

    def end(self) -> None:
        """The run is over."""
        self._running = False


def same_start(processes: Processes, start: ResumePoint | None = None) -> ResumePoint:
    """Where the first process goes on, and from which state, on all of them."""
    if processes.alone:
        assert start is not None
        return start
    said, tensors = "", b""
    if start is not None:
        state = start.state
        said = json.dumps([start.next_index, None if state is None else state.values])
        if state is not None:
            kept = {name: t.detach().cpu().contiguous() for name, t in state.tensors.items()}
            tensors = safetensors.torch.save(kept)
    index, values = json.loads(processes.told(said))
    found = processes.messages(tensors)[0]
    if start is not None:
        return start
    return ResumePoint(
        index, None if values is None else State(safetensors.torch.load(found), values)
    )


def follow(processes: Processes, stop: Stop, as_asked: Callable[[dict[str, Any]], Spec]) -> None:
    """Do what the first process says, run after run, and write nothing.

    Args:
        processes: all of them.
        stop: whether this process was asked to stop.
        as_asked: reads a stored spec.
    """
    while said := processes.told():
        job = widened(open_job(as_asked(json.loads(said))), processes)
        if not _follow_run(job, job.adapt(processes=processes), stop):
            return


def _follow_run(job: Job, method: Method, stop: Stop) -> bool:
    start = same_start(method.processes)
    if start.state is not None:
        method.import_state(start.state)
    for index in range(start.next_index, len(job.stream)):
        batch = job.stream[index]
        if job.stream.resets(index):
            method.reset()
        method.step(batch.images, classes=batch.classes)
        if method.processes.any(stop()):
            return False
    method.diagnose()
    return True
