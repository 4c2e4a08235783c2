"""Batches of images from whatever a user has: a tensor, a DataLoader, an iterator, a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor

from ostinato.errors import InputError

Images = Tensor | Iterable[Any]
"""One tensor of images, or anything that gives batches or single images, labels beside or not."""

_PROCESSED = "pixel_values"
"""What Hugging Face's image processors call images that they have normalised."""
_NAMES = (_PROCESSED, "images", "image", "img", "x")


def image_batches(images: Images, size: int = 50) -> Iterator[tuple[Tensor, bool]]:
    """(B, C, H, W) batches, each with whether an image processor has normalised it.

    Batches may come alone, first in a pair with labels, or by name in a mapping; single images are
    gathered into batches of `size`.

    >>> [len(batch) for batch, _ in image_batches(torch.rand(5, 3, 4, 4), size=2)]
    [2, 2, 1]
    >>> pairs = [(torch.rand(3, 4, 4), 0)] * 3
    >>> [tuple(batch.shape) for batch, _ in image_batches(pairs, size=2)]
    [(2, 3, 4, 4), (1, 3, 4, 4)]
    """
    if isinstance(images, Tensor):
        yield from ((part, False) for part in images.split(size))
        return
    if hasattr(images, "__getitem__") and isinstance(images, Sized):  # a data set
        images = map(images.__getitem__, range(len(images)))
    if not isinstance(images, Iterable):
        raise InputError(
            f"Images are a tensor, a DataLoader or an iterator, not {type(images).__name__}."
        )
    single: list[Tensor] = []
    for item in images:
        batch, processed = _images_of(item)
        if batch.ndim == 4:
            yield batch, processed
            continue
        single.append(batch)
        if len(single) == size:
            yield torch.stack(single), processed
            single = []
    if single:
        yield torch.stack(single), processed


def _images_of(item: Any) -> tuple[Tensor, bool]:
    """The images in what a loader gave, and whether a processor normalised them."""
    processed = False
    if isinstance(item, Mapping):
        name = next((name for name in _NAMES if name in item), None)
        if name is None:
            known = ", ".join(map(str, item))
            raise InputError(f"No images among {known}: call them 'images' or 'pixel_values'.")
        item, processed = item[name], name == _PROCESSED
    elif isinstance(item, (tuple, list)) and item:
        item = item[0]
    if not isinstance(item, Tensor) or item.ndim not in (3, 4):
        what = f"shape {tuple(item.shape)}" if isinstance(item, Tensor) else type(item).__name__
        raise InputError(
            f"A loader should give images (batch, channels, height, width), alone or first in a "
            f"pair, not {what}. Pictures become tensors by a transform of the data set, such as "
            "torchvision's ToTensor."
        )
    return item, processed
