"""CIFAR-10-C and CIFAR-100-C: one npy array per corruption, read through memory maps."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ostinato.data.corruptions import COMMON, EXTRA
from ostinato.data.datasets._files import locate, wrong_layout
from ostinato.data.datasets.base import Dataset, Indices, as_image, check_severity
from ostinato.errors import DataError
from ostinato.registry import DATASETS


class _CifarC(Dataset):
    """A base: <corruption>.npy of (5 × N, 32, 32, 3), severity 1 first, and labels.npy."""

    layout = "gaussian_noise.npy, ..., labels.npy"
    constants = "cifar"
    ordered = True
    stored_severities = True
    folder: ClassVar[str]

    def __init__(self, root: str | Path) -> None:
        found = locate(root, (self.folder, self.name), ["labels.npy"])
        if found is None:
            raise wrong_layout(self.name, root, self.layout, "labels.npy")
        self.root = found
        labels = _load(found / "labels.npy")
        self._count = len(labels) // 5
        self._labels = labels[: self._count].astype(np.int64)
        names = [name for name in COMMON + EXTRA if (found / f"{name}.npy").is_file()]
        if not names:
            raise wrong_layout(self.name, found, self.layout, "gaussian_noise.npy")
        self._arrays = {name: self._open(name, len(labels)) for name in names}

    def _open(self, name: str, rows: int) -> NDArray[np.uint8]:
        array = _load(self.root / f"{name}.npy")
        if array.shape != (rows, 32, 32, 3):
            raise DataError(
                f"{self.root / f'{name}.npy'} has shape {array.shape}, but labels.npy asks for "
                f"{(rows, 32, 32, 3)}. Fetch the data set again."
            )
        return array

    def domains(self) -> list[str]:
        """The corruptions that are on disk, in the usual order."""
        return list(self._arrays)

    def indices(self, domain: str, severity: int | None = None) -> Indices:
        """The positions of one corruption's images at one severity (5 unless told)."""
        if domain not in self._arrays:
            raise self._no_domain(domain)
        block = self.domains().index(domain) * 5 + check_severity(severity) - 1
        return np.arange(self._count, dtype=np.int64) + block * self._count

    def __len__(self) -> int:
        return len(self._arrays) * 5 * self._count

    def _locate(self, index: int) -> tuple[str, int]:
        domain, row = divmod(index, 5 * self._count)
        return self.domains()[domain], row

    def image(self, index: int) -> Tensor:
        """Read one image."""
        domain, row = self._locate(index)
        return as_image(self._arrays[domain][row])

    def label(self, index: int) -> int:
        """The class index."""
        return int(self._labels[index % self._count])

    def key(self, index: int) -> str:
        """Corruption, severity and number."""
        domain, row = self._locate(index)
        return f"{self.name}/{domain}/{row // self._count + 1}/{row % self._count:05d}"

    def source_key(self, index: int) -> str:
        """The test image's number."""
        return f"{self.name}/{index % self._count:05d}"


@DATASETS.register("cifar10-c")
class Cifar10C(_CifarC):
    """CIFAR-10-C: 10,000 test images a corruption and severity.

    >>> Cifar10C.folder
    'CIFAR-10-C'
    """

    expected = dict.fromkeys(COMMON, 10_000)
    folder = "CIFAR-10-C"
    num_classes = 10


@DATASETS.register("cifar100-c")
class Cifar100C(_CifarC):
    """CIFAR-100-C: 10,000 test images a corruption and severity.

    >>> Cifar100C.folder
    'CIFAR-100-C'
    """

    expected = dict.fromkeys(COMMON, 10_000)
    folder = "CIFAR-100-C"
    num_classes = 100


def _load(path: Path) -> NDArray[np.uint8]:
    try:
        array: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): the file is truncated or no npy array. "
            f"Delete it and fetch the data set again."
        ) from None
    return array
