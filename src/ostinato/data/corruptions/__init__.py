"""Image corruptions in torch, batched and seeded per image.

`corrupt` applies one by name. `COMMON` are the usual 15 in their usual order, `EXTRA` the four
held out for validation, `DRIVING` weathers for road scenes.
"""

from __future__ import annotations

from ostinato.data.corruptions import (
    blur,
    digital,
    driving,
    jpeg,
    noise,
    spatter,
    weather,
)
from ostinato.data.corruptions._core import SEVERITIES, Constants, Corruption, corrupt
from ostinato.data.corruptions._gallery import gallery, scene

COMMON: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
DRIVING: tuple[str, ...] = ("driving_fog", "driving_night", "driving_rain", "driving_snow")

__all__ = [
    "COMMON",
    "DRIVING",
    "EXTRA",
    "SEVERITIES",
    "Constants",
    "Corruption",
    "blur",
    "corrupt",
    "digital",
    "driving",
    "gallery",
    "jpeg",
    "noise",
    "scene",
    "spatter",
    "weather",
]
