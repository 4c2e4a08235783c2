"""What every data set offers: images by position, in named domains, decoded when asked."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.registry import DATASETS

Task = Literal["classification", "segmentation"]
Indices = NDArray[np.int64]

IGNORE = 255
"""The label of pixels that do not count."""


class Item(NamedTuple):
    """One image: uint8 (3, H, W); a class index or a uint8 (H, W) map; a stable name.

    >>> import torch
    >>> Item(torch.zeros(3, 8, 8, dtype=torch.uint8), 3, "mine/0001").label
    3
    """

    image: Tensor
    label: int | Tensor
    key: str


class Dataset(ABC):
    """Images with labels, in named domains. It decodes lazily and knows nothing of models.

    Attributes:
        name: what users type.
        task: "classification" or "segmentation".
        layout: the folders a root has to hold, in words for error messages.
        expected: images per domain in the official release, where that is known for this split.
        constants: which published corruption constants fit ("imagenet" or "cifar").
        ordered: True where the stored order already mixes classes (or is a drive's own order);
            False where images lie sorted by class, so that a stream must shuffle them.
        stored_severities: True where every domain is on disk at severities 1 to 5.
        open_options: options of `open` beyond those of the constructor.
        num_classes: how many classes the labels run over.
        classes: the columns of the model's logits that these classes are, where they are a part.
        class_names: one name per class; empty where the data set does not say.

    >>> import numpy as np
    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data: Dataset = ArrayDataset(np.zeros((2, 3, 8, 8), np.uint8), [0, 1], name="mine")
    >>> len(data), data.domains(), data[1].label, data.key(1)
    (2, ['mine'], 1, 'mine/00001')
    """

    name: str = ""
    task: Task = "classification"
    layout: str = ""
    expected: Mapping[str, int] = {}
    constants: Literal["imagenet", "cifar"] = "imagenet"
    ordered: bool = False
    stored_severities: bool = False

    open_options: tuple[str, ...] = ()
    num_classes: int
    classes: Tensor | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Self:
        """Open the data set below `root`; a missing or wrong layout is a DataError."""
        return cls(root, **options)  # type: ignore[call-arg]

    @property
    def outputs(self) -> int:
        """How many logits a model for this data set has (1000 for ImageNet's 200-class parts)."""
        return self.num_classes

    @abstractmethod
    def domains(self) -> list[str]:
        """The names of the domains, in their usual order."""

    @abstractmethod
    def indices(self, domain: str, severity: int | None = None) -> Indices:
        """The positions of a domain's images, in stored order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def image(self, index: int) -> Tensor:
        """Decode one image: uint8, (3, H, W)."""

    @abstractmethod
    def label(self, index: int) -> int | Tensor:
        """The label: a class index without decoding anything, or a (H, W) map."""

    @abstractmethod
    def key(self, index: int) -> str:
        """A name that is the same on every machine and in every run."""

    def source_key(self, index: int) -> str:
        """The name of the picture itself, the same for all its stored corruptions."""
        return self.key(index)

    def absent(self) -> list[str]:
        """Files that should be there and are not, where opening did not look at each."""
        return []

    def content(self, index: int) -> bytes:
        """What to hash to find the same picture twice: the file's bytes, else the pixels."""
        return self.image(index).numpy().tobytes()

    def __getitem__(self, index: int) -> Item:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} images; there is no image {index}.")
        index %= len(self)
        return Item(self.image(index), self.label(index), self.key(index))

    def _no_domain(self, domain: str) -> DataError:
        return DataError(
            f"{self.name} has no domain {domain!r}. {did_you_mean(domain, self.domains())}"
        )


def open_dataset(name: str, root: str | Path, /, **options: Any) -> Dataset:
    """Open a registered data set by name.

    >>> open_dataset("imagenet-v3", ".")
    Traceback (most recent call last):
        ...
    ostinato.errors.UnknownName: There is no data set 'imagenet-v3'. Did you mean 'imagenet-v2'? ...
    """
    cls: type[Dataset] = DATASETS[name]
    known = (*inspect.signature(cls).parameters, *cls.open_options)
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known[1:])
            raise ConfigError(f"The data set {name!r} has no option {option!r}. {hint}")
    return cls.open(root, **options)


def check_severity(severity: int | None) -> int:
    """A severity from 1 to 5; None means 5, the one the literature prints.

    >>> check_severity(None), check_severity(3)
    (5, 3)
    """
    if severity is None:
        return 5
    if not 1 <= severity <= 5:
        raise ConfigError(f"severity = {severity}: choose from 1, 2, 3, 4, 5.")
    return severity


def as_image(array: NDArray[Any]) -> Tensor:
    """A picture (H, W, 3) or (3, H, W) as a uint8 tensor (3, H, W) of its own memory.

    >>> as_image(np.zeros((32, 32, 3), np.uint8)).shape
    torch.Size([3, 32, 32])
    """
    picture = np.array(array)
    if picture.shape[0] != 3 and picture.shape[-1] == 3:
        picture = np.moveaxis(picture, -1, 0)
    return torch.from_numpy(np.ascontiguousarray(picture))
