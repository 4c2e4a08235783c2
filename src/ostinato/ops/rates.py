"""Learning rates that follow the batch size."""

from __future__ import annotations

import torch


def scale_rate(
    optimizer: torch.optim.Optimizer, lr: float, images: int, reference: int = 64
) -> None:
    """Set the rate to lr · images / reference: what `lr` is for a batch of `reference` images.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    >>> scale_rate(optimizer, lr=1e-3, images=16)
    >>> optimizer.param_groups[0]["initial_lr"]
    0.00025
    """
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"] = lr * images / reference
