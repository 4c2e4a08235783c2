"""Weathers for driving scenes without depth maps: fog, night, rain and snow.

Depth is guessed from the row: a road scene is far at its horizon and near at its lower edge. The
horizon's height varies a little from image to image.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption
from ostinato.data.corruptions._filters import blur, magnify, motion
from ostinato.data.corruptions.weather import grey, plasma


def _nearness(x: Tensor, draws: Draws) -> Tensor:
    """(B, 1, H, 1): 0 at the horizon and above, 1 at the lower edge."""
    rows = torch.arange(x.shape[-2], device=x.device).view(1, 1, -1, 1) / x.shape[-2]
    horizon = (0.4 + 0.1 * draws.uniform(90)).view(-1, 1, 1, 1)
    return ((rows - horizon) / (1 - horizon)).clamp_(0, 1)


def _clouds(x: Tensor, draws: Draws, decay: float) -> Tensor:
    """(B, 1, H, W) smooth random density in [0, 1]."""
    height, width = x.shape[-2:]
    size = 1 << (max(height, width) - 1).bit_length()
    return plasma(draws, size, decay)[:, None, :height, :width]


def _haze(levels: Tensor, thickness: Tensor, light: tuple[float, float, float]) -> Tensor:
    """Mix with the light of the air; a share `thickness` of every pixel is air."""
    air = torch.tensor(light, device=levels.device).view(1, 3, 1, 1)
    return levels * (1 - thickness) + air * thickness


@corruption("driving", imagenet=(0.8, 1.2, 1.8, 2.6, 3.6))
def driving_fog(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Fog that thickens with distance: light falls off as 1 / (1 + thickness·depth)²."""
    near = _nearness(x, draws)
    density = (0.75 + 0.5 * _clouds(x, draws, 2.2)) * c
    # A rational fall-off stands for the exponential, whose last bit depends on the vector unit.
    depth = 1 - 0.85 * near * (2 - near)
    through = 1 / (1 + 0.5 * density * depth)
    return _haze(x.float(), 1 - through * through, (212.0, 216.0, 220.0))


@lru_cache(maxsize=16)
def _dark(gain: float, gamma: float, device: torch.device) -> Tensor:
    levels = torch.arange(256, dtype=torch.float64) / 255
    return (255 * gain * levels**gamma).float().to(device)


@corruption(
    "driving",
    # brightness, gamma, noise in grey levels
    imagenet=((0.62, 1.3, 3), (0.48, 1.5, 5), (0.36, 1.7, 7), (0.27, 1.9, 9), (0.2, 2.1, 12)),
)
def driving_night(x: Tensor, c: tuple[float, float, float], draws: Draws) -> Tensor:
    """Darkness with a blue cast, headlights on the road, glowing lamps and sensor noise."""
    gain, gamma, noise = c
    width = x.shape[-1]
    dark = _dark(gain, gamma, x.device).index_select(0, x.flatten().int()).view(x.shape)
    across = (torch.arange(width, device=x.device) + 0.5) / width * 2 - 1
    near = _nearness(x, draws)
    # The headlights' cone: widest and brightest some way before the car.
    cone = (1 - (across / (0.35 + 0.6 * near)).square()).clamp(min=0) * near * (1.6 - near)
    lit = dark + (0.55 * x - dark).clamp(min=0) * cone.clamp(max=1)
    tint = torch.tensor((0.86, 0.92, 1.1), device=x.device).view(1, 3, 1, 1)
    lamps = (x.float() - 215).clamp_(min=0) * 6.375
    glow = blur(lamps.round_(), max(1.0, 0.012 * width))
    grain = draws.normal(1, tuple(x.shape[1:])) * noise
    return lit * tint + glow * (0.35 * (1 - gain)) + grain


def _streaks(
    x: Tensor, draws: Draws, stream: int, share: float, size: float, length: int, lean: float
) -> Tensor:
    """(B, 1, H, W) in 0..255: specks covering about `share`, smeared downwards.

    Drawn with a margin, so that no smear meets a border and thickens there.
    """
    height, width = x.shape[-2:]
    margin = 2 * length + 1
    tall, wide = height + 2 * margin, width + 2 * margin
    shape = (1, math.ceil(tall / size), math.ceil(wide / size))
    specks = torch.where(draws.words(stream, shape) < share * 65536, 255.0, 0.0)
    layer = magnify(specks, size, tall, wide).round()
    angles = (90 + (draws.uniform(stream + 1) * 2 - 1) * lean).tolist()
    smeared = motion(layer, length, length * 0.9, angles)
    return smeared[..., margin : margin + height, margin : margin + width]


@corruption(
    "driving",
    # share of drops, length of streaks per height, haze, darkness
    imagenet=(
        (0.006, 0.04, 0.10, 0.92),
        (0.010, 0.05, 0.16, 0.86),
        (0.014, 0.06, 0.22, 0.80),
        (0.019, 0.07, 0.30, 0.74),
        (0.025, 0.08, 0.38, 0.68),
    ),
)
def driving_rain(x: Tensor, c: tuple[float, float, float, float], draws: Draws) -> Tensor:
    """Streaks of two sizes over a darker, greyer picture with haze in the distance."""
    share, relative, haze, darkness = c
    levels = x.float()
    dull = (levels * 0.7 + grey(levels) * 0.3) * darkness
    misty = _haze(dull, haze * (1 - 0.6 * _nearness(x, draws)), (150.0, 155.0, 162.0))
    scale = max(1.0, x.shape[-2] / 224)
    length = max(2, round(relative * x.shape[-2]))
    fine = _streaks(x, draws, 2, share, scale, length, 12)
    coarse = _streaks(x, draws, 4, share / 2, 1.6 * scale, round(1.5 * length), 12)
    light = (fine * 3.0 + coarse * 2.5).clamp_(max=150) / 255
    return misty + (225 - misty) * light


@corruption(
    "driving",
    # share of flakes, haze, snow on the ground
    imagenet=(
        (0.004, 0.12, 0.15),
        (0.007, 0.20, 0.25),
        (0.011, 0.28, 0.35),
        (0.016, 0.36, 0.45),
        (0.022, 0.44, 0.55),
    ),
)
def driving_snow(x: Tensor, c: tuple[float, float, float], draws: Draws) -> Tensor:
    """Flakes of three sizes, white haze in the distance and patches of snow on the ground."""
    share, haze, cover = c
    levels = x.float()
    near = _nearness(x, draws)
    pale = levels * (1 - 0.3 * haze) + grey(levels) * (0.3 * haze)
    clouds = _clouds(x, draws, 1.8)
    patch = ((clouds - (0.75 - 0.5 * cover)) * 4).clamp_(0, 1) * cover * (near > 0).float()
    ground = _haze(pale, patch * (0.5 + 0.5 * near), (238.0, 240.0, 245.0))
    misty = _haze(ground, haze * (1 - 0.6 * near), (205.0, 210.0, 216.0))
    scale = max(1.0, x.shape[-2] / 224)
    flakes = torch.zeros_like(near).expand_as(clouds).clone()
    for layer, (size, gain) in enumerate(((1.0, 1.6), (2.0, 2.2), (3.5, 2.6))):
        length = max(2, round(2 * size * scale))
        flakes += _streaks(x, draws, 2 + 2 * layer, share / size, size * scale, length, 40) * gain
    light = flakes.clamp_(max=240) / 255
    return misty + (250 - misty) * light
