"""A stream whose batches stay in memory: all rows of a small table read it, so make it once."""

from __future__ import annotations

from typing import Any, cast

from ostinato.bench.small import EMBEDDED
from ostinato.bench.spec import Spec
from ostinato.data.streams import Stream
from ostinato.types import Batch

MOST = 50_000
"""Images that are kept at most (150 MB at 32 px)."""


class KeptStream:
    """Stands for a stream and remembers the batches it has given."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._batches: dict[int, Batch] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, index: int) -> Batch:
        if index not in self._batches:
            self._batches[index] = self._stream[index]
        return self._batches[index]


def keep(stream: Stream, spec: Spec) -> Stream:
    """The stream, in memory where its images are small and few."""
    if spec.roots != EMBEDDED or stream.images > MOST:
        return stream
    return cast(Stream, KeptStream(stream))
