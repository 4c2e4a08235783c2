"""Whether a map makes answers better, judged without labels: by how sure and how varied they are.

A map that undoes a shift makes answers surer. With few classes in view it makes them less sure: it
moves what is there towards what is not. So a map has to be clearly surer than the source model.

Where answers fall on all classes alike, few classes cannot be in view, and that would ask too much.
A source model that is wrong and sure of it is surer than a good map; and in some networks a map
shrinks all logits alike, so that answers are less sure but not other ones. Then logits count at the
source's scale, and a little less sure is sure enough. A map that moves far scatters the answers to
one class over all of them, so large shares need the variety of a middle one, too.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from ostinato.ops.losses import distribution_entropy, flatten_logits

CHANCE = 0.5
"""Standard errors of a difference that count against a map, or for one that has been trusted."""
CLEARLY = 1.5
"""The same against a new map where few classes may be in view."""
VARIED, MANY = 0.96, 8
"""Answers fall on all classes alike if they are as varied as this share of what an even draw is to
be expected to be, and as so many classes at least."""
LENIENT = 0.03
"""Entropy, in ln C, by which such answers may be less sure than the source's."""
_COUNTED = 4096
"""Items beyond which a draw of classes is as varied as the classes are."""


def doubt(
    logits: Tensor, source: Tensor, trusted: bool = False, varied: bool | None = None
) -> float:
    """How much less sure answers are than the source's, in ln C; below zero they are better.

    The mean difference of entropies, and what chance leaves open of it. On tuning images of three
    models, over corruptions, severities and mixes of classes, it went with the change of the error.

    Args:
        logits: (B, C, ...) with a map.
        source: the source model's, of the same items.
        trusted: whether the domain's maps act already, so that something has to speak against them.
        varied: whether the answers fall on all classes alike; looked at unless given.

    >>> sure, unsure = torch.tensor([[5.0, 0.0]] * 4), torch.tensor([[1.0, 0.0]] * 4)
    >>> doubt(sure, unsure) < 0 < doubt(unsure, sure)
    True
    """
    varied = is_varied(logits) if varied is None else varied
    answers = likely(at_scale(logits, source) if varied else logits)
    more = torch.special.entr(answers).sum(1) - torch.special.entr(likely(source)).sum(1)
    chance = -CHANCE if trusted else CHANCE if varied else CLEARLY
    total = more.mean() + chance * more.std() / math.sqrt(max(len(more) - 1, 1))
    return float(total) / math.log(answers.shape[1]) - (LENIENT if varied else 0.0)


def likely(logits: Tensor) -> Tensor:
    """Probabilities, an item a row: (B, C, ...) to (items, C)."""
    return flatten_logits(logits).float().softmax(1)


def at_scale(logits: Tensor, source: Tensor) -> Tensor:
    """Logits that spread as wide over the classes as the source's do, if they spread less.

    >>> source = torch.tensor([[3.0, 0.0, 0.0]])
    >>> [at_scale(factor * source, source)[0, 0].item() for factor in (0.5, 2.0)]
    [3.0, 6.0]
    """
    wide, usual = (flatten_logits(one).float().std(1).mean() for one in (logits, source))
    return logits * (usual / wide.clamp_min(1e-12)).clamp_min(1.0)


def is_varied(logits: Tensor) -> bool:
    """Whether answers fall on the classes as evenly as if these had been drawn; few never do.

    >>> is_varied(torch.eye(10).repeat(6, 1)), is_varied(torch.eye(10)[:2].repeat(30, 1))
    (True, False)
    """
    said = flatten_logits(logits).argmax(1)
    count, classes = len(said), logits.shape[1]
    found = float(distribution_entropy(torch.bincount(said, minlength=classes) / count))
    return found >= max(VARIED * drawn_variety(count, classes), math.log(MANY))


@lru_cache(maxsize=64)
def drawn_variety(count: int, classes: int) -> float:
    """Entropy to be expected of the shares of classes among so many items, drawn evenly.

    With k items of one class, binomial, it is ln n − C / n · E[k ln k].

    >>> round(drawn_variety(2, 2), 4), round(0.5 * math.log(2), 4)
    (0.3466, 0.3466)
    """
    if count > _COUNTED:
        return math.log(classes)
    k = torch.arange(1, count + 1, dtype=torch.double)
    total = torch.tensor(float(count), dtype=torch.double)
    ways = torch.lgamma(total + 1) - torch.lgamma(k + 1) - torch.lgamma(total - k + 1)
    chance = ways - k * math.log(classes) + (total - k) * math.log1p(-1 / max(classes, 2))
    return math.log(count) - classes / count * float((chance.exp() * k * k.log()).sum())
