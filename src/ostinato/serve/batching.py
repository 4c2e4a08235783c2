"""Requests of all streams, gathered into common forwards.

The first request of a forward waits a few milliseconds for others. Queues are bounded: who comes
when they are full is told to come back, and so is who has waited longer than he said he would.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostinato.errors import InputError, OstinatoError
from ostinato.methods.ostinato.streams import Answer, Prepared, Question, SharedModel, prepare
from ostinato.serve.lanes import entered, make_lane
from ostinato.serve.stream import Current, Stream


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
        learning: whether the images were queued to be learned from, once answered.
        done: tells the version that answered, and the answer.
    """

    stream: Stream
    levels: Tensor
    source: bool
    until: float
    digest: str = ""
    sequence: int | None = None
    learning: bool = False
    done: Future[tuple[str, Answer]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """The thread that answers.

    Args:
        model: of all streams.
        images: of one forward at most; a request with more is one of its own.
        wait: seconds that the first request waits for others.
        most: images that may wait.
        threads: of forwards on the CPU.
        answered: called for every answered job, before its caller hears of it.
    """

    def __init__(
        self,
        model: SharedModel,
        *,
        images: int,
        wait: float,
        most: int,
        threads: int,
        answered: Callable[[Job, str, Answer], None],
        ran: Callable[[int, int, float], None],
    ) -> None:
        self.model, self.images = model, images
        self.wait, self.most, self.threads = wait, most, threads
        self._answered, self._ran = answered, ran
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._stopping = False
        self._active = 0
        self.waiting = 0
        self.pace = 0.01  # seconds an image takes, as far as is known
        # While a GPU computes one forward, the next one is routed on the CPU.
        pipelined = model.device.type == "cuda"
        self._lane = make_lane(model.device, first=True)
        self._second = ThreadPoolExecutor(1, "ostinato-forward") if pipelined else None
        self._ahead = threading.Semaphore(2)
        self._thread = threading.Thread(target=self._work, name="ostinato-answers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Answer what waits, and end."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()
        self._thread.join()
        if self._second is not None:
            self._second.shutdown()

    def busy(self) -> bool:
        """Whether requests wait or are being answered."""
        return bool(self._jobs) or self._active > 0

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
        while jobs := self._gather():
            self._active += 1
            if self._second is None:
                self._answer(jobs)
                continue
            self._ahead.acquire()
            with entered(self._lane):
                prepared = self._routed(jobs)
            self._second.submit(self._run_ahead, jobs, prepared)

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

    def _answer(self, jobs: list[Job]) -> None:
        """Route and answer; where that fails, one by one, so that one does not harm others."""
        try:
            self._finish(jobs, *self._prepare(jobs))
        except Exception as error:
            if len(jobs) > 1:
                self._active += len(jobs) - 1
                for job in jobs:
                    self._answer([job])
                return
            if not jobs[0].done.done():
                jobs[0].done.set_exception(_explained(error))
        self._active -= 1

    def _routed(self, jobs: list[Job]) -> tuple[Prepared, list[Current]] | None:
        try:
            return self._prepare(jobs)
        except Exception:
            return None  # the second thread finds out which of them it was

    def _run_ahead(self, jobs: list[Job], ready: tuple[Prepared, list[Current]] | None) -> None:
        with entered(self._lane):
            try:
                if ready is not None:
                    self._finish(jobs, *ready)
                    self._active -= 1
            except Exception:
                ready = None
            if ready is None:
                self._answer(jobs)
        self._ahead.release()

    def _prepare(self, jobs: Sequence[Job]) -> tuple[Prepared, list[Current]]:
        currents = [job.stream.current for job in jobs]
        pixels = self.model.check(torch.cat([job.levels for job in jobs]))
        parts = pixels.split([len(job.levels) for job in jobs])
        questions = [
            Question(current.published, part, job.source)
            for current, part, job in zip(currents, parts, jobs, strict=True)
        ]
        return prepare(self.model, questions), currents

    def _finish(self, jobs: Sequence[Job], ready: Prepared, currents: list[Current]) -> None:
        started = time.perf_counter()
        answers = ready.run()
        spent = time.perf_counter() - started
        count = len(ready.pixels)
        self.pace += 0.1 * (spent / count - self.pace)
        self._ran(len(jobs), sum(len(job.levels) for job in jobs), spent)
        for job, current, answer in zip(jobs, currents, answers, strict=True):
            if job.done.done():
                continue
            self._answered(job, current.version, answer)
            job.done.set_result((current.version, answer))


def _still_wanted(job: Job) -> bool:
    if not job.done.set_running_or_notify_cancel():
        return False  # its caller has gone
    if time.monotonic() > job.until:
        job.done.set_exception(Busy("The deadline passed while the request waited.", 1.0))
        return False
    return True


def _explained(error: Exception) -> Exception:
    if isinstance(error, OstinatoError):
        return error
    logging.getLogger("ostinato.serve").exception("a request could not be answered")
    return InputError(f"The images could not be answered ({type(error).__name__}).")
