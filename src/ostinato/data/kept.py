"""A stream whose batches stay in memory: all rows of a table read it, so make each batch once."""

from __future__ import annotations

import bisect
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


class _KeptStream:
    """Stands for a stream and remembers the batches it has given, up to some memory.

    The same images in a later round are the same pixels, so they are kept once.
    """

    def __init__(self, stream: Stream, limit: float) -> None:
        self._stream, self._room = stream, limit * GIB
        self._kept: dict[Key, Batch] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, index: int) -> Batch:
        key, number = batch_key(self._stream, index)
        known = self._kept.get(key)
        if known is not None:
            return replace(known, index=index, round=number)
        batch = self._stream[index]
        size = batch.images.nbytes + (0 if batch.labels is None else batch.labels.nbytes)
        if size <= self._room:
            self._room -= size
            self._kept[key] = batch
        return batch


def keep(stream: Stream, memory: float) -> Stream:
    """The stream with up to `memory` GiB of its batches kept."""
    return stream if memory <= 0 else cast(Stream, _KeptStream(stream, memory))
