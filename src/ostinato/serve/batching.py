"""Requests of all streams, gathered into common forwards.

The first request of a forward waits a few milliseconds for others. Queues are bounded: who comes
when they are full is told to come back, and so is who has waited longer than he said he would.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostinato.errors import OstinatoError
from ostinato.methods.ostinato.common import Answer
from ostinato.serve._answers import Ranked
from ostinato.serve._forwards import Forwards
from ostinato.serve._stream import Stream
from ostinato.serve._threads import Working


class Busy(OstinatoError):
    """Too much is waiting: come back later."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class Away(Busy):
    """Whoever would answer is not there at present, and will be."""


@dataclass
class Job:
    """Images of one request.

    Attributes:
        levels: (B, 3, H, W), uint8, on the CPU.
        source: also ask the source model.
        until: when waiting ends, by the monotonic clock.
        digest: which images these are.
        sequence: the client's number, if it has one.
        top: guesses an image that are asked for; 0 asks for all.
        ranked: a few guesses of every image, once answered; none of label maps.
        learning: whether the images were queued to be learned from, once answered.
        done: tells the version that answered, and the answer.
    """

    stream: Stream
    levels: Tensor
    source: bool
    until: float
    digest: str = ""
    sequence: int | None = None
    top: int = 5
    ranked: Ranked | None = None
    learning: bool = False
    done: Future[tuple[str, Answer]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher(Working):
    """The thread that gathers requests, for one forward after another, once there is room for it.

    Args:
        forwards: answers what was gathered.
        images: of one forward at most; a request with more is one of its own.
        wait: seconds that the first request waits for others.
        most: images that may wait.
        threads: of forwards on the CPU.
    """

    def __init__(
        self,
        forwards: Forwards,
        *,
        images: int,
        wait: float,
        most: int,
        threads: int,
    ) -> None:
        super().__init__("ostinato-answers")
        self.forwards, self.images = forwards, images
        self.wait, self.most, self.threads = wait, most, threads
        self._jobs: deque[Job] = deque()
        self.waiting = 0

    def stop(self) -> None:
        """Answer what waits, and end."""
        super().stop()
        self.forwards.stop()

    def busy(self) -> bool:
        """Whether requests wait or are being answered."""
        return bool(self._jobs) or self.forwards.busy()

    @property
    def pace(self) -> float:
        """Seconds an image takes, as far as is known."""
        return self.forwards.pace

    def submit(self, job: Job) -> None:
        """Queue a request, or raise `Busy`."""
        with self._ready:
            if self._stopping:
                raise Busy("The server is stopping.", 5.0)
            if self.waiting and self.waiting + len(job.levels) > self.most:
                seconds = max(0.1, self.waiting * self.pace)
                raise Busy(f"{self.waiting} images are waiting.", seconds)
            self._jobs.append(job)
            self.waiting += len(job.levels)
            self._ready.notify()

    # The thread.

    def _work(self) -> None:
        torch.set_num_threads(self.threads)
        self.forwards.await_room()
        while jobs := self._gather():
            self.forwards.take(jobs)
            del jobs  # images that were answered are not held until the next ones come
            self.forwards.await_room()

    def _gather(self) -> list[Job]:
        """Requests for one forward: of one size, the first come first; empty at the end."""
        while True:
            with self._ready:
                while not self._jobs:
                    if self._stopping:
                        return []
                    self._ready.wait()
                until = self._jobs[0].arrived + self.wait
                while self.waiting < self.images and not self._stopping:
                    left = until - time.monotonic()
                    if left <= 0:
                        break
                    self._ready.wait(left)
                taken = self._take()
            alive = [job for job in taken if _still_wanted(job)]
            if alive:
                return alive

    def _take(self) -> list[Job]:
        shape, total = self._jobs[0].levels.shape[1:], 0
        taken, left = list[Job](), deque[Job]()
        while self._jobs:
            job = self._jobs.popleft()
            fits = not taken or total + len(job.levels) <= self.images
            if fits and job.levels.shape[1:] == shape:
                taken.append(job)
                total += len(job.levels)
            else:
                left.append(job)
        self._jobs = left
        self.waiting -= total
        return taken


def _still_wanted(job: Job) -> bool:
    if not job.done.set_running_or_notify_cancel():
        return False  # its caller has gone
    if time.monotonic() > job.until:
        job.done.set_exception(Busy("The deadline passed while the request waited.", 1.0))
        return False
    return True
