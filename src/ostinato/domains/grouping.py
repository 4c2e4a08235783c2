"""Finding groups among images of several domains: two means at a time, as long as they differ."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.domains.gaussian import difference

ROUNDS = 10


def groups(z: Tensor, separation: float, least: int) -> list[Tensor]:
    """Indices of the groups in z, largest first.

    A set is split in two where the halves' means differ by more than `separation`, in units of the
    variance within them, and neither has fewer than `least` images. Splitting one Gaussian domain
    in two gives about 2.5 times the share of its first principal axis: 0.3 to 0.7 for low
    frequencies of photographs, which is why the separation has to be larger.

    >>> z = torch.cat([torch.zeros(6, 3), torch.ones(4, 3)]) + 0.01 * torch.eye(10)[:, :3]
    >>> [group.tolist() for group in groups(z, 1.0, 2)]
    [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    """
    waiting, found = [torch.arange(len(z), device=z.device)], []
    while waiting:
        index = waiting.pop()
        first = two_means(z[index]) if len(index) >= 2 * least else None
        if first is None or not _apart(z[index], first, separation, least):
            found.append(index)
        else:
            waiting += [index[first], index[~first]]
    # Ties go to the group whose first image came earlier, so that the order is fixed.
    return sorted(found, key=lambda index: (-len(index), int(index[0])))


def two_means(z: Tensor) -> Tensor | None:
    """Two-means clustering, started at the first principal axis: which images are in the first.

    None where one side ran empty.
    """
    centred = z - z.mean(0)
    _, axes = torch.linalg.eigh(centred @ centred.T)
    side = axes[:, -1] > 0
    for _ in range(ROUNDS):
        count = int(side.sum())
        if not 0 < count < len(z):
            return None
        a, b = z[side].mean(0), z[~side].mean(0)
        moved = (z - a).square().sum(1) < (z - b).square().sum(1)
        if torch.equal(moved, side):
            break
        side = moved
    return side if 0 < int(side.sum()) < len(z) else None


def _apart(z: Tensor, side: Tensor, separation: float, least: int) -> bool:
    a, b = z[side], z[~side]
    return min(len(a), len(b)) >= least and float(contrast(a, b)) > separation


def contrast(a: Tensor, b: Tensor) -> Tensor:
    """Corrected distance between the means of two groups, in units of the variance within them."""
    within = torch.cat([a - a.mean(0), b - b.mean(0)]).square().sum(0) / max(len(a) + len(b) - 2, 1)
    return difference(a, b, within + 1e-3)
