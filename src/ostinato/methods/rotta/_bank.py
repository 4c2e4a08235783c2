"""A small bank of recent images: balanced over classes, preferring fresh and certain ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.errors import StateError
from ostinato.ops.expect import LARGEST, Expected, Kind, Like
from ostinato.ops.snapshot import State


@dataclass
class Entry:
    """What the bank knows of one kept image; `age` counts the images that came since.

    >>> Entry(label=3, uncertainty=0.2).age
    0
    """

    label: int
    uncertainty: float
    age: int = 0


class BalancedBank:
    """Keeps at most `capacity` images, at most capacity / classes of any one predicted class.

    An image of a class with room enters as long as the bank has room, else in place of the worst
    of the largest classes; an image of a full class in place of the worst of its class. The worst
    has the highest score, age and uncertainty together, and gives way only to a better one.

    Args:
        capacity: images kept.
        classes: of the model's whole label space.
        age_weight: weight of age in the score.
        uncertainty_weight: weight of uncertainty (entropy / ln C) in the score.

    >>> bank = BalancedBank(capacity=2, classes=2)
    >>> for label in (0, 0, 1):
    ...     _ = bank.add(torch.zeros(3, 4, 4), label, entropy=0.1)
    >>> sorted(entry.label for entry in bank.entries), [entry.age for entry in bank.entries]
    ([0, 1], [2, 1])
    """

    def __init__(
        self,
        capacity: int,
        classes: int,
        age_weight: float = 1.0,
        uncertainty_weight: float = 1.0,
    ) -> None:
        self.capacity = capacity
        self.classes = classes
        self.age_weight = age_weight
        self.uncertainty_weight = uncertainty_weight
        self.entries: list[Entry] = []
        self._images: Tensor | None = None  # (capacity, 3, H, W), row i belongs to entry i

    def __len__(self) -> int:
        return len(self.entries)

    def score(self, entry: Entry) -> float:
        """What speaks against an entry: sigmoid(age / capacity) and entropy / ln C."""
        stale = 1 / (1 + math.exp(-entry.age / self.capacity))
        unsure = entry.uncertainty / math.log(max(self.classes, 2))
        return self.age_weight * stale + self.uncertainty_weight * unsure

    def add(self, image: Tensor, label: int, entropy: float) -> bool:
        """Offer one image (3, H, W); everything kept ages by one. True where it was taken."""
        if self._images is not None:  # a loaded bank follows the device of what comes in
            self._images = self._images.to(image.device)
        new = Entry(label, entropy)
        place = self._place(new)
        if place is not None:
            self._write(place, image)
            if place == len(self.entries):
                self.entries.append(new)
            else:
                self.entries[place] = new
        for entry in self.entries:
            entry.age += 1
        return place is not None

    def images(self) -> Tensor:
        """All kept images, (n, 3, H, W)."""
        assert self._images is not None
        return self._images[: len(self.entries)]

    def timeliness(self) -> Tensor:
        """One weight per kept image that falls with its age: exp(−a) / (1 + exp(−a))."""
        ages = torch.tensor([entry.age / self.capacity for entry in self.entries])
        return torch.sigmoid(-ages)

    def _place(self, new: Entry) -> int | None:
        """The row for a new entry: a free one, that of a worse entry, or none."""
        counts = Counter(entry.label for entry in self.entries)
        if counts[new.label] >= self.capacity / self.classes:
            rivals = {new.label}
        elif len(self.entries) < self.capacity:
            return len(self.entries)
        else:
            largest = max(counts.values())
            rivals = {label for label, count in counts.items() if count == largest}
        rows = [row for row, entry in enumerate(self.entries) if entry.label in rivals]
        worst = max(rows, key=lambda row: self.score(self.entries[row]))
        return worst if self.score(self.entries[worst]) > self.score(new) else None

    def _write(self, row: int, image: Tensor) -> None:
        if self._images is None:  # all room at once, so that memory is known from the start
            self._images = image.new_zeros(self.capacity, *image.shape)
        if image.shape != self._images.shape[1:]:
            size = self._images.shape[-2:]
            image = F.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]
        self._images[row] = image

    def export_state(self) -> State:
        """Images and what is known of them."""
        tensors = {} if self._images is None else {"images": self._images}
        entries = [[e.label, e.uncertainty, e.age] for e in self.entries]
        return State(tensors, {"entries": entries})

    def expected(self, state: State) -> Expected:
        """At most `capacity` images, and a label, an uncertainty and an age of each."""
        images = Like((self.capacity, 3, "height", "width"), low=-1e-3, high=1 + 1e-3)
        last = self.classes - 1 if self.classes else LARGEST  # the first batch tells how many
        kinds = (Kind.count(high=last), Kind.number(low=-1e-3), Kind.count())
        entry = Kind(
            "a label, an uncertainty and an age",
            lambda row: (
                isinstance(row, list)
                and len(row) == len(kinds)
                and all(kind.fits(one) for kind, one in zip(kinds, row, strict=True))
            ),
        )
        tensors = {"images": images} if state.values["entries"] or state.tensors else {}
        return Expected(tensors, {"entries": Kind.listed(entry)})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        entries = state.values.get("entries", [])
        if len(entries) > self.capacity:
            raise StateError(f"The state has {len(entries)} images, the bank {self.capacity}.")
        images = state.tensors.get("images")
        self._images = None if images is None else images.detach().clone()
        self.entries = [Entry(int(label), float(u), int(age)) for label, u, age in entries]
