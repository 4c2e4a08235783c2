"""What all captures have in common: which sizes are worth one, their memory, whose turn it is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ostinato.experts.stack import Rows

KEPT = 4
"""Batch sizes whose captures are kept."""
SEEN = 2
"""Batches of a size that are answered without a capture first."""
KINDS = 2
"""Captures of one size: with and without learned branches, say."""
COUNTED = 4096
"""Batch sizes that are counted; later ones are not captured."""

Size = tuple[int, ...]


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, a GPU is the current one; a capture would miss what runs on another."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Turns:
    """Replays one after another, on whatever streams: captures share the memory they work in."""

    def __init__(self) -> None:
        self._done: torch.cuda.Event | None = None

    def begin(self, device: torch.device) -> None:
        """Let the present stream wait until whoever came before has what is theirs."""
        if self._done is not None:
            torch.cuda.current_stream(device).wait_event(self._done)

    def end(self, device: torch.device) -> None:
        """Let the next one wait for what was sent off so far."""
        if device.type == "cuda":
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(device))


def is_older(rows: Rows, than: Rows | None) -> bool:
    """Whether rows are those of before the latest growth: a version is still read that had them."""
    return than is not None and len(rows.matrices) < len(than.matrices)


def record(work: Callable[[], Any], pool: Any) -> tuple[Any, Callable[[], Any]]:
    """Capture work on a GPU: its results, in tensors that every replay fills anew.

    A first run, aside, sets up what libraries make once and a capture must not. To be called with
    the work's own device as the current one: streams belong to a device.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made, pool=pool, capture_error_mode="thread_local"):
        result = work()
    return result, made.replay


class Recorder:
    """Captures that share memory, and so take turns.

    Attributes:
        made: how many there were so far.
        refused: why there are no more: a model that asks the host for numbers cannot be captured.
    """

    def __init__(self) -> None:
        self._lock, self._turns = threading.Lock(), Turns()
        self._pool: Any = None
        self.made = 0
        self.refused: str | None = None

    def _recorded(self, make: Callable[[], Any], device: torch.device) -> Any:
        """What `make` gives, which calls `record` with the shared memory; None where that fails."""
        if self._pool is None and device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
        self.made += 1
        try:
            self._turns.begin(device)
            return make()
        except RuntimeError as error:
            self.refused = str(error)
            return None


class Sizes:
    """Which batch sizes are captured: those that come oftenest, once they have come `seen` times.

    A capture costs many answers, so a size takes another one's place only when it has come twice
    as often: sizes that take turns are not captured anew all the time.

    >>> sizes = Sizes()
    >>> [sizes.worth((8,), []) for _ in range(3)]
    [False, False, True]
    """

    def __init__(self, seen: int = SEEN) -> None:
        self._least = seen
        self._seen: Counter[Size] = Counter()

    def worth(self, size: Size, kept: Iterable[Size], room: int = KEPT) -> bool:
        """Count a batch; whether its size is captured, or worth it beside those that are."""
        known = set(kept)
        if size in self._seen or len(self._seen) < COUNTED:
            self._seen[size] += 1
        count = self._seen[size]
        if size in known or count <= self._least:
            return size in known
        return len(known) < room or count > 2 * min(self._seen[one] for one in known)

    def rarest(self, kept: Iterable[Size]) -> Size:
        """The size to give up for another one."""
        return min(kept, key=lambda one: self._seen[one])
