"""What is not on disk yet, how old it is, and when it has to be written so as never to be too old.

An update counts as written when a state that contains it is on disk, not when one was handed to the
writer. It has to be handed over before the next update of any stream begins that could keep it
waiting for too long; how long updates and writing take is known from the latest ones. Where even
that is too late, since the disk is slow, learning waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

EARLY, LATE = 0.5, 0.75
"""Shares of the seconds that may be lost: after the first a state is written, however fast that is;
while one is unwritten for longer than the second, nothing more is learned."""
LONGER, SLOWER = 4.0, 2.0
"""How many times the longest of the latest ones an update and a write may take without warning."""
KNOWN, FEW = 64, 16
"""Updates and writes whose lengths are remembered; with fewer updates than the second, every one is
written before the next begins."""


@dataclass(frozen=True, eq=False)
class Handed:
    """Updates in a state that the writer was given.

    Attributes:
        count: how many of them no state contained before.
        since: when the oldest update happened that is not on disk.
        at: when it was handed over.
    """

    count: int
    since: float
    at: float


class Unwritten:
    """The updates of one stream that are not on disk; any thread may use it.

    Args:
        clock: tells seconds; the monotonic one unless given.

    >>> now = 0.0
    >>> unwritten = Unwritten(lambda: now)
    >>> unwritten.changed()
    >>> first = unwritten.hand()
    >>> now = 3.0
    >>> unwritten.count, unwritten.age()  # handed over is not yet written
    (0, 3.0)
    >>> unwritten.written(first)
    >>> unwritten.age()
    0.0
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock, self._lock = clock or time.monotonic, threading.Lock()
        self.count = 0
        self._since = 0.0
        self._handed: list[Handed] = []

    def changed(self) -> None:
        """There was an update."""
        with self._lock:
            if not self.count:
                self._since = self._clock()
            self.count += 1

    def hand(self) -> Handed:
        """A state with all updates so far goes to the writer."""
        with self._lock:
            now = self._clock()
            since = [one.since for one in self._handed] + [self._since] * (self.count > 0)
            handed = Handed(self.count, min(since, default=now), now)
            self.count = 0
            if since:
                self._handed.append(handed)
            return handed

    def written(self, handed: Handed) -> None:
        """It is on disk, and with it everything that was handed over before."""
        with self._lock:
            if handed in self._handed:
                del self._handed[: self._handed.index(handed) + 1]

    def failed(self, handed: Handed) -> None:
        """It will not be written: its updates, and those before, have to be handed over again."""
        with self._lock:
            if handed in self._handed:
                end = self._handed.index(handed) + 1
                gone, self._handed = self._handed[:end], self._handed[end:]
                since = [one.since for one in gone] + [self._since] * (self.count > 0)
                self._since = min(since)
                self.count += sum(one.count for one in gone)

    def __bool__(self) -> bool:
        return bool(self.count or self._handed)

    def clear(self) -> None:
        """Everything is on disk: the state was read from there."""
        with self._lock:
            self.count, self._handed = 0, []

    def age(self) -> float:
        """Seconds since the oldest update that is not on disk; 0 where there is none."""
        with self._lock:
            since = [one.since for one in self._handed] + [self._since] * (self.count > 0)
            return self._clock() - min(since) if since else 0.0

    def waits(self) -> float:
        """The same of those that were not even handed over."""
        with self._lock:
            return self._clock() - self._since if self.count else 0.0


class Promise:
    """That nothing older than some seconds is lost: when states have to be written for it.

    Args:
        seconds: that may be lost.
        clock: tells seconds; the monotonic one unless given.

    >>> promise = Promise(60.0)
    >>> promise.early(streams=1)  # nothing is known yet: write before anything is begun
    0.0
    >>> for _ in range(16):
    ...     promise.learned(0.5)
    >>> promise.wrote(0.1)
    >>> promise.early(streams=1), promise.early(streams=200)  # the disk is busy
    (30.0, 18.0)
    >>> promise.latest(streams=1)
    57.8
    >>> promise.lags(streams=200, oldest=1.0), promise.lags(streams=300, oldest=1.0)
    (False, True)
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self.seconds, self.clock = seconds, clock or time.monotonic
        self._learned: deque[float] = deque(maxlen=KNOWN)
        self._wrote: deque[float] = deque(maxlen=KNOWN)

    def learned(self, seconds: float) -> None:
        """An update took so long."""
        self._learned.append(seconds)

    def wrote(self, seconds: float) -> None:
        """Writing one state took so long."""
        self._wrote.append(seconds)

    def _writing(self, streams: int) -> float:
        """How long writing so many states may take."""
        return streams * max((SLOWER * one for one in tuple(self._wrote)), default=self.seconds)

    def latest(self, streams: int) -> float:
        """The age at which an update has to be handed over, where so many streams have some."""
        known = self._learned if len(self._learned) >= FEW else (self.seconds,)
        return max(0.0, self.seconds - LONGER * max(known) - self._writing(streams))

    def early(self, streams: int) -> float:
        """The age from which on it is, one by one, where there is more time than that."""
        return min(EARLY * self.seconds, self.latest(streams))

    def lags(self, streams: int, oldest: float) -> bool:
        """Whether learning has to wait for the disk.

        Args:
            streams: that have unwritten updates.
            oldest: the age of the oldest update that the writer has.
        """
        crowded = streams > 0 and self._writing(streams + 1) > self.seconds
        return crowded or oldest > LATE * self.seconds
