"""Common forwards of gathered requests: routed, computed, answered.

On the CPU one after the other. On a GPU each of the three steps has a thread: while the device
computes one forward, the next is routed and the last one's answers are handed out, so that it
never waits for either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ostinato.errors import InputError, OstinatoError
from ostinato.methods.ostinato.common import Answer, Launched, Prepared, prepare_all
from ostinato.methods.ostinato.streams import SharedModel
from ostinato.serve._answers import rank_all
from ostinato.serve._lanes import entered, make_lane, settle

if TYPE_CHECKING:
    from ostinato.serve.batching import Job

AHEAD = 3
"""Forwards on their way at once: one routed, one computed, one handed out."""


class Forwards:
    """Answers requests that go together.

    Args:
        model: of all streams.
        answered: called for every answered job, before its caller hears of it.
        ran: told of every forward its requests, its images and the seconds that it took.
        overlap: a thread for each step; on a GPU, unless it is given.

    Attributes:
        pace: seconds an image takes, as far as is known.
    """

    def __init__(
        self,
        model: SharedModel,
        answered: Callable[[Job, Answer], None],
        ran: Callable[[int, int, float], None],
        *,
        overlap: bool | None = None,
    ) -> None:
        self.model, self._answered, self._ran = model, answered, ran
        self.pace = 0.01
        self._active, self._ended = 0, 0.0
        self._lock = threading.Lock()
        self._routing = make_lane(model.device, urgency=2)  # the next forward waits for it
        self._lane = make_lane(model.device, urgency=1)
        self._room = threading.Semaphore(AHEAD)
        steps = model.device.type == "cuda" if overlap is None else overlap
        names = ("ostinato-forward", "ostinato-reply") if steps else ()
        self._steps = [ThreadPoolExecutor(1, name) for name in names]

    def stop(self) -> None:
        """Finish what is on its way."""
        for step in self._steps:
            step.shutdown()

    def busy(self) -> bool:
        """Whether requests are being answered."""
        return self._active > 0

    def await_room(self) -> None:
        """Wait until one more forward may be on its way; before its requests are chosen.

        Those that come meanwhile then go with it.
        """
        if self._steps:
            self._room.acquire()

    def take(self, jobs: list[Job]) -> None:
        """Answer requests, once there is room; comes back before they are, where steps overlap."""
        self._count(1)
        if not self._steps:
            self.answer(jobs)
            self._count(-1)
            return
        ready: tuple[Prepared, list[str]] | None = None
        try:
            with entered(self._routing):
                ready = self._route(jobs)
        except Exception:
            ready = None  # the last step finds out which of them it was
        self._steps[0].submit(self._launch, jobs, ready)

    def answer(self, jobs: list[Job]) -> None:
        """All steps at once; where that fails, one by one, so that one does not harm others."""
        try:
            with entered(self._routing):
                prepared, versions = self._route(jobs)
            began = time.perf_counter()
            with entered(self._lane):
                launched = prepared.launch()
            self._finish(jobs, launched, versions, began)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self.answer([job])
            elif not jobs[0].done.done():
                jobs[0].done.set_exception(_explained(error))

    # The steps.

    def _route(self, jobs: Sequence[Job]) -> tuple[Prepared, list[str]]:
        currents = [job.stream.current for job in jobs]
        prepared = prepare_all(
            self.model,
            self.model.check(self._moved(jobs)),
            [current.published for current in currents],
            [len(job.levels) for job in jobs],
            [job.source for job in jobs],
        )
        settle(self._routing)  # the other lane reads what was made here, of what is held here
        return prepared, [current.version for current in currents]

    def _moved(self, jobs: Sequence[Job]) -> Tensor:
        """All images, on the model's device."""
        levels = [job.levels for job in jobs]
        if self.model.device.type != "cuda":
            return torch.cat(levels)
        size = (sum(len(one) for one in levels), *levels[0].shape[1:])
        pinned = torch.empty(size, dtype=levels[0].dtype, pin_memory=True)
        return torch.cat(levels, out=pinned).to(self.model.device, non_blocking=True)

    def _launch(self, jobs: list[Job], ready: tuple[Prepared, list[str]] | None) -> None:
        began, launched, versions = time.perf_counter(), None, list[str]()
        if ready is not None:
            try:
                with entered(self._lane):
                    launched, versions = ready[0].launch(), ready[1]
            except Exception:
                launched = None
        self._steps[1].submit(self._reply, jobs, launched, versions, began)

    def _reply(
        self, jobs: list[Job], launched: Launched | None, versions: list[str], began: float
    ) -> None:
        try:
            if launched is not None:
                self._finish(jobs, launched, versions, began)
        except Exception:
            launched = None
        if launched is None:
            self.answer(jobs)
        self._count(-1)
        self._room.release()

    def _finish(
        self, jobs: Sequence[Job], launched: Launched, versions: list[str], began: float
    ) -> None:
        answers = launched.answers()
        now = time.perf_counter()
        spent = now - max(began, self._ended)  # forwards that overlap are not counted twice
        self._ended = now
        count = sum(len(job.levels) for job in jobs)
        self.pace += 0.1 * (spent / count - self.pace)
        self._ran(len(jobs), count, spent)
        for job, ranked in zip(jobs, rank_all(answers), strict=True):
            job.ranked = ranked
        for job, version, answer in zip(jobs, versions, answers, strict=True):
            if not job.done.done():
                self._answered(job, answer)
                job.done.set_result((version, answer))

    def _count(self, more: int) -> None:
        with self._lock:
            self._active += more


def _explained(error: Exception) -> Exception:
    if isinstance(error, OstinatoError):
        return error
    logging.getLogger("ostinato.serve").exception("a request could not be answered")
    return InputError(f"The images could not be answered ({type(error).__name__}).")
