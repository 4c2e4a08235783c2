"""What a hostile stream shows: a new style with every batch, images of nothing, refused input."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate


def restyle(images: Tensor, draw: np.random.Generator) -> Tensor:
    """Images (B, 3, H, W) in [0, 1] under one random mixture of colour, light, blur and grain.

    >>> restyle(torch.rand(2, 3, 8, 8), np.random.default_rng(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    mixing = torch.eye(3) + 0.5 * _normal(draw, 3, 3)
    pixels = torch.einsum("ij,bjhw->bihw", mixing, images)
    pixels = pixels * draw.uniform(0.3, 1.8) + draw.uniform(-0.4, 0.4)
    pixels = pixels.clamp(0, 1) ** draw.uniform(0.4, 2.5)
    if draw.random() < 0.3:
        pixels = 1 - pixels
    if draw.random() < 0.4:
        pixels = interpolate(avg_pool2d(pixels, 2), pixels.shape[-2:], mode="bilinear")
    pixels = pixels + draw.uniform(0, 0.25) * _normal(draw, *pixels.shape)
    if draw.random() < 0.3:
        levels = int(draw.integers(2, 8))
        pixels = (pixels * levels).round() / levels
    return pixels.clamp(0, 1)


def nothing(shape: tuple[int, ...], draw: np.random.Generator) -> Tensor:
    """Images without content: one grey, noise, stripes, a chequerboard, single bright pixels."""
    way = int(draw.integers(5))
    if way == 0:
        return torch.full(shape, float(draw.choice([0.0, 0.5, 1.0])))
    if way == 1:
        return torch.from_numpy(draw.random(shape, dtype=np.float32))
    rows, columns = torch.meshgrid(torch.arange(shape[2]), torch.arange(shape[3]), indexing="ij")
    width = int(draw.integers(1, 5))
    if way == 2:
        return ((rows // width) % 2).float().expand(shape).clone()
    if way == 3:
        return ((rows // width + columns // width) % 2).float().expand(shape).clone()
    return (torch.from_numpy(draw.random(shape, dtype=np.float32)) > 0.999).float()


def refusable(good: Tensor, draw: np.random.Generator) -> Tensor:
    """Something that a method has to refuse, made from a batch of images in [0, 1]."""
    spoiled = good.clone()
    spoiled[0, 0, 0, 0] = float(draw.choice([np.nan, np.inf, -np.inf]))
    ways = (
        spoiled,
        good[:0],
        good[:, :2],
        good * 300,
        good[0],
        good.to_sparse(),
        torch.full(good.shape, 300),
        good - 5,
        good.to("meta"),
    )
    return ways[int(draw.integers(len(ways)))]


def _normal(draw: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(draw.standard_normal(shape, dtype=np.float32))
