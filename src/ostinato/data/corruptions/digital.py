"""Digital: contrast, elastic transform, pixelate and saturate."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption
from ostinato.data.corruptions._filters import gaussian_weights, separable


@corruption(
    "digital", imagenet=(0.4, 0.3, 0.2, 0.1, 0.05), cifar=(0.75, 0.5, 0.4, 0.3, 0.15), random=False
)
def contrast(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Shrink every channel towards its mean."""
    pixels = x.shape[-2] * x.shape[-1]
    mean = x.sum((2, 3), keepdim=True, dtype=torch.int64).float() / pixels
    return x.float().mul_(c).add_(mean * (1 - c))


@corruption(
    "digital",
    imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    random=False,
)
def saturate(x: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """Scale and shift the saturation of hue-saturation-value.

    At a fixed hue and value, a channel's distance from the largest one is proportional to the
    saturation. A grey pixel has no hue; it counts as red, as is usual.
    """
    levels = x.float()
    top = levels.amax(1, keepdim=True)
    spread = top - levels.amin(1, keepdim=True)
    new = (spread / top.clamp(min=1) * c[0] + c[1]).clamp_(0, 1) * top
    red = torch.tensor((0.0, 1.0, 1.0), device=x.device).view(1, 3, 1, 1)
    part = torch.where(spread > 0, (top - levels) / spread.clamp(min=1), red)
    return top - part * new


def _box_matrix(size: int, target: int) -> Tensor:
    """(size, target) whole numbers: 1 where a source pixel belongs to a target's box."""
    scale = size / target
    pixel = torch.arange(size, dtype=torch.float64)[:, None]
    centre = (torch.arange(target, dtype=torch.float64)[None] + 0.5) * scale
    # In this order of operations, a pixel on the edge of two boxes falls where Pillow puts it.
    half = 0.5 * scale
    low, high = (centre - half + 0.5).floor(), (centre + half + 0.5).floor()
    place = (pixel - centre + 0.5) * (1 / scale)
    return ((pixel >= low) & (pixel < high) & (place > -0.5) & (place <= 0.5)).float()


def _nearest(size: int, target: int) -> list[int]:
    """Which of `target` pixels each of `size` shows; steps are added up, as image libraries do."""
    step, place, out = target / size, 0.5 * target / size, []
    for _ in range(size):
        out.append(min(int(place), target - 1))
        place += step
    return out


@lru_cache(maxsize=32)
def _boxes(size: int, share: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes along one axis, their sizes, and which of them each pixel shows."""
    target = max(1, int(size * share))
    matrix = _box_matrix(size, target)
    shown = torch.tensor(_nearest(size, target), device=device)
    return matrix.to(device), matrix.sum(0).to(device), shown


@corruption(
    "digital",
    imagenet=(0.6, 0.5, 0.4, 0.3, 0.25),
    cifar=(0.95, 0.9, 0.85, 0.75, 0.65),
    random=False,
)
def pixelate(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Shrink by box averages, first along rows and then along columns, and enlarge again."""
    small = _shrunk(_shrunk(x, c, -1), c, -2).to(torch.uint8)
    _, _, right = _boxes(x.shape[-1], c, x.device)
    _, _, below = _boxes(x.shape[-2], c, x.device)
    return small.index_select(-1, right).index_select(-2, below)


def _shrunk(x: Tensor, share: float, along: int) -> Tensor:
    """Rounded box averages along one axis; boxes of one size are sums of every so many pixels."""
    size = x.shape[along]
    target = max(1, int(size * share))
    if size % target == 0:
        step = size // target
        total = x[_every(step, 0, along)].float()
        for first in range(1, step):
            total += x[_every(step, first, along)]
        return total.div_(step).add_(0.5).floor_()
    matrix, sizes, _ = _boxes(size, share, x.device)
    if along == -1:
        return ((x.float() @ matrix) / sizes + 0.5).floor_()
    return ((matrix.T @ x) / sizes[:, None] + 0.5).floor_()


def _every(step: int, first: int, along: int) -> tuple[Any, ...]:
    """Picks every so many pixels along one of the last two axes."""
    some = slice(first, None, step)
    return (..., some) if along == -1 else (..., some, slice(None))


def _noise_fields(draws: Draws, shape: tuple[int, int], sigmas: tuple[float, float]) -> Tensor:
    """(B, 2, H, W) smoothed uniform noise; uniform over (-1, 1) before."""
    words = draws.words(0, (2, *shape))
    # Odd numbers from -4095 to 4095: symmetric, and sums stay exact.
    noise = words.bitwise_right_shift_(4).mul_(2).sub_(4095).float()
    rows, columns = (gaussian_weights(sigma, 3.0) for sigma in sigmas)
    return separable(noise, rows, columns, "symmetric").mul_(1 / 4096)


def _affine(x: Tensor, reach: float, draws: Draws) -> Tensor:
    """Move three points by up to `reach` and warp the image with them, mirrored borders."""
    height, width = x.shape[-2:]
    side = min(height, width) // 3
    cx, cy = height // 2, width // 2
    fixed = [[cx + side, cy + side], [cx + side, cy - side], [cx - side, cy - side]]
    start = torch.tensor(fixed, dtype=torch.float64, device=x.device)
    moved = start + (draws.uniform(2, (3, 2)).double() * 2 - 1) * reach
    ones = torch.ones(moved.shape[0], 3, 1, dtype=torch.float64, device=x.device)
    back = torch.linalg.solve(torch.cat((moved, ones), 2), start.expand_as(moved))
    across = torch.arange(width, device=x.device)
    down = torch.arange(height, device=x.device)[:, None]
    place = [
        (back[:, 0, i, None, None] * across + back[:, 1, i, None, None] * down)
        + back[:, 2, i, None, None]
        for i in (0, 1)
    ]
    grid = [place[0] * 2 / (width - 1) - 1, place[1] * 2 / (height - 1) - 1]
    return F.grid_sample(
        x, torch.stack(grid, -1).float(), padding_mode="reflection", align_corners=True
    )


@corruption(
    "digital",
    # displacement per unit of height, smoothing per unit of size, affine reach per unit of size
    imagenet=tuple((0.005 * 250 * a, 0.01, 0.0) for a in (0.05, 0.065, 0.085, 0.1, 0.12)),
    cifar=(
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
)
def elastic_transform(x: Tensor, c: tuple[float, float, float], draws: Draws) -> Tensor:
    """Displace pixels by smoothed noise (after a random affine map, for CIFAR)."""
    amplitude, smoothing, reach = c
    height, width = x.shape[-2:]
    levels = x.float()
    if reach:
        levels = _affine(levels, reach * min(height, width), draws)
    if not amplitude:
        return levels
    sigmas = (smoothing * height, smoothing * width)
    move = _noise_fields(draws, (height, width), sigmas).mul_(amplitude * height)
    across = torch.arange(width, device=x.device)
    below = torch.arange(height, device=x.device)[:, None]
    # Pixel centres in the sampler's units: the image spans -1 to 1.
    grid = torch.stack(
        (
            (move[:, 0] + across).mul_(2 / width).add_(1 / width - 1),
            (move[:, 1] + below).mul_(2 / height).add_(1 / height - 1),
        ),
        -1,
    )
    return F.grid_sample(levels, grid, padding_mode="reflection", align_corners=False)
