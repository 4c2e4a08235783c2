"""AugMix views of one image: three chains of mild changes, mixed with the image itself.

Levels are those of the augmentation's mildest setting: turns up to 3 degrees, shears up to 0.03,
shifts up to a thirtieth of the side. Random numbers come from a CPU generator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_CHAINS = 3
_DEPTH = 3
_CHANGES = 9


def augmix_views(image: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many random views (count, 3, H, W) of one image (3, H, W) in [0, 1].

    >>> image = torch.rand(3, 16, 16)
    >>> views = augmix_views(image, 4, torch.Generator().manual_seed(0))
    >>> views.shape, bool((views >= 0).all() and (views <= 1).all())
    (torch.Size([4, 3, 16, 16]), True)
    """
    base = _random_crops(image, count, generator)
    raw = -torch.rand(count, _CHAINS, generator=generator).log()  # normalised: uniform on a simplex
    shares = (raw / raw.sum(1, keepdim=True)).to(image.device)
    keep = torch.rand(count, generator=generator).view(-1, 1, 1, 1).to(image.device)
    mixed = torch.zeros_like(base)
    for chain in range(_CHAINS):
        mixed = mixed + shares[:, chain].view(-1, 1, 1, 1) * _chain(base, generator)
    return (keep * base + (1 - keep) * mixed).clamp(0, 1)


def _random_crops(image: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Crops of 8 to 100 % of the area, sides from 3:4 to 4:3, back at full size; half mirrored."""
    height, width = image.shape[-2:]
    views = []
    for _ in range(count):
        area, ratio, down, right, mirror = torch.rand(5, generator=generator).tolist()
        side = math.sqrt((0.08 + 0.92 * area) * height * width)
        stretch = math.exp((2 * ratio - 1) * math.log(4 / 3) / 2)
        rows = min(height, max(1, round(side / stretch)))
        columns = min(width, max(1, round(side * stretch)))
        top, left = round(down * (height - rows)), round(right * (width - columns))
        part = image[None, :, top : top + rows, left : left + columns]
        part = F.interpolate(part, (height, width), mode="bilinear", align_corners=False)
        views.append(part.flip(-1) if mirror < 0.5 else part)
    return torch.cat(views)


def autocontrast(pixels: Tensor) -> Tensor:
    """Every channel stretched to [0, 1]; a flat one stays as it is."""
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    stretched = (pixels - low) / (high - low).clamp_min(1e-12)
    return torch.where(high > low, stretched, pixels)


def equalize(pixels: Tensor) -> Tensor:
    """Every channel's 256 levels spread by their cumulative counts."""
    levels = (pixels * 255).round().long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256, device=pixels.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=counts.dtype))
    total = counts.cumsum(2)
    last = torch.gather(counts, 2, levels.amax(2, keepdim=True))
    step = ((total[..., -1:] - last) / 255).floor()
    table = ((total - counts + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    spread = torch.gather(table, 2, levels).view_as(pixels) / 255
    return torch.where(step.unsqueeze(-1) > 0, spread, pixels)


def posterize(pixels: Tensor, bits: int = 4) -> Tensor:
    """The highest bits of every level.

    >>> posterize(torch.tensor([[[[1.0, 0.05]]]])).mul(255).round().flatten().tolist()
    [240.0, 0.0]
    """
    width = 2 ** (8 - bits)
    kept: Tensor = ((pixels * 255).round() / width).floor() * width / 255
    return kept


def solarize(pixels: Tensor, threshold: Tensor) -> Tensor:
    """Levels from a threshold (B,) on are inverted."""
    return torch.where(pixels >= threshold.view(-1, 1, 1, 1), 1 - pixels, pixels)


def warp(pixels: Tensor, matrix: Tensor) -> Tensor:
    """Each image through its map (B, 2, 3) in shares of half a side; grey where there is none."""
    grid = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels - 0.5, grid, align_corners=False) + 0.5


def _chain(base: Tensor, generator: torch.Generator) -> Tensor:
    """One to three changes to each view."""
    count = len(base)
    depth = torch.randint(1, _DEPTH + 1, (count,), generator=generator)
    view = base
    for number in range(_DEPTH):
        change = torch.randint(_CHANGES, (count,), generator=generator)
        level = (0.1 + 0.9 * torch.rand(count, generator=generator)) / 10
        sign = 2 * torch.randint(2, (count,), generator=generator) - 1
        change = torch.where(number < depth, change, _CHANGES)  # past its depth, no change
        view = _changed(view, change, level, sign)
    return view


def _changed(view: Tensor, change: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    out = view.clone()
    for kind in change.unique().tolist():
        chosen = (change == kind).nonzero()[:, 0]
        part = view[chosen.to(view.device)]
        size = level[chosen]
        signed = (sign[chosen] * size).to(view.device)
        if kind == 0:
            part = autocontrast(part)
        elif kind == 1:
            part = equalize(part)
        elif kind == 2:
            part = posterize(part)
        elif kind == 3:
            part = solarize(part, (1 - size).to(view.device))
        elif kind < _CHANGES:
            part = warp(part, _matrix(kind, signed))
        out[chosen.to(view.device)] = part
    return out


def _matrix(kind: int, level: Tensor) -> Tensor:
    """Turn, two shears and two shifts, by levels up to 0.1."""
    matrix = torch.eye(2, 3, device=level.device).repeat(len(level), 1, 1)
    if kind == 4:
        angle = level * math.radians(30)
        matrix[:, 0, 0] = matrix[:, 1, 1] = angle.cos()
        matrix[:, 0, 1], matrix[:, 1, 0] = -angle.sin(), angle.sin()
    else:
        row, column = {5: (0, 1), 6: (1, 0), 7: (0, 2), 8: (1, 2)}[kind]
        matrix[:, row, column] = level * (0.3 if kind < 7 else 2 / 3)
    return matrix
