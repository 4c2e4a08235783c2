"""Learning where it pays: a settled expert that still fits passes micro-batches over.

An expert's rate falls with its updates, so a later update moves little and costs as much as the
first. How many micro-batches are passed over between two updates grows as the rate falls, up to a
limit; where answers become clearly less sure than the domain's usually are, the expert no longer
fits, and learns at once again.
"""

from __future__ import annotations

import math

from torch import Tensor

from ostinato.ops.losses import flatten_logits, softmax_entropy

MARGIN = 0.05
"""Entropy, in ln C, above the usual that means: it no longer fits."""
MEMORY = 0.1
"""Weight of the latest batch in what is usual."""


def passed_over(updates: int, settle: float, limit: int) -> int:
    """Micro-batches between two updates that an expert with so many updates does not learn from.

    >>> [passed_over(updates, settle=10, limit=3) for updates in (0, 9, 10, 25, 90)]
    [0, 0, 1, 2, 3]
    """
    return min(limit, int(updates / settle))


def unsureness(logits: Tensor) -> float:
    """Mean entropy of answers, in ln C.

    >>> import torch
    >>> round(unsureness(torch.zeros(2, 5)), 6)
    1.0
    """
    flat = flatten_logits(logits).float()
    return float(softmax_entropy(flat).mean()) / math.log(max(flat.shape[1], 2))


def usual_after(usual: float, found: float) -> float:
    """What is usual once a batch was seen.

    >>> round(usual_after(0.4, 0.5), 3)
    0.41
    """
    return (1 - MEMORY) * usual + MEMORY * found
