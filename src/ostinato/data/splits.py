"""Orders and parts that follow from names and a seed alone, so that every machine gets the same."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.data.datasets.base import Dataset, Indices
from ostinato.errors import ConfigError


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
