"""Resizing and cropping by name. Normalisation is the model's business and is not done here.

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
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor

from ostinato.errors import ConfigError, InputError, did_you_mean

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


def transform_labels(name: str, labels: Tensor) -> Tensor:
    """The same geometry for a uint8 label picture (H, W): nearest, so that no class is invented.

    >>> transform_labels("half", torch.full((4, 6), 255, dtype=torch.uint8)).shape
    torch.Size([2, 3])
    """
    found = _find(check_transform(name))
    if found is None:
        return labels
    picture = Image.fromarray(np.ascontiguousarray(labels.to(torch.uint8).numpy()))
    return torch.from_numpy(np.array(found[0](picture, Resampling.NEAREST)))
