"""What streams are made of: domains, and the stretches of images that batches do not cross."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ostinato.data.datasets.base import Dataset, Indices


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
