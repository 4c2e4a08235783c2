"""Cutting images into a grid of patches and putting them back in another order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def shuffle_patches(pixels: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """Each image's grid × grid patches in an order of its own; drawn on the CPU.

    Sizes that the grid does not divide are resized there and back.

    >>> image = torch.arange(4.0).view(1, 1, 2, 2)
    >>> shuffled = shuffle_patches(image, 2, torch.Generator().manual_seed(0))
    >>> sorted(shuffled.flatten().tolist())
    [0.0, 1.0, 2.0, 3.0]
    """
    count, channels, height, width = pixels.shape
    orders = torch.rand(count, grid * grid, generator=generator).argsort(1).to(pixels.device)
    size = (max(height // grid, 1) * grid, max(width // grid, 1) * grid)
    even = pixels if size == (height, width) else _resize(pixels, size)
    high, wide = size[0] // grid, size[1] // grid
    patches = even.reshape(count, channels, grid, high, grid, wide)
    patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(count, grid * grid, channels, high, wide)
    patches = patches[torch.arange(count, device=pixels.device)[:, None], orders]
    patches = patches.reshape(count, grid, grid, channels, high, wide).permute(0, 3, 1, 4, 2, 5)
    shuffled = patches.reshape(count, channels, *size)
    return shuffled if size == (height, width) else _resize(shuffled, (height, width))


def _resize(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
