"""Losses between two predictions, and on hard pseudo-labels. One value per item, as pure functions.

Logits are (N, C), or (N, C, ...) per pixel; items are images, or pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.ops.losses import flatten_logits


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of a prediction with another's softmax as the soft label.

    >>> even = torch.zeros(1, 2)
    >>> round(float(soft_cross_entropy(even, even)), 4)
    0.6931
    """
    soft = flatten_logits(target).float().softmax(1)
    return -(soft * flatten_logits(logits).float().log_softmax(1)).sum(1)


def symmetric_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean of the cross-entropies of both directions."""
    return 0.5 * (soft_cross_entropy(logits, target) + soft_cross_entropy(target, logits))


def pseudo_label_loss(logits: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor]:
    """Cross-entropy with the prediction's own hard label, where it is confident enough.

    Returns the mean over the items whose largest probability reaches the threshold (zero where
    there is none), and how many there are.

    >>> logits = torch.tensor([[4.0, 0.0], [0.1, 0.0]])
    >>> loss, used = pseudo_label_loss(logits, threshold=0.9)
    >>> round(float(loss), 4), int(used)
    (0.0181, 1)
    """
    items = flatten_logits(logits).float()
    confidence, labels = items.detach().softmax(1).max(1)
    keep = confidence >= threshold
    loss = F.cross_entropy(items, labels, reduction="none")
    return masked_mean(loss, keep), keep.sum()


def masked_mean(values: Tensor, keep: Tensor) -> Tensor:
    """Mean over the kept values; zero, and without gradient to speak of, where there are none."""
    return torch.where(keep, values, 0).sum() / keep.sum().clamp_min(1)
