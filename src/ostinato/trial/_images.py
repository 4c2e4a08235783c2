"""The images of a trial: read once, sized for the model, labelled by the user or by the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ostinato.data.corruptions import COMMON, Constants, corrupt
from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import Dataset
from ostinato.data.datasets.labelled import LabelledFiles
from ostinato.data.datasets.listing import list_images, subfolders
from ostinato.data.segments import Domain, stable_hash
from ostinato.errors import ConfigError, DataError
from ostinato.models import Normalize, VisionModel
from ostinato.running.source_images import load_source, open_source

ORDINARY = "ordinary"
"""The domain of images as they are."""
LEAST, MOST = 40, 1000
"""Images that a trial needs, and those it takes at most."""
_STATISTICS = 300
_SMALL = 64
"""Pixels up to which corruptions take CIFAR's published constants."""
_BATCH = 50


class _FlatFolder(LabelledFiles):
    """Images that lie in one folder, without labels."""

    name = "folder"
    class_names = ("unlabelled",)
    num_classes = 1

    def __init__(self, root: Path) -> None:
        self._start(root)
        self._add("images", [(path, 0) for path in list_images(root)], root, self.name)
        self._seal()


class Pictures(ArrayDataset):
    """Images in memory, whose names tell which picture each was made of.

    >>> images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    >>> both = Pictures(images, torch.tensor([0, 0]), ["ordinary", "fog"], ["a", "a"], 10)
    >>> both.key(0) == both.key(1), len(both.domain("fog"))
    (True, 1)
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        domains: Sequence[str],
        names: Sequence[str],
        outputs: int,
    ) -> None:
        super().__init__(images, labels, domains, name="trial", num_classes=outputs)
        self._names = list(names)

    def key(self, index: int) -> str:
        """The picture's own name: all its corrupted copies are one draw of a comparison."""
        return self._names[index]

    def domain(self, name: str, positions: Sequence[int] | None = None) -> Domain:
        """A domain of a stream, or the images of it at some positions."""
        found = self.indices(name)
        return Domain(name, self, found if positions is None else found[list(positions)])


@dataclass(frozen=True)
class Taken:
    """Images with labels among a model's outputs.

    Attributes:
        images: (N, 3, H, W) uint8.
        labels: one per image; the model's own answers where `labelled` is False.
        labelled: whether the labels are the user's.
        names: one per image.
        note: what is worth saying about the labels.

    >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    >>> taken = Taken(images, torch.arange(4), True, ("a", "b", "c", "d"))
    >>> taken.part(1, 3).names
    ('b', 'c')
    """

    images: Tensor
    labels: Tensor
    labelled: bool
    names: tuple[str, ...]
    note: str = ""

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, end: int | None = None) -> Taken:
        """Some of them, in order."""
        chosen = slice(start, end)
        return Taken(
            self.images[chosen], self.labels[chosen], self.labelled, self.names[chosen], self.note
        )

    def digest(self) -> str:
        """A hash of pixels and labels, which tells one trial's images from another's."""
        total = hashlib.sha256(self.images.numpy().tobytes())
        total.update(self.labels.numpy().tobytes())
        return total.hexdigest()[:16]


def _open_images(text: str) -> Dataset:
    """What `--images` names: a folder with or without class folders, a data set or an npz file."""
    place = Path(text)
    if place.is_dir() and not subfolders(place):
        if not list_images(place):
            raise DataError(f"{place} holds no image: name a folder of images or of class folders.")
        return _FlatFolder(place)
    return open_source(text)


def take_images(text: str, model: nn.Module, normalize: Normalize, *, seed: int = 0) -> Taken:
    """A sample of what `--images` names, as the model gets it."""
    dataset = _open_images(text)
    if dataset.task != "classification":
        raise ConfigError("A trial is for classifiers; see docs/segmentation.md for the others.")
    count = min(len(dataset), MOST)
    found = load_source(dataset, model, count=count, normalize=normalize, seed=seed)
    names = tuple(f"{text}/{number:05d}" for number in range(count))
    labels, note = found.labels, found.note
    if labels is None:
        labels = answers(model, found.images, normalize)
    return Taken(found.images, labels, found.labels is not None, names, note)


@torch.no_grad()
def answers(model: nn.Module, images: Tensor, normalize: Normalize) -> Tensor:
    """The model's own answer to every image."""
    vision = VisionModel(model, normalize=normalize)
    parts = [vision(vision.check(part)).argmax(1).cpu() for part in images.split(_BATCH)]
    return torch.cat(parts)


def split(taken: Taken) -> tuple[Taken, Taken]:
    """Images for statistics, and other ones to show: half each, at most 300 for statistics."""
    if len(taken) < LEAST:
        raise ConfigError(f"There are {len(taken)} images; a trial needs {LEAST} or more.")
    clean = min(_STATISTICS, len(taken) // 2)
    return taken.part(0, clean), taken.part(clean)


def corrupted(shown: Taken, limit: int, severity: int, outputs: int) -> Pictures:
    """The ordinary images and their 15 corruptions, `limit` of each."""
    part = shown.part(0, limit)
    small = min(part.images.shape[-2:]) <= _SMALL
    constants: Constants = "cifar" if small else "imagenet"
    seeds = [stable_hash(name) % 2**31 for name in part.names]
    made = [part.images]
    made += [corrupt(part.images, name, severity, seeds, constants=constants) for name in COMMON]
    names = (ORDINARY, *COMMON)
    return Pictures(
        torch.cat(made),
        part.labels.repeat(len(names)),
        [name for name in names for _ in part.names],
        part.names * len(names),
        outputs,
    )


def own_domains(ordinary: Taken, found: Mapping[str, Taken], limit: int, outputs: int) -> Pictures:
    """The ordinary images and those of the user's own domains, `limit` of each."""
    parts = {ORDINARY: ordinary, **found}
    kept = {name: taken.part(0, limit) for name, taken in parts.items()}
    unlike = [n for n, t in kept.items() if t.images.shape[1:] != ordinary.images.shape[1:]]
    if unlike:
        raise DataError(f"The images of {unlike[0]} have another size than the ordinary ones.")
    return Pictures(
        torch.cat([taken.images for taken in kept.values()]),
        torch.cat([taken.labels for taken in kept.values()]),
        [name for name, taken in kept.items() for _ in taken.names],
        [name for taken in kept.values() for name in taken.names],
        outputs,
    )
