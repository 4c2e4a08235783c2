"""Histograms of oriented gradients, per patch, as a target to reconstruct."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.no_grad()
def oriented_gradients(pixels: Tensor, bins: int = 9, cell: int = 8) -> Tensor:
    """(B, 3, bins, H // cell, W // cell): gradient strength per direction, of unit length.

    Sobel gradients with reflected edges; directions are taken modulo a half turn and counted
    per cell and colour channel, weighted by the gradient's length.

    >>> stripes = torch.arange(16.0).view(1, 1, 1, 16).expand(1, 3, 16, 16) / 16
    >>> oriented_gradients(stripes, cell=8).shape
    torch.Size([1, 3, 9, 2, 2])
    """
    channels = pixels.shape[1]
    across = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]], device=pixels.device)
    kernel = torch.stack([across, across.T])[:, None].repeat(channels, 1, 1, 1)
    padded = F.pad(pixels.float(), (1, 1, 1, 1), mode="reflect")
    with torch.autocast(pixels.device.type, enabled=False):  # a target should not be rounded
        both = F.conv2d(padded, kernel, groups=channels).unflatten(1, (channels, 2))
    x, y = both[:, :, 0], both[:, :, 1]
    strength = (x.square() + y.square()).sqrt()
    direction = (torch.atan2(x, y) / math.pi * bins).floor().long() % bins
    chosen = torch.arange(bins, device=pixels.device).view(1, 1, -1, 1, 1) == direction[:, :, None]
    spread = (strength[:, :, None] * chosen).flatten(1, 2)
    counted = F.avg_pool2d(spread, cell).unflatten(1, (channels, bins)) * cell**2
    return F.normalize(counted, dim=2)


def patch_targets(pixels: Tensor, patch: int, bins: int = 9, cell: int = 8) -> Tensor:
    """The cells of every patch in one row: (B, patches, 3 · bins · cells per patch).

    Cells are the largest that tile a patch and are no larger than `cell`.
    """
    cell = cell_size(patch, cell)
    rows, columns = (edge // patch for edge in pixels.shape[-2:])
    cropped = pixels[..., : rows * patch, : columns * patch]
    cells = oriented_gradients(cropped, bins, cell).flatten(1, 2)
    per = patch // cell
    grouped = cells.unflatten(3, (columns, per)).unflatten(2, (rows, per))
    rows_of: Tensor = grouped.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return rows_of


def cell_size(patch: int, cell: int) -> int:
    """The largest divisor of a patch's side that is no larger than `cell`.

    >>> cell_size(16, 8), cell_size(14, 8)
    (8, 7)
    """
    return max(size for size in range(1, min(patch, cell) + 1) if patch % size == 0)
