"""Streams: domains in an order, cut into batches that can be reached without replaying the rest."""

from __future__ import annotations

import bisect
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator

from ostinato.config import Config, Seed
from ostinato.data.datasets.base import Dataset, Task
from ostinato.data.loading import Corrupt, check_transform, load_batch
from ostinato.data.segments import Domain, Segment, shuffled, stable_hash, text_hash
from ostinato.errors import ConfigError
from ostinato.ops.files import write_atomically
from ostinato.types import Batch

CLASSES = "classes.json"
"""The artifact that holds the names of a segmentation's classes."""
OpenDataset = Callable[..., Dataset]
"""Opens a data set by name, with its options."""


class StreamConfig(Config):
    """What every stream can be told.

    >>> StreamConfig.parse({"batch_size": 20, "transform": "resize256-crop224"}).batch_size
    20
    """

    batch_size: int = Field(50, ge=1, description="Images a batch.")
    seed: Seed = Field(0, description="Of shuffles, parts and corruptions made on the fly.")
    transform: str = Field("none", description="Resizing by name, see ostinato.data.loading.")
    shuffle: bool | None = Field(
        None, description="Shuffle within a domain; None does so where images lie sorted by class."
    )
    limit: int | None = Field(None, ge=1, description="Images a domain and round at most.")
    reset: Literal["never", "domain"] = Field(
        "never", description="Whether a method starts afresh where another domain begins."
    )
    resize_labels: bool = Field(False, description="Resize label maps along with the images.")
    workers: int = Field(0, ge=0, description="Threads that decode images ahead.")

    @field_validator("transform")
    @classmethod
    def _known(cls, value: str) -> str:
        return check_transform(value)


