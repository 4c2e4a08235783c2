"""What streams are made of: domains, stretches of images that batches do not cross, and orders.

Orders and parts follow from names and a seed alone, so that every machine gets the same.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ostinato.data.datasets.base import Dataset, Indices
from ostinato.errors import ConfigError


@dataclass(frozen=True)
class Domain:
    """Some images of a data set under one name, corrupted on the fly where a corruption is named.

    Attributes:
        name: what tables call it.
        dataset: where the images are.
        indices: which of them, in order.
        corruption: a corruption to apply on the fly, or None.
        severity: of that corruption, or the stored one.
        classes: the model's output columns in use; the data set's own unless given.

    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1])
    >>> len(Domain("fog", data, data.indices("array"), corruption="fog", severity=3))
    4
    """

    name: str
    dataset: Dataset
    indices: Indices
    corruption: str | None = None
    severity: int = 5
    classes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def columns(self) -> Tensor | None:
        """The model's output columns in use."""
        return self.dataset.classes if self.classes is None else self.classes

    def take(self, indices: Indices) -> Domain:
        """The same domain with other images."""
        return replace(self, indices=indices)


@dataclass(frozen=True)
class Segment:
    """A stretch of a stream that batches do not cross.

    Attributes:
        name: the domain's name, or what a blend is called.
        parts: the domains its images come from.
        which: for every image, its part.
        where: for every image, its position in that part's data set.
        round: how often a segment of this name has come before.

    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1])
    >>> len(Segment.of(Domain("fog", data, data.indices("array"))))
    4
    """

    name: str
    parts: tuple[Domain, ...]
    which: Indices
    where: Indices
    round: int = 0

    def __len__(self) -> int:
        return len(self.where)

    @classmethod
    def of(cls, domain: Domain, name: str | None = None) -> Segment:
        """One domain's images as they are."""
        which = np.zeros(len(domain), dtype=np.int64)
        return cls(name or domain.name, (domain,), which, domain.indices)


def stable_hash(text: str, seed: int = 0) -> int:
    """A 63-bit number from a name and a seed, the same on every machine and in every run.

    >>> stable_hash("imagenet-r/n01443537/art_0.jpg", 1)
    5772948099096986653
    """
    digest = hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def shuffled(dataset: Dataset, indices: Indices, seed: int) -> Indices:
    """The indices in the order of their names' hashes: a shuffle that files added do not upset."""
    ranks = [(stable_hash(dataset.source_key(int(i)), seed), int(i)) for i in indices]
    return np.array([index for _, index in sorted(ranks)], dtype=np.int64)


def parts(dataset: Dataset, indices: Indices, count: int, seed: int) -> list[Indices]:
    """Disjoint parts of nearly equal size that together are all of the indices.

    Images are dealt out in hashed order; within a part the given order stays.
    """
    if count < 1 or count > max(1, len(indices)):
        raise ConfigError(
            f"{len(indices)} images of {dataset.name} cannot be cut into {count} parts: choose "
            f"1 to {max(1, len(indices))} rounds, or disjoint = false."
        )
    rank = {int(i): n for n, i in enumerate(shuffled(dataset, indices, seed))}
    dealt = np.array([rank[int(i)] % count for i in indices])
    return [indices[dealt == part] for part in range(count)]


@dataclass(frozen=True)
class Duplicates:
    """Pictures that occur more than once: groups of the positions that hold the same bytes.

    >>> Duplicates(((0, 4),), (("a", "b"),)).repeats()
    {4}
    """

    groups: tuple[tuple[int, ...], ...]
    keys: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.groups)

    def repeats(self) -> set[int]:
        """The positions to leave out so that every picture is met once: all but the first."""
        return {index for group in self.groups for index in group[1:]}

    def to_json(self) -> str:
        """The groups of names, as a text to store."""
        return json.dumps({"groups": [list(g) for g in self.keys]}, indent=1) + "\n"


def find_duplicates(dataset: Dataset, domains: Sequence[str]) -> Duplicates:
    """Find pictures that lie in more than one domain, by a hash of their content."""
    found: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
    for domain in domains:
        for i in dataset.indices(domain):
            digest = hashlib.blake2b(dataset.content(int(i)), digest_size=16).digest()
            found[digest].append((int(i), domain))
    groups = [g for g in found.values() if len({domain for _, domain in g}) > 1]
    positions = tuple(tuple(index for index, _ in group) for group in groups)
    return Duplicates(positions, tuple(tuple(dataset.key(i) for i in g) for g in positions))


def text_hash(text: str) -> str:
    """The sha256 of a text, as stored beside results."""
    return hashlib.sha256(text.encode()).hexdigest()
