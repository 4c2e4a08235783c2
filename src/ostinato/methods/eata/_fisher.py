"""Diagonal Fisher information of source images, and the penalty that keeps weights near."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.ops.batchnorm import BatchStatistics, moves_batch_norms


def fisher_diagonal(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], batches: Iterable[Tensor]
) -> dict[str, Tensor]:
    """Squared gradients of the cross-entropy with the model's own labels, averaged over batches.

    The gradient is a batch's mean gradient, so the scale depends on the batch size: the weight
    that goes with it in the literature was tuned for batches of 64. Batch norms whose parameters
    are among these see the batches' own statistics, as they will online.

    >>> layer = nn.Linear(2, 2)
    >>> fisher = fisher_diagonal(layer, dict(layer.named_parameters()), [torch.ones(4, 2)])
    >>> sorted(fisher), bool((fisher["weight"] >= 0).all())
    (['bias', 'weight'], True)
    """
    wanted = list(parameters.values())
    norms = BatchStatistics(model) if moves_batch_norms(model, wanted) else None
    flags = [parameter.requires_grad for parameter in wanted]
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    try:
        for parameter in wanted:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            for pixels in batches:
                logits = model(pixels).float()
                loss = F.cross_entropy(logits, logits.detach().argmax(1))
                found = torch.autograd.grad(loss, wanted, allow_unused=True)
                for name, gradient in zip(parameters, found, strict=True):
                    if gradient is not None:
                        total[name] += gradient.detach().square()
                count += 1
    finally:
        if norms is not None:
            norms.remove()
        for parameter, flag in zip(wanted, flags, strict=True):
            parameter.requires_grad_(flag)
    return {name: (value / max(count, 1)).detach() for name, value in total.items()}


def anchor_penalty(
    parameters: Mapping[str, nn.Parameter],
    source: Mapping[str, Tensor],
    fisher: Mapping[str, Tensor],
) -> Tensor:
    """Σ fisher · (parameter − source)².

    >>> p = nn.Parameter(torch.tensor([3.0]))
    >>> anchor_penalty({"p": p}, {"p": torch.ones(1)}, {"p": torch.tensor([0.5])}).item()
    2.0
    """
    terms = [(fisher[k] * (p - source[k]).square()).sum() for k, p in parameters.items()]
    return torch.stack(terms).sum()
