"""Small made-up trees in the real layouts: to try a reader or a spec before a long download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ostinato.data.corruptions import COMMON
from ostinato.data.datasets.imagenet_v2 import VARIANTS
from ostinato.data.datasets.labelled import wordnet_ids


def picture(path: Path, value: int = 0, size: tuple[int, int] = (16, 16)) -> Path:
    """Write a picture of noise; the same value gives the same pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def label_map(path: Path, values: NDArray[Any]) -> Path:
    """Write a picture of class numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)
    return path


def wordnet_tree(root: Path, columns: list[int], each: int = 1, suffix: str = ".jpg") -> Path:
    """root/<WordNet id>/<number> for the given columns of the 1000 logits."""
    ids = wordnet_ids()
    for column in columns:
        for number in range(each):
            picture(root / ids[column] / f"{number}{suffix}", value=column * 100 + number)
    return root


def part_columns(offset: int = 3) -> list[int]:
    """200 of the 1000 classes, evenly spread.

    >>> len(set(part_columns())), part_columns()[:3]
    (200, [3, 8, 13])
    """
    return [(offset + 5 * n) % 1000 for n in range(200)]


def v2_tree(root: Path, classes: tuple[int, ...] = (0, 1, 2, 10, 999), shared: int = 0) -> Path:
    """Three variants; the first `shared` classes hold the same picture in the first two."""
    for number, folder in enumerate(VARIANTS.values()):
        for position, label in enumerate(classes):
            same = position < shared and number < 2
            value = label if same else 1000 * (number + 1) + label
            picture(root / folder / str(label) / f"{number}-{label}.png", value=value)
    return root


def imagenet_c_tree(
    root: Path, names: tuple[str, ...] = COMMON, severities: tuple[int, ...] = (1, 5), each: int = 3
) -> Path:
    """A few validation images of two classes whose numbers interleave."""
    ids = wordnet_ids()
    for c, name in enumerate(names):
        for severity in severities:
            for number in range(each * 2):
                place = root / name / str(severity) / ids[7 if number % 2 else 400]
                file = place / f"ILSVRC2012_val_{number:08d}.JPEG"
                picture(file, value=c * 1000 + severity * 100 + number)
    return root


def cifar_c_tree(root: Path, names: tuple[str, ...] = COMMON, count: int = 6) -> Path:
    """One array a corruption, `count` images a severity, and labels.npy."""
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    labels = np.tile(np.arange(count) % 10, 5)
    np.save(root / "labels.npy", labels)
    for name in names:
        pixels = draw.integers(0, 256, (5 * count, 32, 32, 3), dtype=np.uint8)
        np.save(root / f"{name}.npy", pixels)
    return root


def acdc_tree(root: Path, split: str = "train", each: int = 2) -> Path:
    """Four conditions of one drive each; the first pixel of every label picture is 255."""
    for n, condition in enumerate(("fog", "night", "rain", "snow")):
        for number in range(each):
            drive, stem = f"GOPR{n:04d}", f"GOPR{n:04d}_frame_{number:06d}"
            inner = Path(condition) / split / drive
            picture(root / "rgb_anon" / inner / f"{stem}_rgb_anon.png", n * 10 + number, (16, 8))
            values = np.full((8, 16), number)
            values[0, 0] = 255
            label_map(root / "gt" / inner / f"{stem}_gt_labelTrainIds.png", values)
    return root
