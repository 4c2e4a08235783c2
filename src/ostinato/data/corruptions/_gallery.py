"""A drawn street scene, and a picture of every corruption applied to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.data.corruptions._core import SEVERITIES, Constants, corrupt


def scene(height: int = 224, width: int = 224, seed: int = 0) -> Tensor:
    """(3, H, W) uint8: sky, hills, houses, a road, a car, a tree and some texture.

    >>> scene(96, 160).shape
    torch.Size([3, 96, 160])
    """
    random = torch.Generator().manual_seed(seed)
    y = ((torch.arange(height) + 0.5) / height)[:, None].expand(height, width)
    x = ((torch.arange(width) + 0.5) / width)[None].expand(height, width)
    image = torch.empty(3, height, width)

    def paint(mask: Tensor, colour: Sequence[float], shade: Tensor | float = 1.0) -> None:
        for channel, value in zip(image, colour, strict=True):
            channel[mask] = (value * shade * torch.ones_like(channel))[mask]

    paint(y >= 0, (120, 165, 220), 0.75 + 0.5 * y)
    paint((x - 0.8) ** 2 + (y - 0.15) ** 2 < 0.004, (255, 240, 190))
    hills = 0.42 + 0.05 * torch.sin(7 * x + 1) + 0.03 * torch.sin(17 * x)
    paint(y > hills, (90, 130, 80), 1.25 - 0.5 * y)
    for i in range(4):
        left = 0.03 + 0.13 * i + 0.02 * float(torch.rand((), generator=random))
        top = 0.22 + 0.15 * float(torch.rand((), generator=random))
        wall = (x > left) & (x < left + 0.11) & (y > top) & (y < 0.56)
        paint(wall, (190 - 22 * i, 120 + 14 * i, 95 + 18 * i), 0.85 + 0.2 * torch.sin(160 * y))
        paint(wall & (torch.sin(170 * (x - left)) > 0.3) & (torch.sin(120 * y) > 0.2), (45, 55, 75))
    paint(y > 0.56, (105, 140, 70), 0.9 + 0.25 * torch.sin(90 * x) * torch.sin(120 * y))
    side = 0.06 + 0.75 * (y - 0.5)
    road = (y > 0.56) & ((x - 0.5).abs() < side)
    paint(road, (95, 95, 100))
    paint(road & ((x - 0.5).abs() < 0.03 * y) & (torch.sin(60 / (y + 0.05)) > 0), (240, 240, 230))
    paint(((x - 0.86).abs() < 0.014) & (y > 0.4) & (y < 0.72), (95, 65, 40))
    leaves = (x - 0.86) ** 2 + ((y - 0.38) * 0.8) ** 2 < 0.011
    paint(leaves, (50, 110, 45), 1 + 0.35 * torch.sin(130 * x) * torch.sin(110 * y + 40 * x))
    body = ((x - 0.42).abs() < 0.09) & ((y - 0.76).abs() < 0.04)
    paint(body | (((x - 0.42).abs() < 0.055) & (y > 0.66) & (y < 0.74)), (200, 30, 35))
    paint(((x - 0.42).abs() < 0.042) & (y > 0.675) & (y < 0.72), (150, 190, 215))
    for wheel in (0.365, 0.475):
        paint((x - wheel) ** 2 + (y - 0.8) ** 2 < 0.0007, (25, 25, 28))
        paint((x - wheel) ** 2 + (y - 0.765) ** 2 < 0.00012, (255, 250, 220))
    image += 4 * torch.randn(image.shape, generator=random)
    return image.round().clamp(0, 255).to(torch.uint8)


def gallery(
    names: Sequence[str],
    image: Tensor | None = None,
    *,
    seed: int = 0,
    constants: Constants = "imagenet",
    gap: int = 4,
) -> Tensor:
    """(3, rows, columns) uint8: one row per corruption, one column per severity.

    The image is (3, H, W); without one, `scene` is used.

    >>> gallery(["fog", "snow"], scene(32, 32), gap=0).shape
    torch.Size([3, 64, 160])
    """
    image = scene() if image is None else image
    _, height, width = image.shape
    rows, columns = len(names), len(SEVERITIES)
    size = (3, rows * (height + gap) - gap, columns * (width + gap) - gap)
    sheet = torch.full(size, 255, dtype=torch.uint8)
    for row, name in enumerate(names):
        for column, severity in enumerate(SEVERITIES):
            top, left = row * (height + gap), column * (width + gap)
            part = corrupt(image[None], name, severity, [seed], constants=constants)[0]
            sheet[:, top : top + height, left : left + width] = part
    return sheet
