"""Predictions averaged over resized and flipped views, for dense and for single labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ostinato.ops.augment import flip, scaled_views


def mean_probabilities(
    predict: Callable[[Tensor], Tensor], pixels: Tensor, scales: Sequence[float]
) -> Tensor:
    """Mean over views of softmax(logits), in the frame of the unscaled prediction.

    Dense predictions are averaged over every scale, each also flipped. A classifier may take one
    size alone, so it sees the image and its mirror image.

    >>> constant = lambda pixels: torch.zeros(len(pixels), 2)
    >>> mean_probabilities(constant, torch.rand(1, 3, 4, 4), [1.0]).tolist()
    [[0.5, 0.5]]
    """
    plain = predict(pixels).float()
    if plain.ndim == 2:
        return torch.stack([plain.softmax(1), predict(flip(pixels)).float().softmax(1)]).mean(0)
    size = plain.shape[-2:]
    total = torch.zeros_like(plain)
    views = scaled_views(pixels, scales)
    for view in views:
        total += view.undo(predict(view.pixels).float().softmax(1), size)
    return total / len(views)


def blend_labels(sure: Tensor, single: Tensor, averaged: Tensor) -> Tensor:
    """The single view's probabilities where `sure` (B, ...), the averaged ones elsewhere."""
    return torch.where(sure.unsqueeze(1), single, averaged)
