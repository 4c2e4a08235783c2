"""From rows of a plan to tensors: decode, resize and corrupt, each image on its own terms.

Resizing and cropping go by name. Normalisation is the model's business and is not done here.

| name                 | what it does                                                              |
|----------------------|---------------------------------------------------------------------------|
| `none`               | nothing (ImageNet-C images are 224 px already)                            |
| `resize256-crop224`  | short side to 256, bicubic; centre crop of 224: the literature's; other   |
|                      | numbers likewise, up to 2048                                              |
| `resize224`          | whole image to 224 × 224, bicubic                                         |
| `resize384-bilinear` | whole image to 384 × 384, bilinear: CIFAR in the literature's ViT-B/16    |
| `half`               | half the width and height, 2 × 2 means (1920 × 1080 → 960 × 540): ACDC's; |
|                      | the mean is what bilinear sampling gives at a factor of two               |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor

from ostinato.data.datasets.base import Item
from ostinato.data.segments import Domain, stable_hash
from ostinato.errors import ConfigError, DataError, InputError, did_you_mean

_Row = tuple[Domain, int]
_Constants = Literal["imagenet", "cifar"]


class Corrupt(Protocol):
    """What `ostinato.data.corruptions.corrupt` offers, and what may stand in for it."""

    def __call__(
        self,
        images: Tensor,
        name: str,
        severity: int,
        seeds: Sequence[int],
        *,
        constants: _Constants,
    ) -> Tensor:
        """Corrupt a batch of uint8 images, each from its own seed."""


def load_batch(
    rows: Sequence[_Row],
    *,
    transform: str = "none",
    seed: int = 0,
    corrupt: Corrupt | None = None,
    resize_labels: bool = False,
    workers: int = 0,
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Load images (B, 3, H, W) uint8, labels int64 and names.

    Corruptions are made where their published constants hold: CIFAR's at the stored 32 px, before
    resizing; all others at the size the model gets, as ImageNet-C was made. Each image's seed
    comes from its name, so that neither its neighbours nor the batch size matter.
    """
    items = _decode(rows, workers)
    for item in items:
        _check_frame(item, transform, resize_labels)
    small = [n for n, (domain, _) in enumerate(rows) if domain.dataset.constants == "cifar"]
    large = [n for n, (domain, _) in enumerate(rows) if domain.dataset.constants != "cifar"]
    images = [item.image for item in items]
    _corrupt_in_place(images, rows, small, seed, corrupt)
    images = [transform_image(transform, image) for image in images]
    _corrupt_in_place(images, rows, large, seed, corrupt)
    labels = [_label(item, transform if resize_labels else "none") for item in items]
    names = tuple(item.key for item in items)
    return _stack(images, names, "image"), _stack(labels, names, "label map"), names


def _image_seed(key: str, seed: int) -> int:
    """The seed of one image's corruption, from its name and the stream's seed.

    >>> _image_seed("cifar10/test/00000", 0) == _image_seed("cifar10/test/00000", 0)
    True
    """
    return stable_hash(f"corruption/{key}", seed)


def _decode(rows: Sequence[_Row], workers: int) -> list[Item]:
    def one(row: _Row) -> Item:
        return row[0].dataset[row[1]]

    if workers <= 1:
        return [one(row) for row in rows]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, rows))


def _corrupt_in_place(
    images: list[Tensor],
    rows: Sequence[_Row],
    chosen: Sequence[int],
    seed: int,
    corrupt: Corrupt | None,
) -> None:
    """Corrupt the chosen images, those of one corruption, severity and size together."""
    groups: dict[tuple[str, int, _Constants, torch.Size], list[int]] = {}
    for n in chosen:
        domain = rows[n][0]
        if domain.corruption is not None:
            kind = (domain.corruption, domain.severity, domain.dataset.constants, images[n].shape)
            groups.setdefault(kind, []).append(n)
    for (name, severity, constants, _), members in groups.items():
        apply = corrupt if corrupt is not None else _default_corrupt()
        batch = torch.stack([images[n] for n in members])
        seeds = [_image_seed(rows[n][0].dataset.source_key(rows[n][1]), seed) for n in members]
        changed = apply(batch, name, severity, seeds, constants=constants)
        for n, image in zip(members, changed, strict=True):
            images[n] = image


def _default_corrupt() -> Corrupt:
    from ostinato.data.corruptions import corrupt

    return corrupt


