"""Predictions averaged over resized and flipped views, and what marks a model that makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.ops.augment import flip, scaled_views


class Viewed(nn.Module):
    """A base for models that show `base` several views of an image and join its answers.

    Whoever reads features inside `base` wants one per image, of the image as it is; the two
    attributes say which rows of the present forward those are.

    Attributes:
        base: the model that sees the views.
        pieces: consecutive rows of the batch that are one image's.
        aside: True while a view runs that is not the image as it is.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.training = base.training
        self.pieces = 1
        self.aside = False

    def __getattr__(self, name: str) -> Any:
        # What a model says of itself (its input convention, its config) holds for its views too.
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(super().__getattr__("base"), name)


def innermost(model: nn.Module) -> nn.Module:
    """The model that sees the views, below any number of them.

    >>> net = nn.Identity()
    >>> innermost(Viewed(Viewed(net))) is net
    True
    """
    while isinstance(model, Viewed):
        model = model.base
    return model


def mean_probabilities(
    predict: Callable[[Tensor], Tensor],
    pixels: Tensor,
    scales: Sequence[float],
    *,
    flipped: bool = True,
    clamp: bool = True,
    together: bool = False,
    plain: Tensor | None = None,
) -> Tensor:
    """Mean over views of softmax(logits), in the frame of the unscaled prediction.

    Dense predictions are averaged over every scale, each also flipped where `flipped`. A
    classifier may take one size alone, so it sees the image and its mirror image. The plain
    prediction, which comes first, is made once, or not at all where it is given.
    `together` shows views of one size in one batch, which a model that treats rows alike answers
    the same and sooner.

    >>> constant = lambda pixels: torch.zeros(len(pixels), 2)
    >>> mean_probabilities(constant, torch.rand(1, 3, 4, 4), [1.0]).tolist()
    [[0.5, 0.5]]
    """
    plain = (predict(pixels) if plain is None else plain).float()
    if plain.ndim == 2:
        return torch.stack([plain.softmax(1), predict(flip(pixels)).float().softmax(1)]).mean(0)
    size = plain.shape[-2:]
    total = torch.zeros_like(plain)
    views = scaled_views(pixels, scales, flipped, clamp=clamp)
    new = [view for view in views if view.pixels is not pixels]
    total = total + (len(views) - len(new)) * plain.softmax(1)
    for _, some in groupby(new, lambda view: view.pixels.shape if together else id(view)):
        group = list(some)
        seen = predict(torch.cat([view.pixels for view in group])).float().softmax(1)
        for view, mine in zip(group, seen.split(len(pixels)), strict=True):
            total = total + view.undo(mine, size)
    return total / len(views)


def blend_labels(sure: Tensor, single: Tensor, averaged: Tensor) -> Tensor:
    """The single view's probabilities where `sure` (B, ...), the averaged ones elsewhere."""
    return torch.where(sure.unsqueeze(1), single, averaged)
