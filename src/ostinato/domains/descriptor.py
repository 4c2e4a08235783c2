"""What an image looks like to the discriminator: one vector per image, cheap and label-free.

Every descriptor is registered by name in `DESCRIPTORS`, is built from a radius, and maps images in
[0, 1] (before any normalisation) to float32 vectors. Values are kept of order one, so that one
initial variance serves them all.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ostinato.errors import ConfigError, InputError
from ostinato.registry import DESCRIPTORS

LUMA = (0.299, 0.587, 0.114)
"""ITU-R BT.601 weights of red, green and blue."""

REFERENCE_RADIUS, REFERENCE_SIZE, LEAST_RADIUS = 16, 224, 2
BINS = 32
THRESHOLD = 0.16
"""Of most descriptors: where the low frequencies of two corruptions begin to differ."""


class Descriptor(Protocol):
    """Images (and, where `needs_features`, the model's CLS features) to vectors.

    Attributes:
        needs_features: whether `features` has to be given.
        size_matters: whether vectors of differently sized images cannot be compared.
        threshold: the distance above which a domain is new, unless another one is set.
    """

    needs_features: bool
    size_matters: bool
    threshold: float

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, d) float32."""
        ...


def _grey(images: Tensor) -> Tensor:
    """(B, 3, H, W) to (B, H, W) in float32, by ITU-R BT.601 luma.

    >>> _grey(torch.ones(1, 3, 2, 2))[0, 0]
    tensor([1., 1.])
    """
    check_images(images)
    red, green, blue = images.detach().float().unbind(1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def check_images(images: Tensor) -> None:
    """Raise an `InputError` unless these are (B, 3, H, W) floating-point images."""
    shape = tuple(images.shape)
    if images.dim() != 4 or shape[1] != 3 or 0 in shape:
        raise InputError(f"Images should be (B, 3, H, W) with B ≥ 1, not {shape}.")
    if not images.is_floating_point():
        raise InputError(f"Images should be float in [0, 1], not {images.dtype}: divide by 255.")


def _radius_for(height: int, width: int, radius: int | None = None) -> int:
    """The frequency radius for an image size: 16 at 224 px, in proportion elsewhere, 2 at least.

    >>> _radius_for(224, 224), _radius_for(32, 32), _radius_for(540, 960), _radius_for(32, 32, 5)
    (16, 2, 39, 5)
    """
    short = min(height, width)
    scaled = max(LEAST_RADIUS, round(REFERENCE_RADIUS * short / REFERENCE_SIZE))
    chosen = scaled if radius is None else radius
    most = (short - 1) // 2
    if chosen > most:
        raise InputError(
            f"Images of {height}×{width} have frequencies up to {most}, radius {chosen} is more: "
            f"use images of at least {2 * chosen + 1} px or a radius of at most {most}."
        )
    return chosen


def _partial_spectrum(
    grey_images: Tensor, rows: tuple[int, ...], columns: tuple[int, ...]
) -> Tensor:
    """|DFT| of (B, H, W) at the given frequencies only, by two small matrix products.

    Always in float32: half precision loses the small magnitudes that tell domains apart.

    >>> image = torch.rand(1, 8, 6, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(
    ...     _partial_spectrum(image, (0, 3), (1,)), torch.fft.fft2(image).abs()[:, [0, 3], 1:2]
    ... )
    True
    """
    with torch.no_grad(), torch.autocast(grey_images.device.type, enabled=False):
        image = grey_images.float()
        down = _dft_matrix(image.shape[1], rows, str(image.device))
        across = _dft_matrix(image.shape[2], columns, str(image.device))
        both = down @ (image @ across.T)
        u, v = len(rows), len(columns)
        real = both[:, :u, :v] - both[:, u:, v:]
        imaginary = both[:, :u, v:] + both[:, u:, :v]
        return torch.hypot(real, imaginary)


@lru_cache(maxsize=32)
def _dft_matrix(length: int, frequencies: tuple[int, ...], device: str) -> Tensor:
    """Cosines above sines, (2F, length); angles are reduced as integers to stay exact."""
    # A tensor born in inference mode could not be used outside it, and this one is kept.
    with torch.inference_mode(False), torch.no_grad():
        turns = torch.outer(torch.tensor(frequencies), torch.arange(length)) % length
        angles = turns.double() * (2 * math.pi / length)
        return torch.cat([angles.cos(), angles.sin()]).float().to(device)


def _coarse_spectrum(grey_images: Tensor, cells: int) -> Tensor:
    """The centred log1p |DFT| of (B, H, W), averaged over cells × cells areas: (B, cells²)."""
    with torch.no_grad(), torch.autocast(grey_images.device.type, enabled=False):
        magnitude = torch.fft.fftshift(torch.fft.fft2(grey_images.float()).abs(), dim=(-2, -1))
        return adaptive_avg_pool2d(torch.log1p(magnitude), cells).flatten(1)


class _Spectral:
    """What the three spectral descriptors have in common: a radius, and sizes that matter."""

    needs_features = False
    size_matters = True
    threshold = THRESHOLD

    def __init__(self, radius: int | None = None) -> None:
        if radius is not None and radius < 1:
            raise ConfigError(
                f"radius = {radius}: use 1 or more, or none to follow the image size."
            )
        self.radius = radius

    def _prepare(self, images: Tensor) -> tuple[Tensor, int]:
        check_images(images)
        return _grey(images), _radius_for(images.shape[2], images.shape[3], self.radius)


@DESCRIPTORS.register("low")
class LowFrequency(_Spectral):
    """log1p of the centred (2l+1)² patch of the magnitude spectrum: the paper's descriptor.

    >>> LowFrequency()(torch.rand(2, 3, 224, 224)).shape
    torch.Size([2, 1089])
    """

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, (2l+1)²)."""
        image, radius = self._prepare(images)
        kept = tuple(range(-radius, radius + 1))
        return torch.log1p(_partial_spectrum(image, kept, kept)).flatten(1)


@DESCRIPTORS.register("high")
class HighFrequency(_Spectral):
    """The opposite end: a (2l+1)² patch around the Nyquist frequency, as large as `low`'s.

    In the centred spectrum this is what lies in the four corners.

    >>> HighFrequency(radius=2)(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 25])
    """

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, (2l+1)²)."""
        image, radius = self._prepare(images)
        rows, columns = (
            tuple(range(side // 2 - radius, side // 2 + radius + 1)) for side in image.shape[1:]
        )
        return torch.log1p(_partial_spectrum(image, rows, columns)).flatten(1)


@DESCRIPTORS.register("full")
class FullSpectrum(_Spectral):
    """The whole centred log spectrum, averaged over the cells of a (2l+1)² grid.

    The logarithm comes before the averaging, so that one strong frequency does not fill its cell.
    High frequencies set noise and blur far apart, so that its threshold is a wide one.

    >>> FullSpectrum(radius=2)(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 25])
    """

    threshold = 0.4

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, (2l+1)²)."""
        image, radius = self._prepare(images)
        return _coarse_spectrum(image, 2 * radius + 1)


@DESCRIPTORS.register("rgb-histogram")
class RgbHistogram:
    """log1p of a 32-bin histogram per colour channel, relative to an even spread (1 = even).

    Shares do not depend on the number of pixels, so images of any size can be compared.

    >>> RgbHistogram()(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 96])
    """

    needs_features = False
    size_matters = False
    threshold = THRESHOLD

    def __init__(self, radius: int | None = None) -> None:
        self.radius = radius

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, 96)."""
        check_images(images)
        pixels = images.detach().float().flatten(2).flatten(0, 1)
        bins = (pixels.nan_to_num() * BINS).long().clamp_(0, BINS - 1)
        counts = torch.zeros(len(bins), BINS, dtype=torch.long, device=images.device)
        counts.scatter_add_(1, bins, torch.ones_like(bins))
        shares = counts.float() * (BINS / bins.shape[1])
        # Counting hides NaN and infinite pixels; the descriptor has to show them.
        shares = shares + 0 * pixels.mean(1, keepdim=True)
        return torch.log1p(shares).reshape(len(images), -1)