def _check_frame(item: Item, transform: str, resize_labels: bool) -> None:
    """A label map may have another resolution than its image, but must show the same frame."""
    if not isinstance(item.label, Tensor):
        return
    if item.label.ndim != 2:
        raise DataError(f"The label map of {item.key} is {tuple(item.label.shape)}, not (H, W).")
    (h, w), (height, width) = item.label.shape, item.image.shape[-2:]
    # Either side may have been rounded when one of the two was resized.
    slack = 1 / min(h, height) + 1 / min(w, width)
    if abs((h / height) / (w / width) - 1) > slack:
        raise DataError(
            f"The label map of {item.key} is {h}×{w}, its image {height}×{width}: the shapes "
            "differ, so these are not labels of this frame. A label map may be larger or smaller "
            "than its image, but has to cover the same part of the scene."
        )
    if "crop" in transform and not resize_labels:
        raise ConfigError(
            f"transform = {transform!r} cuts the image, so its label map no longer fits: set "
            "resize_labels = true, or choose transform = 'none' or 'half'."
        )


def _label(item: Item, transform: str) -> Tensor:
    if isinstance(item.label, Tensor):
        return _transform_labels(transform, item.label).long()
    return torch.tensor(item.label, dtype=torch.long)


def _stack(tensors: Sequence[Tensor], names: Sequence[str], what: str) -> Tensor:
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.shape != tensors[0].shape:
            raise DataError(
                f"The {what} of {name} is {tuple(tensor.shape)}, that of {names[0]} in the same "
                f"batch {tuple(tensors[0].shape)}. Choose a transform that makes them equal, such "
                f"as transform = 'resize256-crop224', or batch_size = 1."
            )
    return torch.stack(list(tensors))


_Picture = Image.Image
_Resize = Callable[[_Picture, Resampling], _Picture]


def _resize_crop(short: int, crop: int) -> _Resize:
    def apply(picture: _Picture, how: Resampling) -> _Picture:
        width, height = picture.size
        scaled = (
            (short, int(short * height / width))
            if width <= height
            else (int(short * width / height), short)
        )
        if scaled != picture.size:
            picture = picture.resize(scaled, how)
        left = round((scaled[0] - crop) / 2.0)
        top = round((scaled[1] - crop) / 2.0)
        return picture.crop((left, top, left + crop, top + crop))

    return apply


def _square(side: int) -> _Resize:
    def apply(picture: _Picture, how: Resampling) -> _Picture:
        return picture if picture.size == (side, side) else picture.resize((side, side), how)

    return apply


def _half(picture: _Picture, how: Resampling) -> _Picture:
    if min(picture.size) < 2:
        raise InputError(f"An image of {picture.size} cannot be halved: use transform = 'none'.")
    width, height = picture.width // 2, picture.height // 2
    if how is Resampling.BOX:  # the mean of 2 × 2 pixels, rounded once (resize rounds twice)
        return picture.reduce(2, (0, 0, 2 * width, 2 * height))
    return picture.resize((width, height), how)


_TRANSFORMS: dict[str, tuple[_Resize, Resampling] | None] = {
    "none": None,
    "resize256-crop224": (_resize_crop(256, 224), Resampling.BICUBIC),
    "resize224": (_square(224), Resampling.BICUBIC),
    "resize384-bilinear": (_square(384), Resampling.BILINEAR),
    "half": (_half, Resampling.BOX),
}
"""By name; beside these there is resizeN-cropM."""
_CROP = re.compile(r"resize(\d{2,4})-crop(\d{2,4})")
_LARGEST = 2048


def _find(name: str) -> tuple[_Resize, Resampling] | None:
    """What a name stands for; a KeyError where it stands for nothing."""
    sizes = _CROP.fullmatch(name)
    if name not in _TRANSFORMS and sizes:
        short, crop = int(sizes[1]), int(sizes[2])
        if crop <= short <= _LARGEST:
            return _resize_crop(short, crop), Resampling.BICUBIC
    return _TRANSFORMS[name]


def check_transform(name: str) -> str:
    """The name, if it is one; otherwise an error with the nearest.

    >>> check_transform("resize256")
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: There is no transform 'resize256'. Did you mean 'resize224'? ...
    """
    try:
        _find(name)
    except KeyError:
        hint = did_you_mean(name, _TRANSFORMS)
        raise ConfigError(f"There is no transform {name!r}. {hint}") from None
    return name


def transform_image(name: str, image: Tensor) -> Tensor:
    """Resize one uint8 image (3, H, W) as PIL does, which is what published numbers rest on.

    >>> transform_image("half", torch.zeros(3, 1080, 1920, dtype=torch.uint8)).shape
    torch.Size([3, 540, 960])
    """
    found = _find(check_transform(name))
    if found is None:
        return image
    resize, how = found
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.array(resize(picture, how))).permute(2, 0, 1).contiguous()


def _transform_labels(name: str, labels: Tensor) -> Tensor:
    """The same geometry for a uint8 label picture (H, W): nearest, so that no class is invented.

    >>> _transform_labels("half", torch.full((4, 6), 255, dtype=torch.uint8)).shape
    torch.Size([2, 3])
    """
    found = _find(check_transform(name))
    if found is None:
        return labels
    picture = Image.fromarray(np.ascontiguousarray(labels.to(torch.uint8).numpy()))
    return torch.from_numpy(np.array(found[0](picture, Resampling.NEAREST)))
