"""One stream: its method, what it published, what waits to be learned, its place in time.

Any thread may read `current` and `offer` images; everything that changes the state is called by
the one learner thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ostinato.methods.ostinato.desk import InUse
from ostinato.methods.ostinato.streams import StreamMethod
from ostinato.ops.snapshot import State
from ostinato.serve._lanes import settle
from ostinato.serve._record import Record
from ostinato.serve._sequences import Sequences
from ostinato.serve._unwritten import Unwritten
from ostinato.serve._watch import Watch
from ostinato.serve.store import StreamRow

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Current:
    """What answers now: a published version and its name."""

    version: str
    published: InUse


@dataclass
class Entry:
    """Images that wait to be learned from, as they came in one request."""

    levels: Tensor
    digest: str
    sequence: int | None = None
    arrived: float = field(default_factory=time.monotonic)


def new_life(after: str = "") -> str:
    """A name for a stretch of learning from one start: the time, so that it never comes again.

    >>> first = new_life()
    >>> new_life(first) > first
    True
    """
    now = int(time.time() * 1000)
    if after:
        now = max(now, int(after, 36) + 1)
    text = ""
    while now:
        now, digit = divmod(now, 36)
        text = DIGITS[digit] + text
    return text


class Stream:
    """One stream's state and queue.

    Args:
        row: what the index knows of it.
        method: learns and publishes; starts at the source.
        most: images that may wait to be learned from.
        answers: sequence numbers whose answers are kept.
    """

    def __init__(self, row: StreamRow, method: StreamMethod, *, most: int, answers: int) -> None:
        self.id, self.name, self.preset = row.id, row.name, row.preset
        self.frozen = row.frozen
        self.method = method
        self.most = most
        self.record = Record(answers)
        self.watch = Watch(time.time())
        self.met = Sequences()
        self.life, self.number, self.learned = "", 0, 0
        self.skipped = self.lost = self.rollbacks = 0
        self.unwritten, self.saved = Unwritten(), None
        self._waiting: deque[Entry] = deque()
        self._lock = threading.Lock()
        self.asked = 0
        self.current: Current
        self.begin()

    saved: float | None

    @property
    def dirty(self) -> int:
        """Updates that nobody has handed to the writer."""
        return self.unwritten.count

    # Any thread.

    def offer(self, entry: Entry) -> bool:
        """Queue images to be learned from; the oldest go where there are too many."""
        if self.frozen or (entry.sequence is not None and entry.sequence in self.met):
            return False
        with self._lock:
            self._waiting.append(entry)
            total = sum(len(one.levels) for one in self._waiting)
            while total > self.most and len(self._waiting) > 1:
                total -= len(self._waiting.popleft().levels)
                self.skipped += 1
        return True

    @property
    def waiting(self) -> int:
        """Requests that wait to be learned from."""
        return len(self._waiting)

    def lag(self) -> float:
        """Seconds that the oldest of them has waited."""
        with self._lock:
            return time.monotonic() - self._waiting[0].arrived if self._waiting else 0.0

    # The learner alone.

    def learn(self) -> tuple[Entry, tuple[str, ...]] | None:
        """Learn from the request that waited longest; None where there is none to learn from."""
        with self._lock:
            if self.frozen or not self._waiting:
                return None
            entry = self._waiting.popleft()
        if entry.sequence is not None and entry.sequence in self.met:
            return None
        events = self.method.take(entry.levels)
        if entry.sequence is not None:
            self.met.add(entry.sequence)
        self.number += 1
        self.learned += 1
        self.unwritten.changed()
        self.publish()
        return entry, events

    def publish(self) -> None:
        """Let the state as it is now answer."""
        if self.method.model.device.type == "cuda":
            settle(torch.cuda.current_stream())  # others read what this thread computed
        self.current = Current(self.version, self._in_use())

    def _in_use(self) -> InUse:
        return InUse(self.method.version, self.method.model.ranks)

    @property
    def version(self) -> str:
        """Name of the state as it is now."""
        return f"{self.life}.{self.number}"

    def begin(self) -> None:
        """Start a new life from the state as it is now; what waits belongs to the old one."""
        self.drop_waiting()
        self.life, self.number = new_life(self.life), 0
        self.unwritten.changed()
        self.publish()

    def drop_waiting(self) -> None:
        """Learn from nothing that came before now."""
        with self._lock:
            self._waiting.clear()

    def capture(self, *, images: bool) -> tuple[State, dict[str, Any]]:
        """A copy of the whole state, and what has to be known beside it."""
        state = self.method.export_state()
        if not images:
            inner = self.method.bank.without_buffers(state.part("bank"))
            kept = {k: t for k, t in state.tensors.items() if not k.startswith("bank/")}
            tensors = kept | {f"bank/{k}": t for k, t in inner.tensors.items()}
            state = State(tensors, state.values | {"bank": inner.values})
        facts = {
            "name": self.name,
            "version": self.version,
            "learned": self.learned,
            "sequences": self.met.export(),
            "domains": list(self.method.bank.domains),
            "held": sorted(self.method.held),
            "threads": torch.get_num_threads(),
        }
        return state.clone(), self.method._header() | {"stream": facts}

    def adopt(self, state: State, facts: dict[str, Any]) -> None:
        """Become a captured state, in a new life; on any error nothing has changed."""
        self.method.import_state(state)
        self.method.held = set(facts.get("held", ())) & set(self.method.bank.domains)
        self.begin()
