"""Reading features inside a network: a block's output as tokens, one tap per block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

from ostinato.ops.blocks import find_blocks, has_class_token
from ostinato.ops.layouts import FEATURES_LAST, Layout
from ostinato.ops.views import Viewed

_EXTRA_TOKENS = ("register_tokens", "distillation_token", "dist_token", "reg_token")


def prefix_tokens(model: nn.Module) -> int:
    """How many tokens stand before an image's own: class token, distillation token, registers."""
    for module in model.modules():
        count = getattr(module, "num_prefix_tokens", None)
        if isinstance(count, int):
            return count
    if not has_class_token(model):
        return 0
    extra = [p for n, p in model.named_parameters() if n.rpartition(".")[2] in _EXTRA_TOKENS]
    return 1 + sum(int(p.shape[-2]) for p in extra)


def open_tokens(
    output: Any, layout: Layout = FEATURES_LAST
) -> tuple[Tensor, Callable[[Tensor], Any]] | None:
    """A block's output as (B, N, D) tokens, and what puts changed tokens back in its place.

    Sequences (B, N, D) are tokens already; feature maps are (B, H, W, D), or (B, D, H, W) where
    channels come first. None where the output is nothing of that kind.

    >>> import torch
    >>> tokens, put_back = open_tokens((torch.ones(2, 3, 3, 8), "rest"))
    >>> tokens.shape, put_back(tokens + 1)[0].shape
    (torch.Size([2, 9, 8]), torch.Size([2, 3, 3, 8]))
    >>> tokens, put_back = open_tokens(torch.ones(2, 8, 3, 5), Layout(usual=True))
    >>> tokens.shape, put_back(tokens + 1).shape
    (torch.Size([2, 15, 8]), torch.Size([2, 8, 3, 5]))
    """
    first = output[0] if isinstance(output, (tuple, list)) else output
    if not isinstance(first, Tensor) or first.ndim not in (3, 4):
        return None
    swapped = layout.channels_first(first.shape)
    last = first.permute(0, 2, 3, 1) if swapped else first
    shape = last.shape

    def put_back(tokens: Tensor) -> Any:
        changed = tokens.reshape(shape)
        changed = changed.permute(0, 3, 1, 2) if swapped else changed
        if isinstance(output, (tuple, list)):
            return type(output)((changed, *output[1:]))
        return changed

    return last.reshape(shape[0], -1, shape[-1]), put_back


class FeatureTaps:
    """Collects one feature vector per image after every block of a forward pass.

    The class token where the model has one, else the mean over all tokens. One `with` block
    holds one forward. Where the model sees windows of an image, its feature is the mean of
    theirs; of resized and flipped views, only the image as it is counts.

    >>> import torch
    >>> from ostinato.checks import small_model
    >>> model = small_model()
    >>> with FeatureTaps(model) as taps:
    ...     logits = model(torch.zeros(2, 3, 32, 32))
    >>> len(taps.features) == len(taps.blocks), len(taps.features[0])
    (True, 2)
    """

    def __init__(self, model: nn.Module) -> None:
        self.blocks = find_blocks(model)
        self.class_token = has_class_token(model)
        self._layouts = {module: Layout.of(module) for module in self.blocks.values()}
        self._viewed = [module for module in model.modules() if isinstance(module, Viewed)]
        self.features: list[Tensor] = []  # one (B, D) tensor per block, of the last forward
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self.features = []
        self._handles = [b.register_forward_hook(self._keep) for b in self.blocks.values()]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if any(viewed.aside for viewed in self._viewed):
            return
        tokens = output[0] if isinstance(output, (tuple, list)) else output
        feature = pool_tokens(tokens, self.class_token, self._layouts[module]).float()
        pieces = math.prod(viewed.pieces for viewed in self._viewed)
        self.features.append(feature.unflatten(0, (-1, pieces)).mean(1) if pieces > 1 else feature)


def pool_tokens(tokens: Tensor, class_token: bool, layout: Layout = FEATURES_LAST) -> Tensor:
    """(B, N, D), (B, H, W, D) or, with channels first, (B, D, H, W) to (B, D).

    >>> import torch
    >>> pool_tokens(torch.ones(2, 4, 4, 8), class_token=False).shape
    torch.Size([2, 8])
    """
    if tokens.ndim == 3:
        return tokens[:, 0] if class_token else tokens.mean(1)
    first = layout.channels_first(tokens.shape)
    return tokens.mean((2, 3)) if first else tokens.flatten(1, -2).mean(1)
