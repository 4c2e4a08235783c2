"""The descriptor that single images are routed by: texture and tone, from pixels alone.

Three parts, each cheap next to a forward: local cosine transforms (how strong every frequency is,
how uneven over the image, how often it is absent: blur, compression, pixelation), a histogram of
each colour (fog, brightness, saturation, contrast), and a histogram of the steps between
neighbouring pixels (which kind of noise). No spectrum of the whole image is needed, and images of
any size can be compared.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.domains.descriptor import BINS, LUMA, check_images
from ostinato.ops import kernels
from ostinato.registry import DESCRIPTORS

_LEVEL = 1 / 255
FLOOR, ABSENT = 0.5 * _LEVEL, 1.5 * _LEVEL
"""Sizes below half a grey level are rounding, not texture; below one and a half, hardly there."""
GREY_CELL, COLOUR_CELL = 8, 4
_STEPS = (0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5)
"""Edges of the histogram of steps, in grey levels."""
_AT_ONCE = 2**20
"""Numbers that a CPU describes at once: what is made of them on the way then stays in its cache."""
_LONG = 8192
"""Numbers of a row from which on counting it by itself is quicker."""
_SMALL = 64
"""Below this side, transforms overlap, so that a small image has enough of them."""


def _cosine_bank(cell: int) -> Tensor:
    """The orthonormal cosine basis of a square cell without its constant: (cell² − 1, 1, c, c).

    >>> bank = _cosine_bank(4).flatten(1)
    >>> bool(torch.allclose(bank @ bank.T, torch.eye(15), atol=1e-6))
    True
    """
    n = torch.arange(cell)
    basis = torch.cos(math.pi * (2 * n[None] + 1) * n[:, None] / (2 * cell)) * math.sqrt(2 / cell)
    basis[0] /= math.sqrt(2)
    return torch.einsum("ux,vy->uvxy", basis, basis).flatten(0, 1)[1:, None]


@lru_cache(maxsize=8)
def _bank(cell: int, device: str) -> Tensor:
    # A tensor born in inference mode could not be used outside it, and this one is kept.
    with torch.inference_mode(False), torch.no_grad():
        return _cosine_bank(cell).to(device)


@lru_cache(maxsize=4)
def _arranged(device: str) -> tuple[Tensor, Tensor]:
    from ostinato.ops.kernels.texture import arranged

    with torch.inference_mode(False), torch.no_grad():
        return arranged(_bank(GREY_CELL, device)), arranged(_bank(COLOUR_CELL, device))


@lru_cache(maxsize=4)
def _edges(device: str) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return (torch.tensor(_STEPS) * _LEVEL).to(device)


def _planes(pixels: Tensor) -> Tensor:
    """Grey, red − green and blue − green: (B, 3, H, W)."""
    red, green, blue = pixels.unbind(1)
    grey = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return torch.stack([grey, red - green, blue - green], 1)


def _responses(planes: Tensor, cell: int) -> Tensor:
    """(B, frequencies of all planes, places): what every cosine answers everywhere."""
    count, _, height, width = planes.shape
    stride = max(1, cell // 4) if min(height, width) < _SMALL else cell
    bank = _bank(cell, str(planes.device))
    if stride == cell and planes.is_cuda:  # cells side by side are one product, without TF32
        rows, columns = height // cell, width // cell
        cells = planes[..., : rows * cell, : columns * cell].reshape(-1, rows, cell, columns, cell)
        flat = cells.transpose(2, 3).reshape(count, -1, rows * columns, cell * cell)
        return (bank.flatten(1) @ flat.mT).flatten(1, 2)
    found = F.conv2d(planes.reshape(-1, 1, height, width), bank, stride=stride)
    return found.reshape(count, -1, found.shape[2] * found.shape[3])


def _strength(response: Tensor, *, absence: bool) -> list[Tensor]:
    """Per frequency: log mean size, log unevenness, and share of near-zero responses."""
    size, squares = response.abs(), torch.linalg.vector_norm(response, dim=-1).square()
    mean = (size.mean(-1) + FLOOR).log()
    found = [mean, (squares / response.shape[-1] + FLOOR**2).log() - 2 * mean]
    if absence:
        found.append(_trues(size < ABSENT) / response.shape[-1])
    return found


def _shares(steps: Tensor) -> Tensor:
    """(B, C, N) to the share of each interval between `_STEPS`: (B, C · (edges + 1))."""
    above = _trues(steps.unsqueeze(2) > _edges(str(steps.device))[:, None])
    ends = F.pad(F.pad(above / steps.shape[2], (1, 0), value=1.0), (0, 1))
    return (ends[..., :-1] - ends[..., 1:]).flatten(1)


@DESCRIPTORS.register("texture")
class Texture:
    """Local frequencies, colour histograms and pixel steps of each image: 369 numbers.

    >>> Texture()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 369])
    """

    needs_features = False
    size_matters = False
    threshold = 0.4

    def __init__(self, radius: int | None = None) -> None:
        self.radius = radius

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, 369)."""
        check_images(images)
        return self.of(images)

    @torch.no_grad()
    def of(self, images: Tensor) -> Tensor:
        """The same of images that are known to be what they should."""
        pixels = images.detach().float()
        if min(pixels.shape[2:]) >= _SMALL and kernels.ready(pixels):
            return kernels.run(_at_once, _described, pixels)
        if pixels.is_cuda:
            return _described(pixels)
        some = max(1, _AT_ONCE // pixels[0].numel())
        return torch.cat([_described(part) for part in pixels.split(some)])


def _described(pixels: Tensor) -> Tensor:
    """The descriptor in plain torch, on any device and of images of any size."""
    with torch.autocast(pixels.device.type, enabled=False):
        planes = _planes(pixels)
        grey = _strength(_responses(planes[:, :1], GREY_CELL), absence=True)
        colour = _strength(_responses(planes[:, 1:], COLOUR_CELL), absence=False)
        steps = (planes[..., 1:] - planes[..., :-1]).abs_().flatten(2)
        noise = (_shares(steps) + 1e-3).log()
        return torch.cat([*grey, *colour, _tones(pixels), noise], 1)


def _at_once(pixels: Tensor) -> Tensor:
    """The same by kernels, which read the pixels once."""
    from ostinato.ops.kernels.texture import described

    device = str(pixels.device)
    return described(pixels, _arranged(device), _edges(device), LUMA, FLOOR, ABSENT)


def _tones(pixels: Tensor) -> Tensor:
    """log1p of a histogram per colour, relative to an even spread: (B, 3 · 32)."""
    flat = pixels.flatten(2)
    bins = (flat * BINS).nan_to_num_().clamp_(0, BINS - 1).to(torch.uint8)
    return torch.log1p(_counts(bins).flatten(1).float() * (BINS / flat.shape[2]))


def _counts(bins: Tensor) -> Tensor:
    """(B, C, N) bins to (B, C, 32) counts; never asks a GPU for a number on the way."""
    if not bins.is_cuda:
        return _histograms(bins, BINS)
    levels = torch.arange(BINS, device=bins.device, dtype=torch.uint8)
    parts = [_trues(bins.unsqueeze(2) == some[:, None]) for some in levels.split(8)]
    return torch.cat(parts, 2)


def _histograms(values: Tensor, most: int) -> Tensor:
    """(..., N) whole numbers below `most`, in bytes, to how often each comes: (..., most).

    Long rows are counted one by one: a count of all at once needs numbers eight times as large.

    >>> _histograms(torch.tensor([[0, 2, 2], [1, 1, 1]], dtype=torch.uint8), 3).tolist()
    [[1, 0, 2], [0, 3, 0]]
    """
    rows = values.flatten(0, -2)
    if rows.shape[1] >= _LONG:
        found = torch.stack([torch.bincount(row, minlength=most) for row in rows])
    else:
        numbers = rows.long().add_(most * torch.arange(len(rows))[:, None])
        found = torch.bincount(numbers.flatten(), minlength=most * len(rows))
    return found.view(*values.shape[:-1], most)


def _trues(found: Tensor) -> Tensor:
    """How many are true along the last dimension, eight at a time.

    A sum of truth values makes an eight times larger copy of them first. Eight of them lie in one
    whole number, and up to 255 such numbers can be summed before one of the eight overflows.

    >>> _trues(torch.rand(2, 3000, generator=torch.Generator().manual_seed(0)) < 2).tolist()
    [3000, 3000]
    """
    words = -(-found.shape[-1] // 8)
    least = -(-words // 255)
    parts = next((n for n in range(least, 2 * least + 1) if words % n == 0), least)
    length = -(-words // parts)
    missing = 8 * parts * length - found.shape[-1]
    padded = F.pad(found, (0, missing)) if missing else found
    packed = padded.contiguous().view(torch.int64).unflatten(-1, (parts, length)).sum(-1)
    total: Tensor = packed.unsqueeze(-1).view(torch.uint8).flatten(-2).sum(-1)
    return total
