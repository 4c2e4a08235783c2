"""Images already in memory, or in one npz file: for embedded sets, notebooks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.data.datasets.base import IGNORE, Dataset, Indices, as_image
from ostinato.errors import DataError
from ostinato.registry import DATASETS


@DATASETS.register("array")
class ArrayDataset(Dataset):
    """uint8 images (N, 3, H, W) or (N, H, W, 3) with labels, and a domain per image if wanted.

    >>> data = ArrayDataset(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), [0, 1, 0, 1])
    >>> len(data), data.num_classes, data.domains(), data[3].key
    (4, 2, ['array'], 'array/00003')
    """

    layout = "an npz file with the arrays 'images' (uint8) and 'labels'"
    ordered = True

    def __init__(
        self,
        images: Tensor | NDArray[Any],
        labels: Tensor | NDArray[Any] | Sequence[int],
        domains: Sequence[str] | None = None,
        *,
        name: str = "array",
        class_names: Sequence[str] = (),
        num_classes: int | None = None,
        classes: Sequence[int] | Tensor | None = None,
        outputs: int | None = None,
        constants: Literal["imagenet", "cifar"] = "imagenet",
    ) -> None:
        self._images = images.cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
        self._labels = torch.as_tensor(np.asarray(labels))
        self._check(self._images.shape, self._images.dtype)
        self.name = name
        self.task = "classification" if self._labels.ndim == 1 else "segmentation"
        self.constants = constants
        self._domains = list(domains) if domains is not None else [name] * len(self._images)
        if len(self._domains) != len(self._images):
            raise DataError(f"{len(self._images)} images but {len(self._domains)} domain names.")
        self.classes = None if classes is None else torch.as_tensor(classes, dtype=torch.long)
        self.class_names = tuple(class_names)
        self.num_classes = num_classes or len(class_names) or self._count_classes()
        self._outputs = outputs
        self._check_maps()

    def _check(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if len(shape) != 4 or 3 not in (shape[1], shape[3]):
            raise DataError(f"images should be (N, 3, H, W) or (N, H, W, 3), not {shape}.")
        if dtype != np.uint8:
            raise DataError(f"images should be uint8 (0 to 255), not {dtype}: convert them first.")
        if len(self._labels) != shape[0]:
            raise DataError(f"{shape[0]} images but {len(self._labels)} labels.")

    def _check_maps(self) -> None:
        """Per-pixel classes are few enough to look at each before anything runs."""
        if self.task == "classification":
            return
        if self._labels.ndim != 3:
            shape = tuple(self._labels.shape)
            raise DataError(f"labels should be (N,) or (N, H, W), not {shape}.")
        known = self._labels[self._labels != IGNORE]
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < self.num_classes:
            raise DataError(
                f"The label maps of {self.name} have classes from {int(known.min())} to "
                f"{int(known.max())}; there are the classes 0 to {self.num_classes - 1}, and "
                f"{IGNORE} for pixels that do not count."
            )

    def _count_classes(self) -> int:
        if self.classes is not None:
            return len(self.classes)
        counted = (
            self._labels[self._labels != IGNORE] if self.task == "segmentation" else self._labels
        )
        return int(counted.max()) + 1 if counted.numel() else 0

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Self:
        """Read an npz file with `images`, `labels` and perhaps `domains` and `class_names`."""
        path = Path(root)
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
            images, labels = arrays["images"], arrays["labels"]
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} is no readable npz file ({error}).") from None
        except KeyError as error:
            raise DataError(f"{path} has no array {error}; expected {cls.layout}.") from None
        for extra in ("domains", "class_names"):
            if extra in arrays:
                options.setdefault(extra, [str(value) for value in arrays[extra]])
        return cls(images, labels, **options)

    @property
    def outputs(self) -> int:
        """How many logits a model for these images has."""
        if self._outputs is not None:
            return self._outputs
        return self.num_classes if self.classes is None else int(self.classes.max()) + 1

    def domains(self) -> list[str]:
        """The names of the domains, in order of appearance."""
        return list(dict.fromkeys(self._domains))

    def indices(self, domain: str, severity: int | None = None) -> Indices:
        """The positions of a domain's images."""
        found = np.flatnonzero(np.array([name == domain for name in self._domains]))
        if not len(found):
            raise self._no_domain(domain)
        return found.astype(np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int) -> Tensor:
        """One image."""
        return as_image(self._images[index])

    def label(self, index: int) -> int | Tensor:
        """One label."""
        value = self._labels[index]
        return int(value) if value.ndim == 0 else value

    def key(self, index: int) -> str:
        """Name and number."""
        return f"{self.name}/{index:05d}"
