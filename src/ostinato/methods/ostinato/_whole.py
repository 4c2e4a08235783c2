"""Common forwards as CUDA graphs: sent off by one call, whatever else the interpreter is busy with.

A server's threads share one interpreter. A forward of hundreds of operators waits for it before
each of them; a captured one waits once. Batches are filled up to a few sizes with images that
nobody reads, and experts are read through rows of a stack, so that neither requests that come
together in other numbers nor streams that learn need a new capture. Growth of the stack does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.domains.table import Array
from ostinato.experts.stack import Rows, StackPass
from ostinato.methods.ostinato import _turns as captures
from ostinato.methods.ostinato._turns import COUNTED, Recorder, is_older, on

SEEN = 2
"""Forwards of a kind that are run without a capture first."""
KEPT = 16
"""Captures that are kept."""
STEP = 32
Forward = Callable[[Tensor, StackPass], Tensor]


def filled(count: int) -> int:
    """Images that a forward of so many is filled up to.

    >>> [filled(count) for count in (1, 3, 20, 33, 250, 256)]
    [1, 4, 32, 64, 256, 256]
    """
    if count <= STEP:
        return 1 << (count - 1).bit_length()
    return -(-count // STEP) * STEP


@dataclass
class Whole:
    """One captured forward.

    Attributes:
        pixels, index: what it reads; filled before a replay.
        logits: what it writes.
        replay: runs it.
    """

    pixels: Tensor
    index: Tensor
    logits: Tensor
    replay: Callable[[], Any]


class Wholes(Recorder):
    """Captured forwards by size and by what experts do in them.

    Args:
        forward: gives logits of pixels under a pass.
    """

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self._forward = forward
        self._kept: dict[Any, Whole] = {}
        self._seen: dict[Any, int] = {}
        self._rows: Rows | None = None

    def __call__(
        self, pixels: Tensor, index: Array, rows: Rows, *, maps: bool, branches: bool
    ) -> Tensor | None:
        """Logits of a batch, in a tensor of their own; None where it is not captured."""
        if self.refused is not None:
            return None
        count, size = len(pixels), (filled(len(pixels)), *pixels.shape[1:])
        key = (size, maps, branches)
        with self._lock, on(pixels.device), torch.inference_mode(False), torch.no_grad():
            if is_older(rows, self._rows):
                return None
            if self._rows is not rows:  # they grew: what is captured reads the old ones
                # Memory that all captures have left cannot be captured in again.
                self._kept, self._rows, self._pool = {}, rows, None
            found = self._kept.pop(key, None) or self._make(key, pixels, rows)
            if found is None:
                return None
            self._kept[key] = found  # the latest come last
            self._turns.begin(pixels.device)
            found.pixels[:count].copy_(pixels)
            found.index.copy_(_padded(index, found.index), non_blocking=True)
            found.replay()
            logits = found.logits[:count].clone()
            self._turns.end(pixels.device)
            return logits

    def _make(self, key: Any, pixels: Tensor, rows: Rows) -> Whole | None:
        size, maps, branches = key
        if len(self._seen) >= COUNTED and key not in self._seen:
            return None
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= SEEN:
            return None
        while len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        given = pixels.new_zeros(size)
        index = torch.zeros(size[0], dtype=torch.long, device=pixels.device)

        def work() -> Tensor:
            return self._forward(given, StackPass(index, rows, maps=maps, branches=branches))

        found = self._recorded(lambda: captures.record(work, self._pool), pixels.device)
        if found is None:
            logging.getLogger("ostinato").warning("answers are not captured: %s", self.refused)
            return None
        return Whole(given, index, *found)


def _padded(index: Array, like: Tensor) -> Tensor:
    """Rows of all images of a filled batch, in memory that a GPU reads without anybody waiting.

    From other memory a copy would wait for every forward that was sent off before.
    """
    whole = torch.zeros(len(like), dtype=torch.long, pin_memory=like.is_cuda)
    whole[: len(index)] = torch.from_numpy(index)
    return whole
