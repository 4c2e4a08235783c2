"""Reading features inside a transformer: one tap per block, class token or pooled tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from ostinato.errors import TargetError
from ostinato.ops.views import Viewed

CLASS_TOKENS = ("cls_token", "class_token")


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated residual blocks of a transformer, in order, by structure.

    A block holds an attention module and, beside it, linear maps. It is found by what it
    contains, since every library names it differently.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not _inside(name, found) and _is_block(module):
            found[name] = module
    if not found:
        raise TargetError("No transformer block was found in the model, so no feature can be read.")
    return found


def has_class_token(model: nn.Module) -> bool:
    """Whether token 0 is a class token."""
    return any(name.rsplit(".", 1)[-1] in CLASS_TOKENS for name, _ in model.named_parameters())


def prefix_tokens(model: nn.Module) -> int:
    """How many tokens stand before an image's own: class token, distillation token, registers."""
    for module in model.modules():
        count = getattr(module, "num_prefix_tokens", None)
        if isinstance(count, int):
            return count
    return int(has_class_token(model))


def open_tokens(output: Any, prefix: int) -> tuple[Tensor, Callable[[Tensor], Any]] | None:
    """A block's output as (B, N, D) tokens, and what puts changed tokens back in its place.

    None where the output holds no tokens of that form.

    >>> import torch
    >>> tokens, put_back = open_tokens((torch.ones(2, 3, 3, 8), "rest"), 0)
    >>> tokens.shape, put_back(tokens + 1)[0].shape
    (torch.Size([2, 9, 8]), torch.Size([2, 3, 3, 8]))
    """
    first = output[0] if isinstance(output, (tuple, list)) else output
    if not isinstance(first, Tensor) or first.ndim not in (3, 4):
        return None
    shape = first.shape

    def put_back(tokens: Tensor) -> Any:
        changed = tokens.reshape(shape)
        if isinstance(output, (tuple, list)):
            return type(output)((changed, *output[1:]))
        return changed

    return first.reshape(shape[0], -1, shape[-1]), put_back


class FeatureTaps:
    """Collects one feature vector per image after every block of a forward pass.

    The class token where the model has one, else the mean over all tokens. One `with` block
    holds one forward. Where the model sees windows of an image, its feature is the mean of
    theirs; of resized and flipped views, only the image as it is counts.
    """

    def __init__(self, model: nn.Module) -> None:
        self.blocks = find_blocks(model)
        self.class_token = has_class_token(model)
        self._viewed = [module for module in model.modules() if isinstance(module, Viewed)]
        self.features: list[Tensor] = []  # one (B, D) tensor per block, of the last forward
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self.features = []
        self._handles = [b.register_forward_hook(self._keep) for b in self.blocks.values()]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if any(viewed.aside for viewed in self._viewed):
            return
        tokens = output[0] if isinstance(output, (tuple, list)) else output
        feature = pool_tokens(tokens, self.class_token).float()
        pieces = math.prod(viewed.pieces for viewed in self._viewed)
        self.features.append(feature.unflatten(0, (-1, pieces)).mean(1) if pieces > 1 else feature)


def pool_tokens(tokens: Tensor, class_token: bool) -> Tensor:
    """(B, N, D) or (B, H, W, D) to (B, D).

    >>> import torch
    >>> pool_tokens(torch.ones(2, 4, 4, 8), class_token=False).shape
    torch.Size([2, 8])
    """
    if class_token and tokens.ndim == 3:
        return tokens[:, 0]
    return tokens.flatten(1, -2).mean(1)


def _is_block(module: nn.Module) -> bool:
    """A residual block: an attention child and a linear map outside of it."""
    children = dict(module.named_children())
    attention = [n for n, c in children.items() if _attends(n, c)]
    rest = [c for n, c in children.items() if n not in attention]
    return bool(attention) and any(
        isinstance(m, (nn.Linear, nn.Conv2d)) for child in rest for m in child.modules()
    )


def _attends(name: str, module: nn.Module) -> bool:
    label = f"{name} {type(module).__name__}".lower()
    found = "attn" in label or "attention" in label or name.lower() == "att"
    return found and "pool" not in label  # attention pooling is a head, not a block


def _inside(name: str, found: dict[str, nn.Module]) -> bool:
    return any(name == outer or name.startswith(f"{outer}.") for outer in found)
