"""Blur: defocus, frosted glass, motion, zoom and Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption
from ostinato.data.corruptions._filters import UNIT, blur, motion, separable
from ostinato.data.corruptions._zoom import zoomed


@lru_cache(maxsize=16)
def _disk_runs(radius: float) -> tuple[tuple[int, int], ...]:
    """A disk as rows: (row offset, half width) for every row it covers."""
    top = math.floor(radius)
    rows = range(-top, top + 1)
    return tuple((row, math.floor(math.sqrt(radius**2 - row**2) + 1e-9)) for row in rows)


def _disk_sum(x: Tensor, radius: float) -> tuple[Tensor, int]:
    """The sum over a disk around every pixel (borders cut off), and the disk's size.

    Running sums along the rows turn every row of the disk into one subtraction.
    """
    runs = _disk_runs(radius)
    reach = max(half for _, half in runs)
    sums = F.pad(x.cumsum(-1), (1, 0))
    height, width = x.shape[-2] - 2 * reach, x.shape[-1] - 2 * reach
    strips = {
        half: sums.narrow(-1, reach + half + 1, width) - sums.narrow(-1, reach - half, width)
        for half in {half for _, half in runs}
    }
    total = torch.zeros_like(strips[reach].narrow(-2, 0, height))
    for row, half in runs:
        total += strips[half].narrow(-2, reach + row, height)
    return total, sum(2 * half + 1 for _, half in runs)


def _soft_edge(radius: float, sigma: float) -> tuple[float, ...]:
    taps = range(-1, 2) if radius <= 8 else range(-2, 3)
    raw = [math.exp(-0.5 * (i / sigma) ** 2) for i in taps]
    return tuple(w / sum(raw) for w in raw)


@lru_cache(maxsize=16)
def _disk_gain(radius: float, sigma: float) -> float:
    """The sum of the usual kernel, which is a little over 1.

    It is softened inside an array that fits the disk, with mirrored borders, and the rows on the
    border then count for more than they lose.
    """
    half = 8 if radius <= 8 else math.floor(radius)
    edge = torch.tensor(_soft_edge(radius, sigma), dtype=torch.float64)
    place = torch.arange(-half, half + 1)
    disk = (place[:, None] ** 2 + place[None] ** 2 <= radius**2).double()
    cut = len(edge) // 2
    wide = F.pad(disk[None, None], (cut, cut, cut, cut), mode="reflect")
    soft = F.conv2d(wide, torch.outer(edge, edge)[None, None])
    return float(soft.sum() / disk.sum())


@corruption(
    "blur",
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    random=False,
)
def defocus_blur(x: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """Average over a disk of radius c[0] whose edge is softened by a Gaussian of c[1]."""
    radius, sigma = c
    edge = _soft_edge(radius, sigma)
    reach = math.floor(radius) + len(edge) // 2
    wide = _reflect(x.float(), reach)
    total, size = _disk_sum(wide, radius)
    even = total.mul_(UNIT / size).round_()
    soft = separable(even, edge, edge, "none")
    return soft.mul_(_disk_gain(radius, sigma) / UNIT)


def _reflect(x: Tensor, pad: int) -> Tensor:
    """Mirror the borders, in several steps where the image is smaller than the border."""
    while pad > 0:
        step = min(pad, min(x.shape[-2:]) - 1)
        x = F.pad(x, (step, step, step, step), mode="reflect")
        pad -= step
    return x


def _shuffle(draws: Draws, stream: int, height: int, width: int, reach: int) -> Tensor:
    """Where every pixel's value comes from after one sweep of local copies, as flat indices.

    The sweep runs from the last inner pixel to the first; each takes the value of a neighbour up
    to `reach` away as it is at that time. A neighbour that came earlier in the sweep holds a
    copied value by then: such chains are followed by doubling, all pixels at once.
    """
    device = draws.keys.device
    count, size = draws.keys.shape[0], height * width
    words = draws.words(stream, (2, size)).mul_(2 * reach).bitwise_right_shift_(16)
    step = (words[:, 0] * width).add_(words[:, 1]).sub_(reach * (width + 1))
    place, inner = _inner(height, width, reach, device)
    target = step.mul_(inner).add_(place)
    loose = inner.index_select(0, target.reshape(-1)).view(target.shape).mul_(target > place)
    # Indices below `total` still point to a pixel of the sweep, those above to an original value.
    total = count * size
    target = target.sub_(loose.sub_(1).mul_(total))
    if count > 1:
        target += torch.arange(count, device=device, dtype=torch.int32)[:, None] * size
    target = target.reshape(-1)
    table = torch.arange(2 * total, dtype=torch.int32, device=device)
    while int(target.amin()) < total:
        table[:total] = target
        target = table.index_select(0, target)
    return target.sub_(total)


@lru_cache(maxsize=8)
def _inner(height: int, width: int, reach: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row = torch.arange(height)[:, None]
    column = torch.arange(width)[None]
    inner = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    place = torch.arange(height * width, dtype=torch.int32)
    return place.to(device), inner.flatten().to(torch.int32).to(device)


@corruption(
    "blur",
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(x: Tensor, c: tuple[float, int, int], draws: Draws) -> Tensor:
    """Blur, move pixels about by up to c[1] in c[2] sweeps, blur again."""
    sigma, reach, sweeps = c
    batch, channels, height, width = x.shape
    start = blur(x, sigma).add_(1e-3).clamp_(0, 255).to(torch.uint8)
    source = _shuffle(draws, 0, height, width, reach)
    for sweep in range(1, sweeps):
        source = source.index_select(0, _shuffle(draws, sweep, height, width, reach))
    flat = start.transpose(0, 1).reshape(channels, -1)
    moved = torch.stack([plane.index_select(0, source) for plane in flat])
    return blur(moved.view(channels, batch, height, width).transpose(0, 1), sigma)


@corruption(
    "blur",
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(x: Tensor, c: tuple[int, float], draws: Draws) -> Tensor:
    """Smear along a direction up to 45 degrees off the horizontal."""
    angles = (draws.uniform(0) * 90 - 45).tolist()
    return motion(x, c[0], c[1], angles)


def _factors(stop: float, step: float, centred: bool) -> tuple[tuple[float, ...], bool]:
    # As numpy counts and steps such a range, whose last value decides the cropped size.
    count, stride = math.ceil((stop - 1) / step), (1 + step) - 1
    return tuple(1 + i * stride for i in range(count)), centred


@corruption(
    "blur",
    imagenet=(
        _factors(1.11, 0.01, False),
        _factors(1.16, 0.01, False),
        _factors(1.21, 0.02, False),
        _factors(1.26, 0.02, False),
        _factors(1.31, 0.03, False),
    ),
    cifar=tuple(_factors(stop, 0.01, True) for stop in (1.06, 1.11, 1.16, 1.21, 1.26)),
    random=False,
)
def zoom_blur(x: Tensor, c: tuple[tuple[float, ...], bool], draws: Draws) -> Tensor:
    """The mean of the image and its magnifications."""
    factors, centred = c
    levels = x.float()
    larger = tuple(factor for factor in factors if factor != 1)
    same = 1 + len(factors) - len(larger)
    return zoomed(levels, larger, centred).add_(levels, alpha=same).div_(len(factors) + 1)


@corruption(
    "blur", imagenet=(1.0, 2.0, 3.0, 4.0, 6.0), cifar=(0.4, 0.6, 0.7, 0.8, 1.0), random=False
)
def gaussian_blur(x: Tensor, c: float, draws: Draws) -> Tensor:
    """A Gaussian of standard deviation c."""
    return blur(x, c)
