"""Confidence of learned answers: as that of the maps alone, which nothing was optimised for.

Learning lowers entropy, right or wrong, so how sure learned answers are means little. Their logits
are divided by a temperature, one a domain, under which they are on average as sure as the answers
of the domain's maps. Which class is likeliest stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

GAIN = 0.5
"""How far an update moves a temperature by what a micro-batch says."""
HOTTEST = 8.0


def warmed(temperature: float, entropy: float, wanted: float) -> float:
    """The temperature after a micro-batch: towards the mean entropy that is wanted, never below 1.

    Args:
        temperature: as it was.
        entropy: mean entropy of a micro-batch's learned answers at that temperature, in nats.
        wanted: the one that is wanted.

    >>> from ostinato.ops.losses import softmax_entropy
    >>> sharp, found = 9 * torch.eye(4), 1.0
    >>> for _ in range(40):
    ...     found = warmed(found, float(softmax_entropy(sharp / found).mean()), wanted=0.5)
    >>> round(float(softmax_entropy(sharp / found).mean()), 2)
    0.5
    >>> warmed(1.0, 1.4, wanted=0.5)  # unsure enough as they are
    1.0
    """
    off = (wanted - entropy) / max(wanted, entropy, 1e-6)
    return min(max(temperature * math.exp(GAIN * off), 1.0), HOTTEST)


def tempered(logits: Tensor, owners: Sequence[int], temperatures: Mapping[int, float]) -> Tensor:
    """Logits (B, C, ...) divided by the temperature of each image's domain, 1 where none is known.

    >>> tempered(torch.ones(2, 3), [1, 2], {2: 4.0})[:, 0].tolist()
    [1.0, 0.25]
    """
    factors = [1 / temperatures.get(owner, 1.0) for owner in owners]
    if all(factor == 1 for factor in factors):
        return logits
    scale = torch.tensor(factors, dtype=logits.dtype, device=logits.device)
    return logits * scale.view(-1, *[1] * (logits.ndim - 1))
