"""Dropout before the classifier, in a model at rest, to see how unsure it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ostinato.errors import TargetError


def find_classifier(model: nn.Module) -> nn.Module:
    """The last linear layer or convolution a model registers."""
    found = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    if not found:
        raise TargetError("The model has no linear or convolutional layer to put dropout before.")
    return found[-1]


@torch.no_grad()
def dropout_spread(
    model: nn.Module,
    predict: Callable[[], Tensor],
    passes: int,
    share: float,
    generator: torch.Generator,
) -> Tensor:
    """Per item, the variance of its probabilities over passes, summed over classes.

    Args:
        model: whose classifier gets dropout.
        predict: a forward pass to logits, (B, C, ...).
        passes: how many.
        share: of the features that are dropped.
        generator: on the CPU; it seeds one where the features are, so that drawing stays there.
    """
    seed = int(torch.randint(2**31, (1,), generator=generator))
    device = next(model.parameters()).device
    local = torch.Generator(device).manual_seed(seed)

    def drop(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        features = inputs[0]
        kept = torch.rand(features.shape, generator=local, device=device) >= share
        return (features * kept / (1 - share), *inputs[1:])

    handle = find_classifier(model).register_forward_pre_hook(drop)
    try:
        found = torch.stack([predict().float().softmax(1) for _ in range(passes)])
    finally:
        handle.remove()
    return found.var(0, correction=0).sum(1)
