"""The sum of several magnifications of an image, which zoom blur divides by their number."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.data.corruptions._filters import crop, magnify


def zoomed(levels: Tensor, factors: tuple[float, ...], centred: bool) -> Tensor:
    """The sum over all factors of the middle of (B, C, H, W), magnified linearly to its old size.

    A CPU adds up weighted rows of pixels, which keeps its vector units busy; magnifying picture by
    picture takes it more than twice as long.
    """
    if levels.device.type == "cpu":
        return _by_rows(levels, factors, centred)
    total = torch.zeros_like(levels)
    for factor in factors:
        total += _by_pictures(levels, factor, centred)
    return total


def _by_pictures(levels: Tensor, factor: float, centred: bool) -> Tensor:
    """One magnification of a batch."""
    height, width = levels.shape[-2:]
    top, rows = _middle(height, factor)
    left, columns = _middle(width, factor)
    part = levels[..., top : top + rows, left : left + columns]
    return crop(magnify(part, factor, height, width), height, width, centred)


def _by_rows(levels: Tensor, factors: tuple[float, ...], centred: bool) -> Tensor:
    """All magnifications, image by image: along columns, each turned over, then all along rows."""
    channels, height, width = levels.shape[1:]
    down = _taps(height, factors, centred, channels)
    across = _joined(width, factors, centred)
    total = torch.empty_like(levels)
    turned = levels.new_empty(len(factors), width, channels * height)  # once: fresh memory is slow
    for image, made in zip(levels, total, strict=True):
        for part, index, weight in zip(turned, *down, strict=True):
            part.copy_(_weighted(image.flatten(0, 1), index, weight).T)
        made.flatten(0, 1).copy_(_weighted(turned.flatten(0, 1), *across).T)
    return total


def _weighted(rows: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Sums of rows by their numbers; for this an embedding's kernel is the fastest there is."""
    return F.embedding_bag(index, rows, mode="sum", per_sample_weights=weight)


def _middle(size: int, factor: float) -> tuple[int, int]:
    """Where the part of an axis that is magnified begins, and how many pixels it has."""
    count = math.ceil(size / factor)
    return (size - count) // 2, count


@lru_cache(maxsize=16)
def _taps(
    size: int, factors: tuple[float, ...], centred: bool, planes: int = 1
) -> tuple[Tensor, Tensor]:
    """(factors, planes × size, 2): the two pixels each new one lies between, and their weights."""
    index, weight = [], []
    plane = torch.arange(planes)[:, None, None] * size
    for factor in factors:
        start, count = _middle(size, factor)
        grown = max(size, round(count * factor))
        cut = (grown - size) // 2 if centred else 0
        place = torch.arange(cut, cut + size, dtype=torch.float64) * ((count - 1) / (grown - 1))
        first = place.floor().clamp(max=count - 1)
        pair = torch.stack((first, (first + 1).clamp(max=count - 1)), 1)
        index.append((pair.long() + start + plane).flatten(0, 1))
        weight.append(torch.stack((first + 1 - place, place - first), 1).repeat(planes, 1))
    return torch.stack(index), torch.stack(weight).float()


@lru_cache(maxsize=16)
def _joined(size: int, factors: tuple[float, ...], centred: bool) -> tuple[Tensor, Tensor]:
    """(size, 2 × factors): the same as one sum over magnifications that lie behind one another."""
    index, weight = _taps(size, factors, centred)
    index = index + torch.arange(len(factors))[:, None, None] * size
    return index.transpose(0, 1).flatten(1), weight.transpose(0, 1).flatten(1)
