"""What the order in which images come says about domains."""

from __future__ import annotations

from torch import Tensor

UNSURE = 0.1
"""Changes of domain that chance must be expected to make before traffic can be seen to stay."""


def alone(mine: Tensor) -> float:
    """Share of a domain's recent images that another one of it followed: 1 in blocks.

    Args:
        mine: (n,) which of the recent images, oldest first, are the domain's.

    >>> import torch
    >>> alone(torch.tensor([True, True, True])), alone(torch.tensor([True, False, True, False]))
    (1.0, 0.0)
    """
    followers = mine[1:][mine[:-1]]
    return float(followers.float().mean()) if len(followers) else 1.0


def staying(owner: Tensor, counts: Tensor) -> float:
    """How far traffic stays with a domain: 0 where they come in any order, or one alone is known.

    How often the domain would change by chance is told by all images of each so far, so that one
    domain that fills the memory in blocks is not taken for mixed traffic's first.

    Args:
        owner: (n,) domains of the recent images, oldest first.
        counts: (K,) images of each domain so far, the source first, which does not count.

    >>> import torch
    >>> blocks, counts = torch.tensor([1] * 50 + [2] * 50), torch.tensor([300.0, 50.0, 50.0])
    >>> round(staying(blocks, counts), 2), staying(blocks.view(2, 50).T.flatten(), counts)
    (0.82, 0.0)
    """
    if len(counts) < 3 or len(owner) < 2:
        return 0.0
    share = counts[1:] / counts[1:].sum()
    chance = 1 - float(share.square().sum())
    turns = float((owner[1:] != owner[:-1]).float().mean())
    return max(0.0, (chance - turns) / (chance + UNSURE))


def later(group: Tensor, mine: Tensor, enough: int) -> Tensor:
    """Of a group and what it leaves behind, the one that came later; the domain is the other.

    Args:
        group: indices of the images that a test split off.
        mine: (n,) which of the images are the domain's.
        enough: images that what is left needs, to be a group of its own.

    >>> import torch
    >>> later(torch.tensor([0, 1]), torch.ones(5, dtype=torch.bool), enough=2).tolist()
    [2, 3, 4]
    """
    rest = mine.clone()
    rest[group] = False
    left, own = rest.nonzero()[:, 0], group[mine[group]]
    if len(left) < enough or not len(own):
        return group
    return group if own.double().mean() >= left.double().mean() else left