@DESCRIPTORS.register("style")
class Style:
    """The whole spectrum on a coarse grid beside the RGB histogram: texture and tone.

    Spectra tell noise from blur but hardly rain from snow, histograms the other way round. The grid
    is so coarse that both have about as many numbers, and so as much to say.

    >>> Style()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 177])
    """

    needs_features = False
    size_matters = True
    threshold = 0.4
    cells = 9

    def __init__(self, radius: int | None = None) -> None:
        self.radius = radius
        self.tone = RgbHistogram()

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, 177)."""
        check_images(images)
        return torch.cat([_coarse_spectrum(_grey(images), self.cells), self.tone(images)], 1)


@DESCRIPTORS.register("cls-feature")
class ClsFeature:
    """The model's own CLS feature: semantic, not spectral, and it drifts as the model does.

    >>> ClsFeature()(torch.rand(4, 3, 32, 32), features=torch.rand(4, 192)).shape
    torch.Size([4, 192])
    """

    needs_features = True
    size_matters = False
    threshold = THRESHOLD

    def __init__(self, radius: int | None = None) -> None:
        self.radius = radius

    def __call__(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, D) features, in float32."""
        if features is None:
            raise InputError("The descriptor 'cls-feature' needs the model's CLS features.")
        if features.dim() != 2 or len(features) != len(images):
            raise InputError(
                f"CLS features should be ({len(images)}, D), not {tuple(features.shape)}."
            )
        return features.detach().float()
