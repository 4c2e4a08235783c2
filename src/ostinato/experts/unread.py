"""Tokens that no answer rests on: after its last attention a model may read its first tokens alone.

A transformer with a class token gives that one to its head. What the last feed-forward network does
to all the others is then never read, and is a twentieth of the products of a forward of twelve
blocks. Whether it is so is tried out, not told by a model's kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ostinato.experts.routed import Hooks


class _Trial:
    """A pass without experts; the last network's other tokens become noise, or are left out."""

    idle, whole, keep = False, False, None

    def __init__(self, hooks: Hooks) -> None:
        self.hooks, self.spoils = hooks, True
        self.features = list[Tensor]()

    def block(self, number: int, tokens: Tensor) -> Tensor:
        return tokens

    def fed(self, number: int, output: Tensor) -> Tensor:
        if not self.spoils or number < len(self.hooks.widths) - 1:
            return output
        noise = torch.linspace(-9, 9, output.numel(), device=output.device, dtype=output.dtype)
        first = self.hooks.prefix
        return torch.cat([output[:, :first], noise.view_as(output)[:, first:]], 1)


@torch.no_grad()
def leave_out_unread(hooks: Hooks, vision: Callable[[Tensor], Tensor], image: Tensor) -> None:
    """Give the last feed-forward network first tokens alone, if answers rest on these alone.

    They do if an answer stays the same to the bit when the others are made noise.

    Args:
        hooks: of the model.
        vision: pixels to the model's logits.
        image: one that the model takes, (1, channels, height, width).

    >>> import timm
    >>> from ostinato.models import VisionModel
    >>> model = timm.create_model("test_vit", num_classes=10).eval()
    >>> hooks, vision = Hooks(model), VisionModel(model)
    >>> leave_out_unread(hooks, vision, vision.example())
    >>> hooks.alone
    True
    """
    if hooks.last is None:
        return
    trial = _Trial(hooks)
    try:
        plain = vision(image)
        with hooks.open(trial):
            same = torch.equal(vision(image), plain)
            hooks.alone, trial.spoils = same, False
            hooks.alone = same and torch.allclose(vision(image), plain, rtol=1e-2, atol=1e-3)
    except (RuntimeError, AssertionError, ValueError, IndexError, TypeError):
        hooks.alone = False  # the model takes no such image, or what follows no fewer tokens
