"""Batches made once and kept in Ray's object store, where all rows of a node read one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ostinato.data.kept import GIB, Key, StandIn, batch_key
from ostinato.data.shared import distinct
from ostinato.data.streams import Stream
from ostinato.types import Batch


@dataclass(frozen=True)
class _Made:
    """One batch as it lies in the store: pixels and labels as arrays, the rest as it is."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    rest: Batch


Hand = list[_Made | None]
"""Some batches of a stream; None stands for one that whoever needs it makes."""


def deal(stream: Stream, memory: float, hands: int) -> list[list[int]]:
    """Which batches are made, in so many hands: neighbours cost the same, distant ones do not.

    Args:
        stream: whose batches.
        memory: GiB that they may take.
        hands: how many tasks make them.
    """
    wanted = distinct(stream)
    size = stream[wanted[0]].images.nbytes
    wanted = wanted[: int(memory * GIB / max(size, 1))]
    return [hand for n in range(hands) if (hand := wanted[n::hands])]


def make_hand(stream: Stream, indices: Sequence[int], threads: int) -> tuple[bool, Hand]:
    """Make batches; the first value is small, and tells rows that they may begin."""
    torch.set_num_threads(threads)
    found: Hand = []
    for index in indices:
        batch = stream[index]
        if batch.images.dtype != torch.uint8 or batch.labels is None:
            found.append(None)
            continue
        bare = replace(batch, images=batch.images[:0].clone(), labels=None)
        labels = batch.labels.to(torch.int16).numpy()
        found.append(_Made(batch.images.contiguous().numpy(), labels, bare))
    return True, found


class HandedStream(StandIn):
    """A stream whose batches lie in hands.

    Args:
        stream: the stream itself.
        dealt: the batches of every hand, by their index.
        take: gives a hand by its number.
    """

    def __init__(
        self, stream: Stream, dealt: Sequence[Sequence[int]], take: Callable[[int], Hand]
    ) -> None:
        super().__init__(stream)
        self._take = take
        self._places: dict[Key, tuple[int, int]] = {
            batch_key(stream, index)[0]: (hand, place)
            for hand, indices in enumerate(dealt)
            for place, index in enumerate(indices)
        }

    def _known(self, key: Key) -> Batch | None:
        place = self._places.get(key)
        made = None if place is None else self._take(place[0])[place[1]]
        if made is None:
            return None
        return replace(  # copies, since the store's own pixels are everybody's
            made.rest,
            images=torch.from_numpy(made.images.copy()),
            labels=torch.from_numpy(made.labels.astype(np.int64)),
        )
