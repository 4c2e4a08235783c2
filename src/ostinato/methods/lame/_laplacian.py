"""Laplacian-adjusted assignments: predictions that agree with those of near neighbours."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Affinity = Literal["knn", "rbf", "linear"]


def affinity(features: Tensor, kind: Affinity = "knn", neighbours: int = 5) -> Tensor:
    """(N, N) closeness of L2-normalised features.

    "knn": one for each of the nearest neighbours (not itself), else zero. "rbf": a Gaussian whose
    width is the mean distance to the k-th nearest. "linear": the cosine.

    >>> affinity(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), "knn", 1).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    unit = F.normalize(features.float(), dim=1)
    if kind == "linear":
        return unit @ unit.T
    distance = torch.linalg.vector_norm(unit[:, None] - unit[None], dim=2)
    if kind == "rbf":
        reach = distance.topk(min(neighbours, len(unit)), largest=False).values[:, -1].mean()
        return torch.exp(-distance.square() / (2 * reach.square()).clamp_min(1e-12))
    distance.fill_diagonal_(-1)  # itself first, even beside a twin
    near = distance.topk(min(neighbours + 1, len(unit)), largest=False).indices[:, 1:]
    return torch.zeros_like(distance).scatter_(1, near, 1.0)


def laplacian_assignment(
    logits: Tensor, kernel: Tensor, *, weight: float = 1.0, steps: int = 100
) -> Tensor:
    """Log-probabilities at the fixed point of z = softmax(log p + weight · K z).

    Iterates until the energy it descends settles (relative change of 1e-8) or `steps` are done.
    """
    # The small floor is the objective's own: it bounds what a neighbour has to outweigh.
    unary = (logits.float().softmax(1) + 1e-10).log()
    log_z = unary.log_softmax(1)
    before = float("inf")
    for step in range(steps):
        pull = weight * (kernel @ log_z.exp())
        log_z = (unary + pull).log_softmax(1)
        z = log_z.exp()
        energy = float((z * (log_z.clamp_min(-46.0) - unary - pull)).sum())
        if step > 1 and abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return log_z
