"""The last linear map of a classifier, and the features that go into it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ostinato.errors import TargetError


def find_head(model: nn.Module) -> nn.Linear:
    """The classifier: the last linear layer a model registers.

    timm's `head`, torchvision's `heads.head` and Hugging Face's `classifier` are all found so.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> find_head(net) is net[3]
    True
    """
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise TargetError(
            "The model has no linear classifier to read features from; choose a method that "
            "works on logits alone, such as 'tent' or 'cotta'."
        )
    return found[-1]


def final_features(model: nn.Module, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into the classifier, (B, D) in fp32, and the model's logits, (B, C).

    >>> import torch
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> features, logits = final_features(net, torch.rand(2, 3, 2, 2))
    >>> features.shape, bool(torch.allclose(net[3](features), logits))
    (torch.Size([2, 4]), True)
    """
    head = find_head(model)
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    handle = head.register_forward_pre_hook(keep)
    try:
        logits: Tensor = model(pixels)
    finally:
        handle.remove()
    if not seen or logits.ndim != 2 or head.out_features != logits.shape[1]:
        raise TargetError(
            f"The model's last linear layer ({head.in_features} to {head.out_features}) does not "
            f"make its logits {tuple(logits.shape)}, so there are no features to read; choose a "
            "method that works on logits alone, such as 'tent' or 'cotta'."
        )
    features = seen[-1]
    return (features if features.ndim == 2 else features.flatten(1, -2).mean(1)).float(), logits


def select_classes(logits: Tensor, classes: Tensor | None) -> Tensor:
    """The columns of the label space in use; all of them for None."""
    return logits if classes is None else logits.index_select(1, classes)


def spread_classes(probabilities: Tensor, classes: Tensor | None, count: int) -> Tensor:
    """The reverse, over `count` classes: zero outside the label space in use.

    >>> import torch
    >>> spread_classes(torch.tensor([[0.25, 0.75]]), torch.tensor([2, 0]), 3).tolist()
    [[0.75, 0.0, 0.25]]
    """
    if classes is None:
        return probabilities
    wide = probabilities.new_zeros(len(probabilities), count)
    return wide.index_copy(1, classes, probabilities)
