"""Objectives on logits and features, as pure functions.

Logits are (N, C), or (N, C, ...) per pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

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


def sharp_entropy(logits: Tensor, kappa: float) -> Tensor:
    """The mean over all items of the entropy of those below κ·ln C, the surer the weightier.

    >>> sharp_entropy(torch.zeros(2, 5), kappa=0.4).item()
    0.0
    """
    entropy = softmax_entropy(logits)
    threshold = entropy_threshold(kappa, logits.shape[1])
    weight = (entropy.detach() < threshold) * torch.exp(threshold - entropy.detach())
    return (entropy * weight).sum() / len(entropy)


def unsureness(logits: Tensor) -> list[float]:
    """Entropy of each image's answer, in ln C; the mean over pixels where these are predicted.

    >>> [round(value, 6) for value in unsureness(torch.zeros(2, 5))]
    [1.0, 1.0]
    """
    entropy = softmax_entropy(flatten_logits(logits).float()).view(len(logits), -1).mean(1)
    found: list[float] = (entropy / math.log(max(logits.shape[1], 2))).tolist()
    return found


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


def alignment(
    features: Sequence[Tensor], means: Sequence[Tensor], stds: Sequence[Tensor]
) -> Tensor:
    """Mean over blocks of ‖batch mean − source mean‖ + ‖batch std − source std‖.

    Blocks of one width are taken at once: a few operators in place of some for every block.

    Args:
        features: of every block, (B, D) each.
        means: of the source's, a vector for every block.
        stds: likewise.

    >>> batch = torch.tensor([[3.0, 4.0], [3.0, 4.0]])  # its mean is 5 away, its deviation √2
    >>> round(float(alignment([batch], [torch.zeros(2)], [torch.ones(2)])), 4)
    6.4142
    """
    widths = [feature.shape[1] for feature in features]
    terms = []
    for width in dict.fromkeys(widths):
        alike = [k for k, other in enumerate(widths) if other == width]
        found = torch.stack([features[k] for k in alike]).float()
        for values, known in ((found.mean(1), means), (found.std(1), stds)):
            wanted = torch.stack([known[k] for k in alike])
            terms.append(torch.linalg.vector_norm(values - wanted, dim=1))
    return torch.cat(terms).sum() / len(widths)


class Seen(NamedTuple):
    """What the host has to know of an update before it is made.

    Attributes:
        loss: the loss.
        variety: entropy of the mean answer.
        entropy: mean entropy of the answers, at their temperature.
        finite: whether every gradient is a number, 1 or 0.
    """

    loss: float
    variety: float
    entropy: float
    finite: float


def facts(
    logits: Tensor, loss: Tensor, grads: Sequence[Tensor], temperature: float | Tensor = 1.0
) -> Tensor:
    """(4,) what `Seen` holds, still on the device.

    >>> facts(torch.eye(2), torch.tensor(0.5), [torch.ones(3)])[[0, 3]].tolist()
    [0.5, 1.0]
    """
    answers = logits.float()
    variety = distribution_entropy(answers.softmax(1).mean(0))
    entropy = softmax_entropy(answers / temperature).mean()
    finite = torch.stack([grad.isfinite().all() for grad in grads]).all()
    return torch.stack([one.double() for one in (loss, variety, entropy, finite)])


def seen(found: Tensor) -> Seen:
    """All of it by one look at the device, which the host waits for.

    >>> one = seen(facts(torch.eye(2), torch.tensor(0.5), [torch.ones(3)]))
    >>> one.loss, round(one.variety, 2), round(one.entropy, 2), one.finite
    (0.5, 0.69, 0.58, 1.0)
    """
    return Seen(*found.tolist())
