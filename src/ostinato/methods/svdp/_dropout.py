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

    Dropout sits right before the classifier. Where the prediction is what the classifier gives,
    one forward serves all passes, and the classifier alone is run again and again.

    Args:
        model: whose classifier gets dropout.
        predict: a forward pass to logits, (B, C, ...).
        passes: how many.
        share: of the features that are dropped.
        generator: on the CPU; it seeds one where the features are, so that drawing stays there.
    """
    seed = int(torch.randint(2**31, (1,), generator=generator))
    device = next(model.parameters()).device
    classifier = find_classifier(model)

    def dropper() -> Callable[[Tensor], Tensor]:
        local = torch.Generator(device).manual_seed(seed)

        def drop(features: Tensor) -> Tensor:
            kept = torch.rand(features.shape, generator=local, device=device) >= share
            return features * kept / (1 - share)

        return drop

    found = _inside(classifier, predict, passes, dropper())
    if found is None:
        found = _one_by_one(classifier, predict, passes, dropper())
    return torch.stack([f.float().softmax(1) for f in found]).var(0, correction=0).sum(1)


def _inside(
    classifier: nn.Module,
    predict: Callable[[], Tensor],
    passes: int,
    drop: Callable[[Tensor], Tensor],
) -> list[Tensor] | None:
    """All passes during one forward, where the model carries weights that are not its own."""
    found: list[Tensor] = []
    plain: list[Tensor] = []

    def again(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        plain.append(output)
        # `forward` itself, since the call would come back here.
        found.extend(module.forward(drop(inputs[0]), *inputs[1:]) for _ in range(passes))

    handle = classifier.register_forward_hook(again)
    try:
        logits = predict()
    finally:
        handle.remove()
    same = len(plain) == 1 and plain[0].shape == logits.shape
    return found if same and plain[0].data_ptr() == logits.data_ptr() else None


def _one_by_one(
    classifier: nn.Module,
    predict: Callable[[], Tensor],
    passes: int,
    drop: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """A forward for every pass, where something comes after the classifier."""
    handle = classifier.register_forward_pre_hook(
        lambda module, inputs: (drop(inputs[0]), *inputs[1:])
    )
    try:
        return [predict() for _ in range(passes)]
    finally:
        handle.remove()
