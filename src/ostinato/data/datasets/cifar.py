"""CIFAR-10 and CIFAR-100 from their binary distribution: plain bytes, nothing is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from ostinato.data.datasets._files import locate, wrong_layout
from ostinato.data.datasets.base import Dataset, Indices, as_image
from ostinato.errors import ConfigError, DataError
from ostinato.registry import DATASETS

_PIXELS = 3 * 32 * 32


class _CifarBinary(Dataset):
    """A base for the binary versions: records of label bytes and 3072 pixel bytes."""

    constants = "cifar"
    ordered = True
    folder: ClassVar[str]
    files: ClassVar[dict[str, tuple[str, ...]]]
    names_file: ClassVar[str]
    label_bytes: ClassVar[int]

    def __init__(self, root: str | Path, split: Literal["test", "train"] = "test") -> None:
        if split not in self.files:
            raise ConfigError(f"split = {split!r}: choose 'test' or 'train'.")
        if split != "test":
            self.expected = {}
        found = locate(root, (self.folder, self.name), [self.files["test"][0]])
        if found is None:
            raise wrong_layout(self.name, root, self.layout, self.files["test"][0])
        self.root, self.split = found, split
        width = self.label_bytes + _PIXELS
        self._parts = [_records(found / file, width) for file in self.files[split]]
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self._labels = np.concatenate([part[:, self.label_bytes - 1] for part in self._parts])
        names = found / self.names_file
        if names.is_file():
            lines = names.read_text(encoding="utf-8").split("\n")
            self.class_names = tuple(line.strip() for line in lines if line.strip())

    def domains(self) -> list[str]:
        """One: the data set itself, uncorrupted."""
        return [self.name]

    def indices(self, domain: str, severity: int | None = None) -> Indices:
        """All images."""
        if domain != self.name:
            raise self._no_domain(domain)
        return np.arange(len(self), dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def image(self, index: int) -> Tensor:
        """Read one image."""
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        record = self._parts[part][index - self._starts[part]]
        return as_image(record[self.label_bytes :].reshape(3, 32, 32))

    def label(self, index: int) -> int:
        """The class index (the fine one of CIFAR-100)."""
        return int(self._labels[index])

    def key(self, index: int) -> str:
        """Split and number."""
        return f"{self.name}/{self.split}/{index:05d}"


@DATASETS.register("cifar10")
class Cifar10(_CifarBinary):
    """CIFAR-10, binary version; corruptions are made on the fly.

    >>> Cifar10.files["test"]
    ('test_batch.bin',)
    """

    layout = "cifar-10-batches-bin/test_batch.bin, data_batch_1.bin, ... (the binary version)"
    expected = {"cifar10": 10_000}
    folder = "cifar-10-batches-bin"
    files = {
        "test": ("test_batch.bin",),
        "train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
    }
    names_file = "batches.meta.txt"
    label_bytes = 1
    num_classes = 10


@DATASETS.register("cifar100")
class Cifar100(_CifarBinary):
    """CIFAR-100, binary version, fine labels; corruptions are made on the fly.

    >>> Cifar100.label_bytes  # the coarse label comes first
    2
    """

    layout = "cifar-100-binary/test.bin, train.bin (the binary version)"
    expected = {"cifar100": 10_000}
    folder = "cifar-100-binary"
    files = {"test": ("test.bin",), "train": ("train.bin",)}
    names_file = "fine_label_names.txt"
    label_bytes = 2
    num_classes = 100


def _records(path: Path, width: int) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"{path} is missing. Unpack the binary version of the archive again.")
    size = path.stat().st_size
    if size == 0 or size % width:
        raise DataError(
            f"{path} has {size} bytes, which is no whole number of {width}-byte records: the file "
            f"is truncated or not of the binary version. Delete it and fetch it again."
        )
    return np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, width)
