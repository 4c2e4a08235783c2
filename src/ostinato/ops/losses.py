"""Objectives on logits, as pure functions. Logits are (N, C), or (N, C, ...) per pixel."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

EntropyUnit = Literal["relative", "nats"]


def flatten_logits(logits: Tensor) -> Tensor:
    """(B, C, ...) to (items, C): images for classification, pixels for segmentation.

    >>> flatten_logits(torch.zeros(2, 5, 4, 4)).shape
    torch.Size([32, 5])
    """
    if logits.ndim == 2:
        return logits
    return logits.movedim(1, -1).reshape(-1, logits.shape[1])


def softmax_entropy(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits) in nats, one value per item.

    >>> round(float(softmax_entropy(torch.zeros(1, 4))), 4) == round(math.log(4), 4)
    True
    """
    logp = flatten_logits(logits).float().log_softmax(1)
    return -(logp.exp() * logp).sum(1)


def entropy_threshold(kappa: float, classes: int, unit: EntropyUnit = "relative") -> float:
    """κ as a bound in nats: κ·ln C ("relative", the filter's own convention) or κ itself."""
    return kappa * math.log(classes) if unit == "relative" else kappa


def confident_entropy(logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Mean over all items of the entropy of those below the threshold; and how many there were.

    The indicator of the paper's objective multiplies each item's entropy, so the mean runs over
    every item: a batch with few confident items moves the model little.
    """
    entropy = softmax_entropy(logits)
    keep = entropy.detach() < threshold
    return (entropy * keep).sum() / entropy.numel(), keep.sum()


def marginal(logits: Tensor) -> Tensor:
    """The mean prediction over all items, (C,)."""
    return flatten_logits(logits).float().softmax(1).mean(0)


def distribution_entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats of one distribution.

    >>> float(distribution_entropy(torch.tensor([1.0, 0.0])))
    0.0
    """
    entropy: Tensor = torch.special.entr(probabilities).sum()
    return entropy
