"""Augmented views of a batch, in torch: colour, geometry, blur, noise and flips.

Every random number is drawn on the CPU from an explicit generator and then moved, so a view is
the same on every device. Each image of a batch has its own draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

_GREY = (0.299, 0.587, 0.114)
_SHIFT = 1 / 8
"""Of a side: the releases move an image by up to 1/16 after padding it to twice its size."""
_Padding = Literal["edge", "reflect"]
"""What lies beyond the border: the edge's own value, or the image mirrored at its edge."""


@dataclass(frozen=True)
class _Strength:
    """How far a view may go: half-widths of the ranges that factors are drawn from.

    >>> gentle = _Strength(0.2, 0.1, 0.1, 0.02, 0.1, degrees=4.0, scale=0.05, blur=0.25)
    >>> gentle.noise
    0.005
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float
    gamma: float
    degrees: float
    scale: float
    blur: float
    noise: float = 0.005


_SOFT = _Strength(0.2, 0.15, 0.25, 0.03, 0.15, 8.0, 0.05, 0.25)
_STRONG = _Strength(0.4, 0.3, 0.5, 0.06, 0.3, 15.0, 0.1, 0.5)


def cotta_view(
    pixels: Tensor,
    generator: torch.Generator,
    *,
    strong: bool = True,
    padding: _Padding = "edge",
    shift: float = _SHIFT,
    grain: bool = True,
) -> Tensor:
    """One random view of every image: colour jitter, affine map, blur, flip and noise.

    The defaults are the view of CoTTA's release, which ViDA's, RoTTA's and RMT's share.

    Args:
        pixels: in [0, 1].
        generator: where every random number comes from.
        strong: the strong ranges or the soft ones.
        padding: what an image that moves uncovers.
        shift: the largest shift, as a share of each side.
        grain: blur and noise on top; ROID's release has neither.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> one = cotta_view(images, torch.Generator().manual_seed(0))
    >>> two = cotta_view(images, torch.Generator().manual_seed(0))
    >>> one.shape, bool((one == two).all()), bool((one >= 0).all() and (one <= 1).all())
    (torch.Size([2, 3, 8, 8]), True, True)
    """
    by = _STRONG if strong else _SOFT
    view = pixels.float().clamp(0, 1)
    view = _colour_jitter(view, generator, by)
    view = _random_affine(view, generator, by, padding, shift)
    if not grain:
        return _random_flip(view, generator)
    view = gaussian_blur(view, _uniform(view, generator, 0.001, by.blur))
    view = _random_flip(view, generator)
    return (view + by.noise * _noise(view, generator)).clamp(0, 1)


def flip(pixels: Tensor) -> Tensor:
    """Left to right."""
    return pixels.flip(-1)


def _random_flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Flip every image with probability one half."""
    chosen = _uniform(pixels, generator, 0, 1) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), flip(pixels), pixels)


@dataclass(frozen=True)
class _ScaledView:
    """A resized, perhaps flipped batch, and the way back for dense predictions.

    >>> view = _ScaledView(torch.zeros(1, 3, 16, 16), flipped=True)
    >>> view.undo(torch.zeros(1, 5, 4, 4), (8, 8)).shape
    torch.Size([1, 5, 8, 8])
    """

    pixels: Tensor
    flipped: bool

    def undo(self, dense: Tensor, size: Sequence[int]) -> Tensor:
        """Bring (B, C, h, w) predictions of this view to the original frame at `size`."""
        back = flip(dense) if self.flipped else dense
        if tuple(back.shape[-2:]) == tuple(size):
            return back
        return F.interpolate(back, size=tuple(size), mode="bilinear", align_corners=False)


def scaled_views(
    pixels: Tensor, scales: Sequence[float], flip: bool = True, *, clamp: bool = True
) -> list[_ScaledView]:
    """The batch at every scale, each also flipped where `flip`.

    `clamp` keeps rounding from leaving [0, 1]; images that are normalised already have no such
    bounds. The view that changes nothing holds `pixels` itself.

    >>> views = scaled_views(torch.rand(1, 3, 8, 8), [0.5, 1.0])
    >>> [(tuple(v.pixels.shape[-2:]), v.flipped) for v in views]
    [((4, 4), False), ((4, 4), True), ((8, 8), False), ((8, 8), True)]
    """
    views = []
    height, width = pixels.shape[-2:]
    for scale in scales:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        resized = pixels
        if size != (height, width):
            resized = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
            resized = resized.clamp(0, 1) if clamp else resized
        views.append(_ScaledView(resized, flipped=False))
        if flip:
            views.append(_ScaledView(resized.flip(-1), flipped=True))
    return views


def _colour_jitter(pixels: Tensor, generator: torch.Generator, by: _Strength) -> Tensor:
    """Brightness, contrast, saturation, hue and gamma, in an order drawn anew."""
    for step in torch.randperm(5, generator=generator).tolist():
        if step == 0:
            pixels = pixels * _factor(pixels, generator, by.brightness)
        elif step == 1:
            mean = _grey(pixels).mean((2, 3), keepdim=True)
            pixels = mean + _factor(pixels, generator, by.contrast) * (pixels - mean)
        elif step == 2:
            grey = _grey(pixels)
            pixels = grey + _factor(pixels, generator, by.saturation) * (pixels - grey)
        elif step == 3:
            pixels = _shift_hue(pixels, _uniform(pixels, generator, -by.hue, by.hue))
        else:
            # The small floor keeps the power's behaviour tame at black.
            pixels = pixels.clamp_min(1e-8) ** _factor(pixels, generator, by.gamma)
        pixels = pixels.clamp(0, 1)
    return pixels


