"""The package's own images in the place of the benchmark's data sets.

With `roots = "embedded"` every data set of the paper has a stand-in made of CIFAR-10 images, so
that a table's whole protocol runs without a download: the corruptions of ImageNet-C and
CIFAR-100-C on the test images, and four looks of them for ImageNet-V2, -A, -R and -Sketch, two
of which have a part of the classes only, as theirs have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import Dataset
from ostinato.data.datasets.imagenet_v2 import VARIANTS
from ostinato.data.embedded import CLASSES, embedded_images
from ostinato.data.mosaic import MOSAIC, clear_mosaics, street_mosaics, weather_mosaics
from ostinato.errors import DataError, did_you_mean

EMBEDDED = "embedded"
TUNE = "embedded-tune"
_PART = (0, 2, 3, 5, 7)
"""The classes of the stand-ins for ImageNet-A and -R, which have 200 of 1000."""
STAND_IN_NOTE = (
    "Small scale: CIFAR-10 images inside the package stand in for the data sets. The figures "
    "compare methods with one another, not with the printed rows."
)
LOOKS_NOTE = (
    "V2, A, R and S are looks of embedded images: three slightly dimmed variants; half-hidden "
    "objects in low contrast (5 of 10 classes); flat saturated colours (the same 5 classes); "
    "pencil strokes on white."
)


def _dimmed(images: Tensor, share: float) -> Tensor:
    """Pixels in [0, 1], a little darker: a new photographer, the same things."""
    return images * share


def _hidden(images: Tensor) -> Tensor:
    """Low contrast, and a grey bar over the lower third."""
    result = 0.5 * images + 0.25
    result[:, :, 2 * images.shape[2] // 3 :] = 0.5
    return result


def _rendition(images: Tensor) -> Tensor:
    """Flat, saturated colours: four levels a channel after smoothing."""
    smooth = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    grey = smooth.mean(1, keepdim=True)
    vivid = (grey + 2.0 * (smooth - grey)).clamp(0, 1)
    return (vivid * 3).round() / 3


def _sketch(images: Tensor) -> Tensor:
    """Dark strokes on white where brightness changes."""
    grey = F.pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across = grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2]
    down = grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1]
    return (1 - 2.0 * (across.square() + down.square()).sqrt()).clamp(0, 1).expand(-1, 3, -1, -1)


def _pixels(images: Tensor, look: Callable[[Tensor], Tensor]) -> Tensor:
    return (look(images.float() / 255) * 255).round().to(torch.uint8)


def _whole(name: str, split: str) -> Dataset:
    images, labels, _ = embedded_images("tune" if split == "tune" else "test")
    return ArrayDataset(images, labels, name=name, class_names=CLASSES, constants="cifar")


def _v2() -> Dataset:
    images, labels, _ = embedded_images("test")
    third = 100
    parts = [images[n * third : (n + 1) * third] for n in range(len(VARIANTS))]
    shades = (0.8, 1.0, 0.9)
    pictures = [_pixels(p, partial(_dimmed, share=s)) for p, s in zip(parts, shades, strict=True)]
    return ArrayDataset(
        torch.cat(pictures),
        labels[: third * len(VARIANTS)],
        [name for name in VARIANTS for _ in range(third)],
        name="imagenet-v2",
        class_names=CLASSES,
    )


def _look(name: str, look: Callable[[Tensor], Tensor], count: int, part: bool) -> Dataset:
    images, labels, _ = embedded_images("test")
    if part:
        kept = torch.isin(labels, torch.tensor(_PART))
        images, labels = images[kept], torch.tensor([_PART.index(i) for i in labels[kept].tolist()])
    return ArrayDataset(
        _pixels(images[:count], look),
        labels[:count],
        name=name,
        class_names=[CLASSES[i] for i in _PART] if part else CLASSES,
        classes=_PART if part else None,
        outputs=len(CLASSES),
    )


# Sizes in about the proportions of the originals: 30,000 / 7,500 / 30,000 / 50,889.
_MAKERS: dict[str, Callable[[], Dataset]] = {
    EMBEDDED: lambda: _whole(EMBEDDED, "test"),
    TUNE: lambda: _whole(TUNE, "tune"),
    "imagenet-c": lambda: _whole("imagenet-c", "test"),
    "cifar100-c": lambda: _whole("cifar100-c", "test"),
    "imagenet-v2": _v2,
    "imagenet-a": lambda: _look("imagenet-a", _hidden, 75, part=True),
    "imagenet-r": lambda: _look("imagenet-r", _rendition, 300, part=True),
    "imagenet-sketch": lambda: _look("imagenet-sketch", _sketch, 500, part=False),
    "acdc": weather_mosaics,
    "camvid": street_mosaics,
    MOSAIC: clear_mosaics,
}


@cache
def stand_in(name: str) -> Dataset:
    """The embedded images that take a data set's place; made once.

    >>> stand_in("imagenet-a").num_classes
    5
    """
    if name not in _MAKERS:
        hint = did_you_mean(name, _MAKERS)
        raise DataError(f"The package holds no stand-in for {name!r}. {hint}")
    return _MAKERS[name]()
