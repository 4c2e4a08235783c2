"""A stream whose batches stay in memory: all rows of a table read it, so make each batch once."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, cast

from ostinato.data.streams import Stream
from ostinato.types import Batch

GIB = 1 << 30
Key = tuple[str, bytes, bytes]


def batch_key(stream: Stream, index: int) -> tuple[Key, int]:
    """What tells a batch's pixels, the stretch's name and the images' places; and its round."""
    ends, size = stream.ends, stream.config.batch_size
    number = bisect.bisect_right(ends, index)
    segment = stream.segments[number]
    start = (index - (ends[number - 1] if number else 0)) * size
    rows = slice(start, start + size)
    key = (segment.name, segment.which[rows].tobytes(), segment.where[rows].tobytes())
    return key, segment.round


class StandIn(ABC):
    """Stands for a stream: batches that are known come from elsewhere, all else is the stream's.

    The same images in a later round are the same pixels, so one batch serves all rounds.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_stream":
            raise AttributeError(name)  # unpickling asks before there is a stream
        return getattr(self._stream, name)

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, index: int) -> Batch:
        key, number = batch_key(self._stream, index)
        known = self._known(key)
        if known is None:
            return self._made(key, index)
        return replace(known, index=index, round=number)

    @abstractmethod
    def _known(self, key: Key) -> Batch | None:
        """A batch that need not be made."""

    def _made(self, key: Key, index: int) -> Batch:
        """A batch that the stream makes."""
        return self._stream[index]


class _KeptStream(StandIn):
    """Remembers the batches it has given, up to some memory."""

    def __init__(self, stream: Stream, limit: float) -> None:
        super().__init__(stream)
        self._room = limit * GIB
        self._kept: dict[Key, Batch] = {}

    def _known(self, key: Key) -> Batch | None:
        return self._kept.get(key)

    def _made(self, key: Key, index: int) -> Batch:
        batch = self._stream[index]
        size = batch.images.nbytes + (0 if batch.labels is None else batch.labels.nbytes)
        if size <= self._room:
            self._room -= size
            self._kept[key] = batch
        return batch


def keep(stream: Stream, memory: float) -> Stream:
    """The stream with up to `memory` GiB of its batches kept."""
    return stream if memory <= 0 else cast(Stream, _KeptStream(stream, memory))