class Stream(ABC):
    """A sized sequence of batches; `stream[i]` is the i-th batch whether or not others were read.

    The same image is the same pixels in every batch size, order and number of workers. Batches
    stay within a domain, whose last one may be short (a mixed stream has one long stretch).

    Attributes:
        name: what users type.
        task: "classification" or "segmentation".
        domains: the names of the domains, in order of appearance.
        rounds: how often the domain that comes most often comes.
        num_classes: how many logits the model has.
        images: how many images are streamed in all.
        ends: for every stretch, how many batches there are up to its end.

    >>> import numpy as np
    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((5, 3, 8, 8), np.uint8), [0, 1, 0, 1, 0])
    >>> stream = build_stream(
    ...     "continual",
    ...     {"dataset": "array", "domains": ["array"], "batch_size": 2},
    ...     datasets={"array": data},
    ... )
    >>> len(stream), len(stream[2]), stream.domains
    (3, 1, ('array',))
    """

    name: ClassVar[str]
    Config: ClassVar[type[StreamConfig]] = StreamConfig

    def __init__(
        self,
        domains: Sequence[Domain],
        config: StreamConfig | None = None,
        *,
        corrupt: Corrupt | None = None,
        **settings: Any,
    ) -> None:
        self.config = config if config is not None else self.Config.parse(settings)
        if config is not None and settings:
            self.config = config.replace(**settings)
        self._corrupt = corrupt
        self._check(domains)
        plan = self.plan([self._arranged(domain) for domain in domains])
        self.segments = _count_rounds([s for s in plan if len(s)])
        size = self.config.batch_size
        self.ends = list(accumulate(-(-len(s) // size) for s in self.segments))

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: StreamConfig, opener: OpenDataset, *, corrupt: Corrupt | None = None
    ) -> Self:
        """Build from settings; `opener` opens a data set by name."""

    @abstractmethod
    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """The stretches of the stream, in order."""

    def _check(self, domains: Sequence[Domain]) -> None:
        if not domains or not any(len(domain) for domain in domains):
            raise ConfigError(f"The stream {self.name!r} needs at least one domain with images.")
        if len({domain.dataset.task for domain in domains}) > 1:
            raise ConfigError("A stream holds classification or segmentation data, not both.")

    def _arranged(self, domain: Domain) -> Domain:
        shuffle = self.config.shuffle
        indices = domain.indices
        if shuffle or (shuffle is None and not domain.dataset.ordered):
            indices = shuffled(domain.dataset, indices, self.config.seed)
        return domain.take(indices)

    def limited(self, domain: Domain) -> Domain:
        """The domain, cut to the number of images that the settings allow."""
        return domain.take(domain.indices[: self.config.limit])

    @property
    def task(self) -> Task:
        """The task of the data."""
        return self.segments[0].parts[0].dataset.task

    @property
    def domains(self) -> tuple[str, ...]:
        """Domain names in order of first appearance."""
        names = (s.name if len(s.parts) == 1 else p.name for s in self.segments for p in s.parts)
        return tuple(dict.fromkeys(names))

    @property
    def rounds(self) -> int:
        """How often the domain that comes most often comes."""
        return 1 + max(segment.round for segment in self.segments)

    @property
    def num_classes(self) -> int:
        """How many logits the model has."""
        return max(part.dataset.outputs for s in self.segments for part in s.parts)

    @property
    def images(self) -> int:
        """How many images are streamed in all."""
        return sum(len(segment) for segment in self.segments)

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Batch:
        return self.part(index)

    def _place(self, index: int) -> tuple[Segment, range]:
        """The stretch that a batch is of, and its rows there."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"The stream has {len(self)} batches; there is no batch {index}.")
        index %= len(self)
        number = bisect.bisect_right(self.ends, index)
        first = index - (self.ends[number - 1] if number else 0)
        start, segment = first * self.config.batch_size, self.segments[number]
        return segment, range(len(segment))[start : start + self.config.batch_size]

    def count(self, index: int) -> int:
        """How many images a batch has; none is read."""
        return len(self._place(index)[1])

    def part(self, index: int, some: slice = slice(None)) -> Batch:
        """A batch, or some of its images, each as it is in the whole; the others are not read."""
        segment, rows = self._place(index)
        chosen = slice(rows[some].start, rows[some].stop)
        images, labels, keys = load_batch(
            [(segment.parts[int(w)], int(i)) for w, i in self._rows(segment, chosen)],
            transform=self.config.transform,
            seed=self.config.seed,
            corrupt=self._corrupt,
            resize_labels=self.config.resize_labels,
            workers=self.config.workers,
        )
        names = tuple(segment.parts[int(w)].name for w in segment.which[chosen])
        return Batch(
            images=images,
            labels=labels,
            domain=segment.name,
            index=index % len(self),
            round=segment.round,
            classes=segment.parts[0].columns,
            keys=keys,
            image_domains=names if len(segment.parts) > 1 else None,
        )

    def resets(self, index: int) -> bool:
        """Whether a method is to start afresh before a batch: another domain's first, if asked."""
        if self.config.reset == "never" or index == 0 or index not in self.ends:
            return False
        number = self.ends.index(index) + 1
        return self.segments[number].name != self.segments[number - 1].name

    def __iter__(self) -> Iterator[Batch]:
        if not self.config.workers:
            yield from (self[index] for index in range(len(self)))
            return
        with ThreadPoolExecutor(1) as pool:  # the next batch loads while this one is used
            coming = pool.submit(self.__getitem__, 0)
            for index in range(1, len(self) + 1):
                batch = coming.result()
                if index < len(self):
                    coming = pool.submit(self.__getitem__, index)
                yield batch

    @staticmethod
    def _rows(segment: Segment, chosen: slice) -> Iterator[tuple[int, int]]:
        return zip(segment.which[chosen].tolist(), segment.where[chosen].tolist(), strict=True)

    @cached_property
    def _fingerprint(self) -> str:
        c = self.config
        digest = hashlib.sha256(f"{c.transform}\n{c.seed}\n{c.resize_labels}\n".encode())
        for segment in self.segments:
            digest.update(f"# {segment.name} {segment.round}\n".encode())
            for part, index in self._rows(segment, slice(None)):
                domain = segment.parts[part]
                made = f"{domain.corruption or '-'} {domain.severity}"
                digest.update(f"{domain.name} {made} {domain.dataset.key(index)}\n".encode())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """A hash of what is streamed: names, order, corruptions, transform, seed; not of pixels.

        The batch size is left out: the same images in other batches have the same fingerprint.
        """
        return self._fingerprint

    def describe(self) -> str:
        """One line: what, how many images, in what batches, from which seed."""
        c = self.config
        rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        width = f"{self.num_classes} classes" if self.task == "classification" else self.task
        return (
            f"{self.name}: {len(self.domains)} domains{rounds}, {self.images:,} images in "
            f"{len(self):,} batches of {c.batch_size}, {width}, transform {c.transform}, "
            f"seed {c.seed}{', reset at every domain' if c.reset == 'domain' else ''}"
        )

    def notes(self) -> tuple[str, ...]:
        """What the data sets had to say when they were opened (which image list was used, ...)."""
        said = (n for s in self.segments for p in s.parts for n in p.dataset.notes)
        return tuple(dict.fromkeys(said))

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class of the first data set; empty where it does not say."""
        return tuple(self.segments[0].parts[0].dataset.class_names)

    def artifacts(self) -> dict[str, str]:
        """Texts to keep beside a result, by file name (which image was in which part, ...)."""
        if self.task != "segmentation" or not self.class_names:
            return {}
        return {CLASSES: json.dumps(self.class_names, indent=1) + "\n"}

    def write_artifacts(self, folder: str | Path) -> dict[str, str]:
        """Write the artifacts into a folder; their sha256 by file name."""
        place = Path(folder)
        hashes = {}
        for name, text in self.artifacts().items():
            place.mkdir(parents=True, exist_ok=True)
            write_atomically(place / name, text.encode())
            hashes[name] = text_hash(text)
        return hashes


def _count_rounds(segments: Sequence[Segment]) -> list[Segment]:
    seen: dict[str, int] = {}
    counted = []
    for segment in segments:
        number = seen.get(segment.name, 0)
        seen[segment.name] = number + 1
        counted.append(replace(segment, round=number))
    return counted


def generator(seed: int, *names: str) -> np.random.Generator:
    """A numpy generator that depends on a seed and names alone."""
    return np.random.Generator(np.random.PCG64(stable_hash("/".join(names), seed)))


def build_stream(
    name: str,
    options: Mapping[str, Any] | StreamConfig | None = None,
    *,
    roots: Mapping[str, str | Path] | str | Path | None = None,
    datasets: Mapping[str, Dataset] | None = None,
    corrupt: Corrupt | None = None,
) -> Stream:
    """Build a registered stream from its name and settings.

    Args:
        name: a registered stream, see `ostinato list streams`.
        options: its settings, as plain values or as its config.
        roots: a root per data set, or one folder that holds a folder per data set; otherwise
            the environment variable OSTINATO_DATA names that folder.
        datasets: data sets that are already open, by name.
        corrupt: replaces `ostinato.data.corruptions.corrupt`.
    """
    from ostinato.data.opening import Opener
    from ostinato.registry import STREAMS

    cls: type[Stream] = STREAMS[name]
    parse = cls.Config.parse
    config = options if isinstance(options, StreamConfig) else parse(options or {})
    return cls.from_config(config, Opener(roots, datasets or {}), corrupt=corrupt)
