"""The one thread that changes states: it learns behind the answers, and does what operators ask.

While requests wait it gives way, between updates and between the blocks of a forward, as long as it
has its share of the time; then streams learn less, and `skipped` and the lag say so. What operators
ask for comes first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from ostinato.serve._budget import Budget
from ostinato.serve._lanes import entered, make_lane
from ostinato.serve._stream import Entry, Stream
from ostinato.serve._threads import Working

T = TypeVar("T")
TICK = 0.25
"""Seconds between two looks at what has to be written."""
PAUSE = 0.001
"""Seconds between two looks at whether requests still wait."""


class Learner(Working):
    """The thread.

    Args:
        share: of the time that it may work while `busy()`.
        busy: whether requests wait for an answer.
        learned: called after every request that was learned from.
        failed: called where learning raised; the stream's state may be half changed.
        tick: called before every update and now and then, also while a stream learns; that one is
            named.
        hold: whether learning has to wait until more is written.
        threads: of its forwards.
        device: of the model.
    """

    def __init__(
        self,
        *,
        share: float,
        busy: Callable[[], bool],
        learned: Callable[[Stream, Entry, tuple[str, ...], float], None],
        failed: Callable[[Stream, Exception], None],
        tick: Callable[[Stream | None], None],
        hold: Callable[[], bool],
        threads: int,
        device: torch.device,
    ) -> None:
        super().__init__("ostinato-learner")
        self.budget, self.busy, self.threads = Budget(share), busy, threads
        self._since = 0.0
        self._learned, self._failed, self._tick, self._hold = learned, failed, tick, hold
        self._commands: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._streams: dict[Stream, None] = {}  # in the order they came
        self.seconds = self._ticked = 0.0
        self._teaching: Stream | None = None
        self.lane = make_lane(device, urgency=0)

    def wake(self, stream: Stream) -> None:
        """A stream has something to learn from."""
        with self._ready:
            self._streams.setdefault(stream)
            self._ready.notify()

    def ask(self, work: Callable[[], T]) -> Future[T]:
        """Have something done between two updates."""
        done: Future[T] = Future()
        with self._ready:
            if self._stopping:
                done.set_exception(RuntimeError("The server is stopping."))
                return done
            self._commands.append((work, done))  # type: ignore[arg-type]
            self._ready.notify()
        return done

    # The thread.

    def _work(self) -> None:
        torch.set_num_threads(self.threads)
        with entered(self.lane):
            self._go()

    def _go(self) -> None:
        while not self._stopping:
            self.go_on()
        for work, done in self._commands:
            _run(work, done)

    def go_on(self) -> None:
        """One thing: what an operator asked for, or one request of a stream."""
        with self._ready:
            if not (self._commands or self._streams or self._stopping):
                self._ready.wait(TICK)
            if self._stopping:
                return
            command = self._commands.popleft() if self._commands else None
            stream = None if command else next(iter(self._streams), None)
        try:
            if command is not None:
                _run(*command)
            elif stream is not None:
                self._since = time.perf_counter()
                self.give_way()
                if self._written():
                    with self._ready:
                        self._streams.pop(stream, None)
                    self._teach(stream)
        except Exception:  # one stream's trouble must not end learning for all
            logging.getLogger("ostinato.serve").exception("the learner goes on")
        self._look()

    def _teach(self, stream: Stream) -> None:
        """One request of a stream, which then goes to the end of the line."""
        started = self._since = time.perf_counter()
        self._teaching = stream
        try:
            found = stream.learn()
        except Exception as error:  # whatever linear algebra makes of hostile images
            self._failed(stream, error)
            return
        finally:
            self._teaching = None
            self.budget.work(time.perf_counter() - self._since)
        spent = time.perf_counter() - started
        self.seconds += spent
        if found is not None:
            self._learned(stream, *found, spent)
        if stream.waiting and not stream.frozen:
            self.wake(stream)

    def give_way(self, *_: object) -> None:
        """While requests wait, let them go first; called by whoever computes, at any time."""
        if threading.current_thread() is not self._thread:
            return
        if self.lane is None:  # a GPU may be recording what is computed here
            self._look()
        if not self.busy():
            return
        now = time.perf_counter()
        self.budget.work(now - self._since)
        while self.busy() and self.budget.owes() and not (self._stopping or self._commands):
            time.sleep(PAUSE)
            self.budget.wait(PAUSE)
        self._since = time.perf_counter()

    def _written(self) -> bool:
        """Before an update: hand over what could get too old meanwhile, and let writing catch up.

        Learning less is better than losing more. False where something else comes first.
        """
        self._look(at_once=True)
        while self._hold():
            if self._stopping or self._commands:
                return False
            time.sleep(10 * PAUSE)
            self._look(at_once=True)
        return True

    def _look(self, *, at_once: bool = False) -> None:
        """See what has to be written; an update that takes long must not keep other streams."""
        if not at_once and time.monotonic() - self._ticked < TICK:
            return
        self._ticked = time.monotonic()
        try:
            self._tick(self._teaching)
        except Exception:
            logging.getLogger("ostinato.serve").exception("the learner goes on")


def _run(work: Callable[[], object], done: Future[object]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
