"""Street scenes with a label picture for every image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ostinato.data.datasets._files import decode_map, decode_rgb
from ostinato.data.datasets._spans import Spans
from ostinato.errors import DataError

CITYSCAPES_CLASSES = (
    "road",
    "sidewalk",
    "building",
    "wall",
    "fence",
    "pole",
    "traffic light",
    "traffic sign",
    "vegetation",
    "terrain",
    "sky",
    "person",
    "rider",
    "car",
    "truck",
    "bus",
    "train",
    "motorcycle",
    "bicycle",
)
"""The 19 classes of Cityscapes and ACDC in the order of their train ids."""


class Scenes(Spans):
    """A base: pairs of image and label files, grouped into domains; pixels labelled 255 are out."""

    task = "segmentation"
    ordered = True

    def _start(self, root: Path) -> None:
        self.root = root
        self._pairs: list[tuple[Path, Path]] = []
        self._keys: list[str] = []
        self._spans = {}

    def _add(self, domain: str, pairs: Sequence[tuple[Path, Path]], base: Path) -> None:
        for picture, labels in pairs:
            if not labels.is_file():
                raise DataError(
                    f"{labels} is missing: it should hold the labels of {picture.name}. Unpack "
                    f"the archive of labels into {self.root} as well."
                )
        start = len(self._pairs)
        self._pairs += pairs
        self._keys += [f"{self.name}/{p.relative_to(base).as_posix()}" for p, _ in pairs]
        self._spans[domain] = (start, len(self._pairs))

    def __len__(self) -> int:
        return len(self._pairs)

    def image(self, index: int) -> Tensor:
        """Decode one image."""
        return decode_rgb(self._pairs[index][0])

    def label(self, index: int) -> Tensor:
        """Decode one label picture: uint8 (H, W), 255 where nothing counts."""
        picture, path = self._pairs[index]
        labels = self._to_classes(decode_map(path), path)
        wrong = (labels >= self.num_classes) & (labels != 255)
        if bool(wrong.any()):
            raise DataError(
                f"{path} has label {int(labels[wrong][0])}, but {self.name} has the classes 0 to "
                f"{self.num_classes - 1} and 255. Use the train-id pictures, for {picture.name}."
            )
        return labels

    def _to_classes(self, labels: Tensor, path: Path) -> Tensor:
        return labels

    def key(self, index: int) -> str:
        """The image's path below the root."""
        return self._keys[index]

    def content(self, index: int) -> bytes:
        """The image file's bytes."""
        return self._pairs[index][0].read_bytes()

    def path(self, index: int) -> Path:
        """Where the image lies."""
        return self._pairs[index][0]
