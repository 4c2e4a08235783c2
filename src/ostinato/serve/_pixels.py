"""Images out of requests: looked at before they are decoded, and resized for the model."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling
from torch import Tensor, nn

from ostinato.errors import InputError
from ostinato.models import image_size
from ostinato.ops.views import innermost

FORMATS = ("JPEG", "PNG", "WEBP")
NPY = b"\x93NUMPY"
HEADER = 512
"""Bytes that the header of an npy file may take."""
Part: TypeAlias = bytes | bytearray | memoryview
"""A file of a request, as it came."""


class TooLarge(InputError):
    """More than a limit allows."""


@dataclass(frozen=True)
class Fit:
    """How pictures are made to fit the model.

    Attributes:
        side: of the model's square input; None leaves pictures as they are.
        crop: share of the resized picture's short side that is kept.
    """

    side: int | None
    crop: float = 1.0

    @classmethod
    def of(cls, model: nn.Module, side: int | None, *, dense: bool) -> Fit:
        """By the model's own convention; a segmenter takes pictures as they are."""
        config = getattr(innermost(model), "pretrained_cfg", None) or {}
        if side is None and not dense:
            side = image_size(model)[-1]
        return cls(side, float(config.get("crop_pct") or 1.0))

    def apply(self, picture: Image.Image) -> Image.Image:
        """Short side to size, centre crop."""
        if self.side is None or picture.size == (self.side, self.side):
            return picture
        short = max(self.side, round(self.side / self.crop))
        scale = short / min(picture.size)
        width, height = (max(self.side, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Resampling.BICUBIC)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        return picture.crop((left, top, left + self.side, top + self.side))


def decode(parts: Sequence[Part], fit: Fit, *, pixels: int, images: int) -> Tensor:
    """(B, 3, H, W) in uint8 from encoded pictures or npy tensors, all of one size.

    Args:
        parts: files as they came; a tensor's own numbers are not copied out of its bytearray.
        fit: resizing of pictures; npy tensors have the model's size already.
        pixels: of one image at most.
        images: in all at most.

    >>> stream = io.BytesIO()
    >>> np.save(stream, np.zeros((2, 3, 8, 8), np.uint8))
    >>> decode([stream.getvalue()], Fit(8), pixels=64, images=2).shape
    torch.Size([2, 3, 8, 8])
    """
    if not parts:
        raise InputError("There is no image in the request.")
    found, total = [], 0
    for part in parts:
        if is_npy(part):
            tensor = _npy(part, fit, pixels, images - total)
        else:
            tensor = _picture(part, fit, pixels)
        total += len(tensor)
        if total > images:
            raise TooLarge(f"At most {images} images a request: send them in several.")
        found.append(tensor)
    sizes = {tuple(one.shape[1:]) for one in found}
    if len(sizes) > 1:
        raise InputError("The images of a request have one size: send others by themselves.")
    return found[0] if len(found) == 1 else torch.cat(found)


def is_npy(part: Part) -> bool:
    """Whether a file is a tensor, and no picture."""
    return bytes(part[: len(NPY)]) == NPY


def digest(levels: Tensor) -> str:
    """Which images these are.

    >>> digest(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))[:8]
    '...'
    """
    total = hashlib.blake2b(str(tuple(levels.shape)).encode(), digest_size=16)
    total.update(levels.contiguous().numpy().data)
    return total.hexdigest()


def _picture(data: Part, fit: Fit, pixels: int) -> Tensor:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sizes are checked here, not by Pillow
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > pixels:
                    raise TooLarge(
                        f"The image has {width}×{height} pixels; at most {pixels} are taken."
                    )
                if fit.side is not None:
                    picture.draft("RGB", (2 * fit.side, 2 * fit.side))
                array = np.array(fit.apply(picture.convert("RGB")))
    except TooLarge:
        raise
    except Image.DecompressionBombError:
        raise TooLarge("The image has too many pixels.") from None
    except Exception as error:  # whatever Pillow's readers make of hostile bytes
        raise InputError(
            f"An image cannot be read ({type(error).__name__}): send JPEG, PNG, WebP or npy."
        ) from None
    return torch.from_numpy(array).permute(2, 0, 1)[None].contiguous()


def _npy(data: Part, fit: Fit, pixels: int, left: int) -> Tensor:
    shape, start = _npy_header(data)
    if len(shape) == 3:
        shape = (1, *shape)
    if len(shape) != 4 or shape[1] != 3 or min(shape) < 1:
        raise InputError("A tensor is (images, 3, height, width) or (3, height, width), uint8.")
    if shape[0] > left or shape[2] * shape[3] > pixels:
        raise TooLarge(f"The tensor {shape} has more images or pixels than are taken.")
    if fit.side is not None and shape[2:] != (fit.side, fit.side):
        raise InputError(f"Here a tensor's images are {fit.side}×{fit.side}: resize, or send JPEG.")
    count = int(np.prod(shape))
    if len(data) - start != count:
        raise InputError(f"The tensor has {len(data) - start} bytes where {count} are announced.")
    array = np.frombuffer(data, np.uint8, count, start).reshape(shape)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _npy_header(data: Part) -> tuple[tuple[int, ...], int]:
    """Shape, and where the numbers begin; nothing is unpickled, no object type is taken."""
    try:
        head = io.BytesIO(data[: HEADER + 16])
        version = np.lib.format.read_magic(head)
        if version != (1, 0):
            raise InputError("Save tensors as npy of version 1, as numpy does.")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head, max_header_size=HEADER)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"The npy tensor cannot be read ({type(error).__name__}).") from None
    if dtype != np.uint8 or fortran or any(side > 2**31 for side in shape):
        raise InputError("A tensor is uint8, in C order: tensor.numpy() of a contiguous one.")
    return tuple(int(side) for side in shape), head.tell()
