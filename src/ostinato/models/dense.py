"""Sliding windows, and resized and mirrored views, around any model that predicts per pixel.

Both are modules like the one inside: `ostinato.adapt` takes them, gradients pass through, and
experts are found in the model within. They may be nested, views around windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import ConfigError
from ostinato.models import logits_of
from ostinato.ops.views import Viewed, mean_probabilities

_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)


def _window_starts(length: int, size: int, stride: int) -> list[int]:
    """Where windows begin along one side; the last one ends with the image.

    >>> _window_starts(10, 4, 3), _window_starts(11, 4, 3), _window_starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    last = max(length - size, 0)
    return [*range(0, last, stride), last]


def usual_stride(size: tuple[int, int]) -> tuple[int, int]:
    """Three quarters of a window.

    >>> usual_stride((1024, 1024))
    (768, 768)
    """
    return max(1, size[0] * 3 // 4), max(1, size[1] * 3 // 4)


def check_windows(size: Sequence[int], stride: Sequence[int] | None) -> None:
    """Refuse windows that are empty, or that leave pixels between them."""
    if len(size) != 2 or min(size) < 1:
        raise ConfigError(f"window = {list(size)}: give height and width, such as [512, 512].")
    if stride is None:
        return
    if len(stride) != 2 or not all(1 <= s <= w for s, w in zip(stride, size, strict=True)):
        raise ConfigError(
            f"stride = {list(stride)}: height and width from 1 to the window's "
            f"{list(size)}, or there are pixels that no window sees."
        )


def check_scales(scales: Sequence[float]) -> None:
    """Refuse a list of scales that is empty, repeats itself or holds no size."""
    if not scales or min(scales) <= 0 or len(set(scales)) < len(scales):
        raise ConfigError(
            f"scales = {list(scales)}: positive numbers, each once, such as [0.5, 1]."
        )


class SlidingWindow(Viewed):
    """Predict overlapping windows and average their logits where they meet.

    All windows of a batch go through the model as one forward. The result has the input's size.
    An image smaller than the window is one window.

    Args:
        model: takes (N, 3, h, w), gives logits per pixel of any resolution.
        size: height and width of a window.
        stride: from one window to the next; three quarters of the window unless given.

    >>> net = nn.Conv2d(3, 5, 1)
    >>> sliding = SlidingWindow(net, size=(4, 6))
    >>> images = torch.rand(2, 3, 10, 10)
    >>> bool(torch.allclose(sliding(images), net(images), atol=1e-6))
    True
    """

    def __init__(
        self, model: nn.Module, size: tuple[int, int], stride: tuple[int, int] | None = None
    ) -> None:
        check_windows(size, stride)
        super().__init__(model)
        self.size = size
        self.stride = stride or usual_stride(size)

    def extra_repr(self) -> str:
        """Size and stride."""
        return f"size={self.size}, stride={self.stride}"

    def windows(self, height: int, width: int) -> list[tuple[slice, slice]]:
        """The rows and columns of every window of an image."""
        (h, w), (down, right) = self.size, self.stride
        return [
            (slice(top, top + min(h, height)), slice(left, left + min(w, width)))
            for top in _window_starts(height, h, down)
            for left in _window_starts(width, w, right)
        ]

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C, H, W) of images (B, 3, H, W)."""
        height, width = images.shape[-2:]
        places = self.windows(height, width)
        cut = torch.stack([images[..., rows, columns] for rows, columns in places], 1)
        self.pieces = len(places)  # one image's windows lie together
        try:
            logits = _dense(logits_of(self.base(cut.flatten(0, 1))), self)
        finally:
            self.pieces = 1
        logits = _resize(logits.float(), cut.shape[-2:])
        parts = logits.unflatten(0, (len(images), len(places)))
        total = logits.new_zeros(len(images), logits.shape[1], height, width)
        seen = logits.new_zeros(height, width)
        for number, (rows, columns) in enumerate(places):
            total[..., rows, columns] += parts[:, number]
            seen[rows, columns] += 1
        return total / seen


class MultiView(Viewed):
    """The log of the mean probability over resized and mirrored views of every image.

    The result has the size of the plain prediction, which counts only where 1 is among the
    scales. Every view is a forward whose activations are kept for the gradient.

    Args:
        model: gives logits per pixel for images of any size.
        scales: of the views.
        flip: see each of them mirrored as well.

    >>> views = MultiView(nn.Conv2d(3, 5, 1), scales=(0.5, 1.0))
    >>> views(torch.rand(2, 3, 8, 8)).exp().sum(1).mean().round(decimals=4).item()
    1.0
    """

    def __init__(
        self, model: nn.Module, scales: Iterable[float] = _SCALES, flip: bool = True
    ) -> None:
        super().__init__(model)
        self.scales = tuple(scales)
        self.flip = flip
        check_scales(self.scales)

    def extra_repr(self) -> str:
        """Scales and flip."""
        return f"scales={self.scales}, flip={self.flip}"

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities (B, C, h, w)."""

        def predict(pixels: Tensor) -> Tensor:
            self.aside = pixels is not images  # features are read from the image as it is
            return _dense(logits_of(self.base(pixels)), self)

        try:
            mean = mean_probabilities(predict, images, self.scales, flipped=self.flip, clamp=False)
        finally:
            self.aside = False
        return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()


def _dense(logits: Tensor, viewed: Viewed) -> Tensor:
    if logits.ndim != 4:
        raise ConfigError(
            f"{type(viewed).__name__} is for models that predict per pixel; "
            f"{type(viewed.base).__name__} gives {tuple(logits.shape)}, not (B, C, H, W)."
        )
    return logits


def _resize(logits: Tensor, size: Sequence[int]) -> Tensor:
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)
