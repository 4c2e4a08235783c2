"""Weather: snow, frost, fog and brightness."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption
from ostinato.data.corruptions._filters import crop, magnify, motion
from ostinato.data.corruptions._frost import DRIFT, KINDS, textures

_GREY = (0.299, 0.587, 0.114)


def grey(levels: Tensor) -> Tensor:
    """Luma of (B, 3, H, W) as (B, 1, H, W)."""
    red, green, blue = (levels[:, i : i + 1] for i in range(3))
    return red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]


@corruption(
    "weather",
    # mean, deviation, zoom, threshold, motion radius, motion sigma, share kept, centred
    imagenet=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8, False),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7, False),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7, False),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65, False),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55, False),
    ),
    cifar=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95, True),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9, True),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9, True),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85, True),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8, True),
    ),
    together=4,
)
def snow(
    x: Tensor, c: tuple[float, float, float, float, int, float, float, bool], draws: Draws
) -> Tensor:
    """Falling flakes, smeared by the wind, over a whitened picture."""
    mean, deviation, factor, threshold, radius, sigma, keep, centred = c
    height, width = x.shape[-2:]
    # Only the part of the noise that the zoom looks at is drawn.
    rows, columns = math.ceil(height / factor), math.ceil(width / factor)
    noise = draws.normal(0, (1, rows, columns)).mul_(deviation).add_(mean)
    layer = magnify(noise, factor, height, width)
    layer = torch.where(layer < threshold, 0, layer).clamp_(0, 1).mul_(255).round_()
    if centred:
        layer = crop(layer, height, width, True)
    angles = (draws.uniform(1) * 90 - 135).tolist()
    flakes = crop(motion(layer, radius, sigma, angles).round_(), height, width, False)
    levels = x.float()
    white = torch.maximum(levels, grey(levels).mul_(1.5).add_(127.5))
    return levels.mul_(keep).add_(white.mul_(1 - keep)).add_(flakes).add_(flakes.flip((-2, -1)))


@corruption(
    "weather",
    # share of the picture, share of the frost, scale of the frost, how many of the kinds
    imagenet=tuple(
        (*pair, 1.0, KINDS) for pair in ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
    ),
    cifar=tuple(
        (*pair, 0.2 / 1.1, KINDS - 1)
        for pair in ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    ),
    together=4,
)
def frost(x: Tensor, c: tuple[float, float, float, int], draws: Draws) -> Tensor:
    """Ice crystals on the lens: a cut-out of a made texture, mixed in."""
    keep, share, scale, kinds = c
    height, width = x.shape[-2:]
    bank = textures(height, width, scale, x.device)
    out = x.float().mul_(keep)
    choice = zip(
        draws.integer(0, kinds),
        draws.integer(1, bank.shape[-2] - height + 1),
        draws.integer(2, bank.shape[-1] - width + 1),
        draws.normal(3, ()).tolist(),
        strict=True,
    )
    for image, (kind, top, left, thickness) in enumerate(choice):
        part = bank[kind, :, top : top + height, left : left + width]
        out[image].add_(part * share).add_(share * DRIFT[kind] * thickness)
    return out


def plasma(draws: Draws, size: int, decay: float) -> Tensor:
    """(B, size, size) diamond-square clouds in [0, 1]; the size is a power of two.

    Every place takes one random number, whose weight falls by `decay`² with every halving.
    """
    wobble = draws.uniform(0, (size, size)).mul_(2).sub_(1)
    cloud = torch.zeros_like(wobble)
    step, weight = size, 100.0
    while step >= 2:
        half, strength = step // 2, weight * weight
        corner = cloud[:, ::step, ::step]
        pairs = corner + corner.roll(-1, 1)
        _set(cloud, wobble, strength, half, half, step, pairs + pairs.roll(-1, 2))
        centre = cloud[:, half::step, half::step]
        above = centre + centre.roll(1, 1) + corner + corner.roll(-1, 2)
        beside = centre + centre.roll(1, 2) + corner + corner.roll(-1, 1)
        _set(cloud, wobble, strength, 0, half, step, above)
        _set(cloud, wobble, strength, half, 0, step, beside)
        step, weight = half, weight / decay
    cloud -= cloud.amin((1, 2), keepdim=True)
    return cloud / cloud.amax((1, 2), keepdim=True)


def _set(
    cloud: Tensor, wobble: Tensor, strength: float, top: int, left: int, step: int, total: Tensor
) -> None:
    place = (slice(None), slice(top, None, step), slice(left, None, step))
    cloud[place] = total / 4 + wobble[place] * strength


@corruption(
    "weather",
    imagenet=((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    together=4,
)
def fog(x: Tensor, c: tuple[float, float], draws: Draws) -> Tensor:
    """Clouds added to the picture, which is then scaled back to its old maximum."""
    height, width = x.shape[-2:]
    size = 1 << (max(height, width) - 1).bit_length()
    cloud = plasma(draws, size, c[1])[:, None, :height, :width]
    top = x.amax((1, 2, 3), keepdim=True).float() / 255
    return (x + cloud * (255 * c[0])) * (top / (top + c[0]))


@lru_cache(maxsize=16)
def _brightness_table(c: float, device: torch.device) -> Tensor:
    """The result for every (largest channel, channel)."""
    top = torch.arange(256, dtype=torch.float64)[:, None]
    raised = (top + 255 * c).clamp(max=255)
    table = torch.where(top > 0, torch.arange(256) * raised / top.clamp(min=1), raised)
    return (table + 1e-6).clamp(max=255).to(torch.uint8).flatten().to(device)


@corruption(
    "weather", imagenet=(0.1, 0.2, 0.3, 0.4, 0.5), cifar=(0.05, 0.1, 0.15, 0.2, 0.3), random=False
)
def brightness(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Raise the value of hue-saturation-value by c.

    At a fixed hue and saturation every channel is proportional to the value, the largest channel.
    """
    index = (x.amax(1, keepdim=True).to(torch.int32) * 256) + x
    return _brightness_table(c, x.device).index_select(0, index.view(-1)).view(x.shape)