def _shift_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of each image by so many full turns of the colour wheel.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> _shift_hue(red, torch.tensor([1 / 3])).flatten().round(decimals=4).tolist()
    [0.0, 1.0, 0.0]
    """
    red, green, blue = pixels.unbind(1)
    value, low = pixels.amax(1), pixels.amin(1)
    chroma = value - low
    safe = chroma.clamp_min(1e-12)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + 6 * turns.view(-1, 1, 1)
    # Channel n of HSV back to RGB: value − chroma · clamp(min(k, 4 − k), 0, 1), k = (n + h) mod 6.
    channels = []
    for offset in (5, 3, 1):
        k = (offset + hue) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def _random_affine(
    pixels: Tensor,
    generator: torch.Generator,
    by: _Strength,
    padding: _Padding = "edge",
    shift: float = _SHIFT,
) -> Tensor:
    """Turn, move (by whole pixels) and scale every image about its centre."""
    height, width = pixels.shape[-2:]
    angle = _uniform(pixels, generator, -by.degrees, by.degrees) * (math.pi / 180)
    right = (_uniform(pixels, generator, -shift, shift) * width).round() / width
    down = (_uniform(pixels, generator, -shift, shift) * height).round() / height
    scale = _uniform(pixels, generator, 1 - by.scale, 1 + by.scale)
    return _affine(pixels, angle, right, down, scale, padding)


def _affine(
    pixels: Tensor,
    angle: Tensor,
    right: Tensor,
    down: Tensor,
    scale: Tensor,
    padding: _Padding = "edge",
) -> Tensor:
    """Turn by `angle` (radians), scale, then move by shares of width and height; one per image."""
    height, width = pixels.shape[-2:]
    device = pixels.device
    # Pixel centres in pixels from the image's centre: turning needs square units.
    ys = torch.arange(height, device=device) + 0.5 - height / 2
    xs = torch.arange(width, device=device) + 0.5 - width / 2
    angle, right, down, scale = (v.view(-1, 1, 1) for v in (angle, right, down, scale))
    x = xs.view(1, 1, -1) - right * width
    y = ys.view(1, -1, 1) - down * height
    cos, sin = angle.cos() / scale, angle.sin() / scale
    x, y = cos * x + sin * y, cos * y - sin * x
    # A mirror stands at the centre of the outermost pixels, so these are where the grid is ±1.
    mirror = padding == "reflect"
    wide, high = (max(side - mirror, 1) for side in (width, height))
    return F.grid_sample(
        pixels,
        torch.stack([x * 2 / wide, y * 2 / high], -1),
        mode="bilinear",
        padding_mode="reflection" if mirror else "border",
        align_corners=mirror,
    )


def gaussian_blur(pixels: Tensor, sigma: Tensor, size: int = 5) -> Tensor:
    """Blur each image with its own sigma, in pixels."""
    reach = min(size // 2, *(edge - 1 for edge in pixels.shape[-2:]))
    if reach < 1:
        return pixels
    taps = torch.arange(-reach, reach + 1, device=pixels.device, dtype=pixels.dtype)
    kernel = (-0.5 * (taps / sigma.view(-1, 1)).square()).exp()
    kernel = (kernel / kernel.sum(1, keepdim=True)).view(-1, len(taps), 1, 1, 1)
    padded = F.pad(pixels, (reach,) * 4, mode="reflect")
    # Shifted sums in both directions: no intermediate larger than the batch itself.
    width, height = pixels.shape[-1], pixels.shape[-2]
    rows = kernel[:, 0] * padded[..., :width]
    for tap in range(1, len(taps)):
        rows = torch.addcmul(rows, kernel[:, tap], padded[..., tap : tap + width])
    blurred = kernel[:, 0] * rows[..., :height, :]
    for tap in range(1, len(taps)):
        blurred = torch.addcmul(blurred, kernel[:, tap], rows[..., tap : tap + height, :])
    return blurred


def _grey(pixels: Tensor) -> Tensor:
    weights = torch.tensor(_GREY, device=pixels.device, dtype=pixels.dtype).view(1, 3, 1, 1)
    return (pixels * weights).sum(1, keepdim=True)


def _uniform(pixels: Tensor, generator: torch.Generator, low: float, high: float) -> Tensor:
    drawn = torch.rand(len(pixels), generator=generator) * (high - low) + low
    return drawn.to(pixels.device)


def _factor(pixels: Tensor, generator: torch.Generator, width: float) -> Tensor:
    return _uniform(pixels, generator, 1 - width, 1 + width).view(-1, 1, 1, 1)


def _noise(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Normal noise: one field per batch, turned by its own offset for every image.

    Within an image the values are independent; drawing one field keeps the CPU's share small.
    """
    count, _, height, width = pixels.shape
    field = torch.randn(pixels.shape[1:], generator=generator).to(pixels.device)
    down = torch.randint(height, (count, 1), generator=generator)
    right = torch.randint(width, (count, 1), generator=generator)
    rows = ((torch.arange(height) - down) % height).to(pixels.device)
    columns = ((torch.arange(width) - right) % width).to(pixels.device)
    return field[:, rows[:, :, None], columns[:, None, :]].transpose(0, 1)
