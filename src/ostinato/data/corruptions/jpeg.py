"""JPEG compression in torch: what the codec loses, without writing a file.

Colour conversion, 2×2 chroma averages, the 8×8 cosine transform, quantisation with the standard
tables, and back with triangle-filtered chroma. The transforms are products of whole numbers, as in
integer codecs, so that float32 sums are exact and their order cannot matter.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.data.corruptions._core import corruption
from ostinato.data.corruptions._random import Draws

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
_FORWARD, _BACK = 1 << 14, 1 << 12


@lru_cache(maxsize=32)
def quantisation(quality: int, chroma: bool, device: torch.device) -> Tensor:
    """The 8×8 divisors at a quality from 1 to 100."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = torch.tensor(_CHROMA if chroma else _LUMA)
    return ((table * scale + 50) // 100).clamp(1, 255).float().to(device)


@lru_cache(maxsize=4)
def _waves(scale: int, device: torch.device) -> Tensor:
    """(64 pixels, 64 frequencies) of the 8×8 cosine transform, as whole multiples of 1/scale."""
    rows = [
        [
            math.cos((2 * x + 1) * u * math.pi / 16) * math.sqrt((2 if u else 1) / 8)
            for x in range(8)
        ]
        for u in range(8)
    ]
    cosines = torch.tensor(rows, dtype=torch.float64)
    return (torch.kron(cosines, cosines).T * scale).round().float().contiguous().to(device)


@lru_cache(maxsize=32)
def _order(shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where rows of eight pixels go when planes become blocks, and when blocks become planes.

    Copying whole rows of eight by their numbers is several times as fast as a transposed copy.
    """
    batch, height, width = shape
    rows = torch.arange(batch * height * width // 8)
    there = rows.view(batch, height // 8, 8, width // 8).transpose(2, 3).reshape(-1)
    return there.to(device), there.argsort().to(device)


def _to_blocks(plane: Tensor) -> Tensor:
    """(B, H, W) to (blocks, 64)."""
    return plane.reshape(-1, 8).index_select(0, _order(plane.shape, plane.device)[0]).view(-1, 64)


def _from_blocks(blocks: Tensor, shape: torch.Size) -> Tensor:
    return blocks.reshape(-1, 8).index_select(0, _order(shape, blocks.device)[1]).view(shape)


def _lossy(luma: Tensor, chroma: Tensor, quality: int) -> tuple[Tensor, Tensor]:
    """Planes of levels through transform, quantisation and back."""
    device = luma.device
    bright, dull = _to_blocks(luma), _to_blocks(chroma)
    waves = torch.cat((bright, dull)).sub_(128) @ _waves(_FORWARD, device)
    for part, colour in zip(waves.split((len(bright), len(dull))), (False, True), strict=True):
        table = quantisation(quality, colour, device).view(64)
        part.mul_(1 / _FORWARD).div_(table).round_().mul_(table)
    back = waves @ _waves(_BACK, device).T
    back = back.mul_(1 / _BACK).add_(128).round_().clamp_(0, 255)
    bright, dull = back.split((len(bright), len(dull)))
    return _from_blocks(bright, luma.shape), _from_blocks(dull, chroma.shape)


def _halve(plane: Tensor) -> Tensor:
    """2×2 means, rounded down and up in turn along a row."""
    total = plane[:, ::2] + plane[:, 1::2]
    total = total[..., ::2] + total[..., 1::2]
    bias = (torch.arange(total.shape[-1], device=plane.device) % 2 + 1).float()
    return total.add_(bias).mul_(0.25).floor_()


def _double(plane: Tensor, height: int, width: int) -> Tensor:
    """Twice the size by the triangle filter: 3/4 of the nearer pixel, 1/4 of the farther."""
    plane = plane[:, : (height + 1) // 2, : (width + 1) // 2]
    wide = F.pad(plane[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    near = wide[:, 1:-1] * 3
    rows = torch.stack((near + wide[:, :-2], near + wide[:, 2:]), 2).flatten(1, 2)
    near = rows[..., 1:-1] * 3
    out = near.new_empty(*near.shape[:2], 2 * near.shape[2])
    torch.add(near, rows[..., :-2] + 8, out=out[..., ::2])
    torch.add(near, rows[..., 2:] + 7, out=out[..., 1::2])
    return out.mul_(1 / 16).floor_()[:, :height, :width]


@corruption(
    "jpeg_compression",
    "digital",
    imagenet=(25, 18, 15, 10, 7),
    cifar=(80, 65, 58, 50, 40),
    random=False,
)
def jpeg_compression(x: Tensor, c: int, draws: Draws) -> Tensor:
    """What is left after baseline JPEG at quality c with halved chroma."""
    height, width = x.shape[-2:]
    wide = x.float()
    if width % 16 or height % 16:
        wide = F.pad(wide, (0, -width % 16, 0, -height % 16), mode="replicate")
    red, green, blue = wide.unbind(1)
    luma = (red * 0.299 + green * 0.587 + blue * 0.114).round_()
    cb = (red * -0.168735892 - green * 0.331264108 + blue * 0.5).add_(128).round_().clamp_(0, 255)
    cr = (red * 0.5 - green * 0.418687589 - blue * 0.081312411).add_(128).round_().clamp_(0, 255)
    luma, chroma = _lossy(luma, _halve(torch.cat((cb, cr))), c)
    luma = luma[:, :height, :width]
    cb, cr = _double(chroma, height, width).sub_(128).chunk(2)
    out = luma.new_empty(len(x), 3, height, width)
    torch.add(luma, (cr * 1.402).round_(), out=out[:, 0])
    torch.sub(luma, (cb * 0.344136286 + cr * 0.714136286).round_(), out=out[:, 1])
    torch.add(luma, (cb * 1.772).round_(), out=out[:, 2])
    return out
