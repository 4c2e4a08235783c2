"""Filters whose sums are exact, so that their order (threads, devices) cannot change a bit.

Values are whole numbers held in float32 and kernels are rounded to whole numbers too; as long as
no sum passes 2^24, float32 arithmetic is integer arithmetic. Images are filtered in sixteenths of
a grey level (12 bits) with kernels that sum to 4096 (12 bits).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

UNIT = 16
_SUM = 4096


def whole_weights(weights: list[float], total: int) -> list[int]:
    """Round weights to whole numbers that sum to `total` times their sum (largest remainder).

    >>> whole_weights([0.25, 0.5, 0.25], 8)
    [2, 4, 2]
    """
    scaled = [w * total for w in weights]
    out = [math.floor(value) for value in scaled]
    order = sorted(range(len(out)), key=lambda i: out[i] - scaled[i])
    for i in order[: round(sum(scaled)) - sum(out)]:
        out[i] += 1
    return out


@lru_cache(maxsize=64)
def gaussian_weights(sigma: float, truncate: float = 4.0) -> tuple[float, ...]:
    """A normalised Gaussian kernel cut at `truncate` sigmas (as scipy does)."""
    if sigma <= 0:
        return (1.0,)
    radius = int(truncate * sigma + 0.5)
    raw = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(-radius, radius + 1)]
    return tuple(w / sum(raw) for w in raw)


def _edges(x: Tensor, rows: int, columns: int, mode: str) -> Tensor:
    """Pad; `symmetric` repeats the border pixel, which torch's `reflect` does not."""
    if mode == "none":
        return x
    if mode != "symmetric":
        return F.pad(x, (columns, columns, rows, rows), mode=mode)
    return _mirror(_mirror(x, rows, -2), columns, -1)


def _mirror(x: Tensor, pad: int, dim: int) -> Tensor:
    size = x.shape[dim]
    if pad == 0:
        return x
    first, last = x.narrow(dim, 0, pad), x.narrow(dim, size - pad, pad)
    return torch.cat((first.flip(dim), x, last.flip(dim)), dim)


def _pass(x: Tensor, weights: tuple[float, ...], dim: int) -> Tensor:
    size = x.shape[dim] - len(weights) + 1
    total: Tensor | None = None
    for i, weight in enumerate(whole_weights(list(weights), _SUM)):
        if weight:
            part = x.narrow(dim, i, size)
            total = part * weight if total is None else total.add_(part, alpha=weight)
    assert total is not None
    return total.mul_(1 / _SUM).round_()


def separable(
    x: Tensor, rows: tuple[float, ...], columns: tuple[float, ...], mode: str = "replicate"
) -> Tensor:
    """Filter (B, C, H, W) whole numbers below 4096 along both axes; the result is rounded.

    Borders are repeated ("replicate"), mirrored with the border pixel doubled ("symmetric"), or
    cut off ("none").
    """
    x = _edges(x, len(rows) // 2, len(columns) // 2, mode)
    if len(columns) > 1:
        x = _pass(x, columns, -1)
    return _pass(x, rows, -2) if len(rows) > 1 else x


def blur(levels: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of grey levels with replicated borders, in grey levels."""
    weights = gaussian_weights(sigma)
    if len(weights) == 1:
        return levels.float()
    return separable(levels.float() * UNIT, weights, weights) / UNIT


@lru_cache(maxsize=16)
def _motion_weights(radius: int, sigma: float) -> tuple[int, ...]:
    raw = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    return tuple(whole_weights([w / sum(raw) for w in raw], 1 << 16))


def motion(x: Tensor, radius: int, sigma: float, angles: list[float]) -> Tensor:
    """Blur (B, C, H, W) whole numbers up to 255 along one direction per image, in degrees.

    The kernel is the falling half of a Gaussian, each tap shifted by whole pixels and the
    borders repeated. A motion longer than the image stops at its border.
    """
    height, width = x.shape[-2:]
    weights = _motion_weights(radius, float(sigma))
    pad = len(weights)
    wide = F.pad(x.float(), (pad, pad, pad, pad), mode="replicate")
    out = torch.zeros_like(x, dtype=torch.float32)
    for image, angle in enumerate(angles):
        rise, run = math.sin(math.radians(angle)), math.cos(math.radians(angle))
        for i, weight in enumerate(weights):
            down, right = math.ceil(i * rise - 0.5), math.ceil(i * run - 0.5)
            if abs(down) >= height or abs(right) >= width:
                break
            top, left = pad + down, pad + right
            part = wide[image, :, top : top + height, left : left + width]
            out[image].add_(part, alpha=weight)
    return out.mul_(1 / (1 << 16))


def magnify(part: Tensor, factor: float, height: int, width: int) -> Tensor:
    """Scale up linearly, corner on corner; at least to (height, width)."""
    rows, columns = part.shape[-2:]
    size = (max(height, round(rows * factor)), max(width, round(columns * factor)))
    return F.interpolate(part, size=size, mode="bilinear", align_corners=True)


def crop(x: Tensor, height: int, width: int, centred: bool) -> Tensor:
    """Cut to a size at the top left corner, or evenly where `centred`."""
    top = (x.shape[-2] - height) // 2 if centred else 0
    left = (x.shape[-1] - width) // 2 if centred else 0
    return x[..., top : top + height, left : left + width]
