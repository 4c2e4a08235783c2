"""JPEG compression: what the codec loses, on every device the same to the last bit.

On a CPU, Pillow writes and reads a file in memory. Elsewhere torch does what its codec does, in
the same whole numbers: colour conversion, 2×2 chroma averages, the 8×8 cosine transform (the slow
integer one), quantisation with the standard tables, and back with triangle-filtered chroma.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption, image_keys

# The tables of the JPEG standard's annex K, for luma and chroma at quality 50.
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# The first half of every wave of the cosine transform, in units of 2^-13 / sqrt(8); the second half
# mirrors it, in odd waves with the other sign. The codec adds up rounded factors, hence 10703 here
# and 10704 there.
_WAVES = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
_HALF = 1 << 15


@lru_cache(maxsize=32)
def _quantisation(quality: int, chroma: bool, device: torch.device) -> Tensor:
    """The 8×8 divisors at a quality from 1 to 100."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = torch.tensor(_CHROMA if chroma else _LUMA)
    return ((table * scale + 50) // 100).clamp(1, 255).double().to(device)


@lru_cache(maxsize=4)
def _waves(device: torch.device) -> Tensor:
    """(8 waves, 8 pixels) of the cosine transform; doubles hold its products without rounding."""
    half = torch.tensor(_WAVES, dtype=torch.float64, device=device)
    sign = torch.tensor((1.0, -1.0) * 4, dtype=torch.float64, device=device)
    return torch.cat((half, half.flip(1) * sign[:, None]), 1)


def _lossy(plane: Tensor, table: Tensor) -> Tensor:
    """(B, H, W) levels through transform, quantisation and back, in blocks of 8×8."""
    height, width = plane.shape[1:]
    whole = _within(plane, _upto(height, 8), _upto(width, 8))
    grid = whole.unflatten(2, (-1, 8)).unflatten(1, (-1, 8)).transpose(2, 3)
    waves = _twice(grid.double().sub_(128), _waves(plane.device).T, 11, 15)
    # They are eight times too large, and rows have become columns until the way back.
    step = table.T * 8
    kept = torch.div(waves.abs() + step / 2, step, rounding_mode="floor").copysign_(waves)
    back = _twice(kept.mul_(table.T), _waves(plane.device), 11, 18).add_(128).clamp_(0, 255)
    return back.int().transpose(2, 3).flatten(3).flatten(1, 2)[:, :height, :width]


def _twice(blocks: Tensor, matrix: Tensor, first: int, second: int) -> Tensor:
    """Along rows, then along columns, each divided by a power of two; the result is transposed."""
    rows = _shifted(blocks @ matrix, first)
    return _shifted(rows.mT.contiguous() @ matrix, second)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Divided by 2^bits in place, to the nearest whole number, halves upwards."""
    return x.add_(1 << (bits - 1)).mul_(0.5**bits).floor_()


def _within(x: Tensor, rows: range, columns: range) -> Tensor:
    """These rows and columns of a plane, whose border repeats outside."""
    for dim, places in ((-2, rows), (-1, columns)):
        index = torch.arange(places.start, places.stop, device=x.device)
        x = x.index_select(dim, index.clamp_(0, x.shape[dim] - 1))
    return x


def _upto(size: int, step: int) -> range:
    """Places from 0 to the next multiple of `step`."""
    return range(-(-size // step) * step)


def _halve(plane: Tensor) -> Tensor:
    """2×2 means, rounded down and up in turn along a row."""
    total = plane[:, ::2] + plane[:, 1::2]
    total = total[..., ::2] + total[..., 1::2]
    bias = torch.arange(total.shape[-1], dtype=torch.int32, device=plane.device) % 2 + 1
    return (total + bias) >> 2


def _double(plane: Tensor) -> Tensor:
    """Twice the size by the triangle filter: 3/4 of the nearer pixel, 1/4 of the farther."""
    height, width = plane.shape[1:]
    wide = _within(plane, range(-1, height + 1), range(-1, width + 1))
    near = wide[:, 1:-1] * 3
    rows = torch.stack((near + wide[:, :-2], near + wide[:, 2:]), 2).flatten(1, 2)
    near = rows[..., 1:-1] * 3
    pair = (near + rows[..., :-2] + 8, near + rows[..., 2:] + 7)
    return torch.stack(pair, 3).flatten(2) >> 4


def _planes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Luma of uint8 images and both chromas, halved; products are in units of 2^-16."""
    red, green, blue = x.int().unbind(1)
    luma = (19595 * red + 38470 * green + 7471 * blue + _HALF) >> 16
    middle = (128 << 16) + _HALF - 1
    cb = (-11059 * red - 21709 * green + 32768 * blue + middle) >> 16
    cr = (32768 * red - 27439 * green - 5329 * blue + middle) >> 16
    height, width = x.shape[-2:]
    # Below an even height the codec repeats halved rows, to the right it halves repeated columns.
    return luma, _halve(_within(torch.cat((cb, cr)), _upto(height, 2), _upto(width, 16)))


def _by_operators(x: Tensor, quality: int) -> Tensor:
    """(B, 3, H, W) uint8 after baseline JPEG with halved chroma, in torch on any device."""
    height, width = x.shape[-2:]
    luma, chroma = _planes(x)
    luma = _lossy(luma, _quantisation(quality, False, x.device))
    chroma = _lossy(chroma, _quantisation(quality, True, x.device))[..., : (width + 1) // 2]
    cb, cr = _double(chroma)[:, :height, :width].sub(128).chunk(2)
    red = luma + ((91881 * cr + _HALF) >> 16)
    green = luma + ((-22554 * cb - 46802 * cr + _HALF) >> 16)
    blue = luma + ((116130 * cb + _HALF) >> 16)
    return torch.stack((red, green, blue), 1).clamp_(0, 255).to(torch.uint8)


def _by_codec(x: Tensor, quality: int) -> Tensor:
    """The same by Pillow, for images in the CPU's memory."""
    out = torch.empty(x.shape, dtype=torch.uint8)
    for image, made in zip(x.numpy(), out.numpy().reshape(*x.shape[:2], -1), strict=True):
        file = io.BytesIO()
        # Pillow is faster than torch at putting planes together and taking them apart.
        whole = Image.merge("RGB", [Image.fromarray(plane) for plane in image])
        whole.save(file, "JPEG", quality=quality)
        decoded = Image.open(file, formats=["JPEG"])
        for plane, band in zip(made, "RGB", strict=True):
            plane[:] = np.frombuffer(decoded.tobytes("raw", band), np.uint8)
    return out


@lru_cache(maxsize=1)
def _codec_agrees() -> bool:
    """Whether this machine's Pillow does what the operators do; it may be built with another codec.

    Noise of odd size meets every wave, every kind of rounding and both borders.
    """
    noise = Draws(image_keys([0], "jpeg_compression", 1)).words(0, (3, 61, 75))
    probe = (noise >> 8).to(torch.uint8)
    try:
        return all(torch.equal(_by_codec(probe, q), _by_operators(probe, q)) for q in (7, 50, 80))
    except OSError:  # built without JPEG
        return False


@corruption("digital", imagenet=(25, 18, 15, 10, 7), cifar=(80, 65, 58, 50, 40), random=False)
def jpeg_compression(x: Tensor, c: int, draws: Draws) -> Tensor:
    """What is left after baseline JPEG at quality c with halved chroma."""
    if x.device.type == "cpu" and _codec_agrees():
        return _by_codec(x, c)
    return _by_operators(x, c)
