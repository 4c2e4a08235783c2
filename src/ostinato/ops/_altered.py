"""Alterations of clean images that show how content varies where an image is not as it was.

Descriptors of altered images vary with content in other directions than those of clean ones: a
posterised sky differs from a posterised wall in other numbers than a sky from a wall. What is taken
from alterations is this variation alone, never where they lie. None of them is a corruption of the
common benchmarks: they are the plain image operations that augmentation uses, and grain, softness
and saturation, which the benchmarks' authors set apart for choosing settings.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as T

_GRAIN = 0.35
"""Deviation of the grain, as a share of a pixel's value."""
_SOFT = 0.015
"""Deviation of the softness, as a share of the image's shorter side."""
_TURN = 20.0
"""Degrees by which images are turned and slanted."""
_THIRD = 3
"""Every third image is altered in each way: enough for a spread, at a third of the time."""


def _grain(levels: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(levels.shape, generator=draw).to(levels.device)
    return (levels.float() * (1 + _GRAIN * noise)).round().clamp(0, 255).to(torch.uint8)


def _soft(levels: Tensor) -> Tensor:
    sigma = max(0.6, _SOFT * min(levels.shape[-2:]))
    size = 2 * max(1, round(3 * sigma)) + 1
    side = min(size, _odd(min(levels.shape[-2:])))
    blurred: Tensor = T.gaussian_blur(levels, [side, side], [sigma, sigma])
    return blurred


def _odd(side: int) -> int:
    return side if side % 2 else side - 1


_ALTERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "contrast stretched": T.autocontrast,
    "tones evened": T.equalize,
    "eight levels": lambda levels: T.posterize(levels, 3),
    "four levels": lambda levels: T.posterize(levels, 2),
    "bright inverted": lambda levels: T.solarize(levels, 128),
    "inverted": T.invert,
    "grey": lambda levels: T.rgb_to_grayscale(levels, 3),
    "hue moved": lambda levels: T.adjust_hue(levels, 0.25),
    "saturated": lambda levels: T.adjust_saturation(levels, 3.0),
    "turned": lambda levels: T.rotate(levels, _TURN),
    "slanted": lambda levels: T.affine(levels, 0.0, [0, 0], 1.0, [_TURN, 0.0]),
    "grain": _grain,
    "soft": _soft,
}


def altered(pixels: Tensor, start: int = 0) -> dict[str, Tensor]:
    """A third of the images in every alteration, in turn; alterations that get none are left out.

    Args:
        pixels: (B, 3, H, W) in [0, 1].
        start: images that came before, so that batches of any size alter the same images.

    >>> found = altered(torch.rand(6, 3, 16, 16))
    >>> len(found), found["grey"].shape
    (13, torch.Size([2, 3, 16, 16]))
    """
    levels = (pixels.detach() * 255).round().clamp(0, 255).to(torch.uint8)
    places = torch.arange(start, start + len(levels))
    found = {}
    for number, (name, alter) in enumerate(_ALTERATIONS.items()):
        chosen = levels[(places % _THIRD == number % _THIRD).to(levels.device)]
        if len(chosen):
            found[name] = alter(chosen).float() / 255
    return found
