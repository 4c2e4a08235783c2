"""Batches made once and read by many processes, from files that all of them map into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ostinato.data.kept import GIB, Key, StandIn, batch_key
from ostinato.data.streams import Stream
from ostinato.types import Batch


@dataclass(frozen=True)
class _Stored:
    """Where a batch's pixels and labels lie; the rest of it is small and kept as it is."""

    path: str
    place: int
    shape: tuple[int, ...]
    label_shape: tuple[int, ...]
    rest: Batch


_Written = list[tuple[Key, _Stored]]


def _write_batches(stream: Stream, indices: Sequence[int], path: str) -> _Written:
    """Make batches and write them into one file, one after the other."""
    written: _Written = []
    with Path(path).open("wb") as file:
        for index in indices:
            batch = stream[index]
            if batch.images.dtype != torch.uint8 or batch.labels is None:
                continue  # made again by whoever needs it
            labels = batch.labels.to(torch.int16)
            place = file.tell()
            file.write(batch.images.contiguous().numpy().tobytes())
            file.write(labels.contiguous().numpy().tobytes())
            bare = replace(batch, images=batch.images[:0].clone(), labels=None)
            key, _ = batch_key(stream, index)
            shapes = tuple(batch.images.shape), tuple(labels.shape)
            written.append((key, _Stored(path, place, *shapes, bare)))
    return written


class _SharedStream(StandIn):
    """A stream with batches read from files.

    It travels to other processes as a list of places, not as pixels.
    """

    def __init__(self, stream: Stream, written: _Written) -> None:
        super().__init__(stream)
        self._stored = dict(written)

    def _known(self, key: Key) -> Batch | None:
        found = self._stored.get(key)
        if found is None:
            return None
        images = _read(found.path, found.place, found.shape, np.uint8)
        after = found.place + images.nbytes
        labels = _read(found.path, after, found.label_shape, np.int16).astype(np.int64)
        pixels = torch.from_numpy(images)
        return replace(found.rest, images=pixels, labels=torch.from_numpy(labels))


def _read(path: str, place: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return np.array(np.memmap(path, dtype=dtype, mode="r", offset=place, shape=shape))


def share(
    stream: Stream,
    folder: Path,
    memory: float,
    jobs: int,
    spread: Callable[[Callable[..., _Written], list[tuple[Any, ...]]], list[_Written]],
) -> Stream:
    """The stream with its batches on disk, made by several processes.

    Args:
        stream: what to make.
        folder: where the files go; whoever made it removes it.
        memory: GiB to write at most.
        jobs: how many files, one for each process at a time.
        spread: calls a function with each of the argument lists, elsewhere.
    """
    wanted = distinct(stream)
    size = stream[wanted[0]].images.nbytes
    wanted = wanted[: int(memory * GIB / max(size, 1))]
    if not wanted:
        return stream
    # Dealt out like cards: neighbours cost the same, distant corruptions do not.
    hands = [wanted[n :: 4 * jobs] for n in range(4 * jobs)]
    tasks = [(stream, hand, str(folder / f"{n}.bin")) for n, hand in enumerate(hands) if hand]
    written = [entry for part in spread(_write_batches, tasks) for entry in part]
    return cast(Stream, _SharedStream(stream, written))


def distinct(stream: Stream) -> list[int]:
    """The first batch of each key; the same images in a later round are the same pixels."""
    first: dict[Key, int] = {}
    for index in range(len(stream)):
        first.setdefault(batch_key(stream, index)[0], index)
    return list(first.values())
