"""Whether an expert still fits its domain's images, and how often it is worth learning.

When maps are made it is noted how sure they make answers. Where later answers are clearly less
sure, the images are no longer those that the maps were made from: domains merge, and what is taken
for one domain may be two. Then maps are made anew from the latest images.

An expert's rate falls with its updates, so a later update moves little and costs as much as the
first. How many micro-batches are passed over between two updates grows as the rate falls, up to a
limit; an expert that no longer fits learns at once again.
"""

from __future__ import annotations

import math

from torch import Tensor

from ostinato.ops.losses import flatten_logits, softmax_entropy

MARGIN = 0.1
"""Entropy, in ln C, above that of the maps when they were made that means: they no longer fit."""
REACH = 50
"""Images that the picture of the latest answers reaches back."""


def passed_over(updates: int, settle: float, limit: int) -> int:
    """Micro-batches between two updates that an expert with so many updates does not learn from.

    >>> [passed_over(updates, settle=10, limit=3) for updates in (0, 9, 10, 25, 90)]
    [0, 0, 1, 2, 3]
    """
    return min(limit, int(updates / settle))


def summed_rate(rate: float, updates: int, settle: float, times: int = 1) -> float:
    """The rates of the next so many updates, each shorter than the one before, together.

    >>> summed_rate(1.0, updates=10, settle=10)
    0.5
    >>> round(summed_rate(1.0, updates=0, settle=10, times=2), 4)  # 1 and 1 / 1.1
    1.9091
    """
    return sum(rate / (1 + (updates + later) / settle) for later in range(times))


def unsureness(logits: Tensor) -> list[float]:
    """Entropy of each image's answer, in ln C; the mean over pixels where these are predicted.

    >>> import torch
    >>> [round(value, 6) for value in unsureness(torch.zeros(2, 5))]
    [1.0, 1.0]
    """
    entropy = softmax_entropy(flatten_logits(logits).float()).view(len(logits), -1).mean(1)
    found: list[float] = (entropy / math.log(max(logits.shape[1], 2))).tolist()
    return found


def followed(excess: float, found: list[float], usual: float) -> float:
    """How much less sure the latest answers are than usual, once some more were seen.

    >>> round(followed(0.0, [0.7] * 25, usual=0.5), 3)
    0.1
    """
    weight = min(1.0, len(found) / REACH)
    return (1 - weight) * excess + weight * (sum(found) / len(found) - usual)
