"""Masking tokens: how much the class token looks at each, and leaving or blanking some out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.errors import TargetError
from ostinato.ops.blocks import find_blocks, has_class_token
from ostinato.ops.features import prefix_tokens
from ostinato.ops.tokens import entering, patches

# How libraries call the two projections where they are separate.
_PROJECTIONS = (("query", "key"), ("q_proj", "k_proj"))


class ClassAttention:
    """Collects how much the class token attends to every patch in the last block.

    Fused attention never forms its weights, so they are computed anew from the projections of
    the class token's query and all keys, averaged over heads. One `with` block holds one forward.
    """

    def __init__(self, model: nn.Module) -> None:
        if not has_class_token(model):
            raise TargetError(
                "The model has no class token whose attention could be read; choose a model with "
                "one, or another method."
            )
        self.prefix = prefix_tokens(model)
        block = list(find_blocks(model).values())[-1]
        self.attention = _find_attention(block)
        self.scores: Tensor | None = None  # (B, patches), of the last forward
        self._handles: list[Any] = []
        self._seen: list[Tensor] = []

    def __enter__(self) -> ClassAttention:
        self._seen, self.scores = [], None
        attention = self.attention
        if isinstance(attention, nn.MultiheadAttention):
            hook = attention.register_forward_pre_hook(self._packed, with_kwargs=True)
            self._handles = [hook]
        else:
            for name in ("qkv",) if hasattr(attention, "qkv") else _separate(attention):
                projection = getattr(attention, name)
                self._handles.append(projection.register_forward_hook(self._keep))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._seen.append(output.detach())
        if hasattr(self.attention, "qkv"):
            query, key, _ = self._seen[0].chunk(3, -1)
            self._score(query, key)
        elif len(self._seen) == 2:  # the query's projection runs before the key's
            self._score(*self._seen)

    def _packed(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attention: Any = self.attention
        tokens = (args[0] if args else kwargs["query"]).detach()
        if not attention.batch_first:
            tokens = tokens.transpose(0, 1)
        packed = nn.functional.linear(tokens, attention.in_proj_weight, attention.in_proj_bias)
        query, key, _ = packed.detach().chunk(3, -1)
        self._score(query, key)

    def _score(self, query: Tensor, key: Tensor) -> None:
        attention: Any = self.attention
        heads = getattr(attention, "num_heads", None) or attention.num_attention_heads
        split = lambda t: t.float().unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
        norms = [getattr(attention, f"{n}_norm", None) or nn.Identity() for n in "qk"]
        q, k = norms[0](split(query[:, :1])), norms[1](split(key))
        self.scores = _class_attention(q, k)[:, self.prefix :]


def _class_attention(query: Tensor, key: Tensor) -> Tensor:
    """Attention weights of one query over all keys, mean over heads.

    Args:
        query: (B, heads, 1, d), the class token's.
        key: (B, heads, N, d).
    """
    weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1)
    scores: Tensor = weights.mean(1).squeeze(1)
    return scores


def least_attended(scores: Tensor, ratio: float) -> Tensor:
    """Positions of the tokens that stay when a share of the most attended is masked.

    >>> least_attended(torch.tensor([[0.1, 0.4, 0.2, 0.3]]), 0.5).sort().values.tolist()
    [[0, 2]]
    """
    keep = max(1, int(scores.shape[1] * (1 - ratio)))
    return scores.topk(keep, largest=False).indices


@contextmanager
def kept(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Let only these patch tokens (B, K) into the first block; class and registers stay."""
    prefix = prefix_tokens(model)

    def keep(tokens: Tensor) -> Tensor:
        width = tokens.shape[-1]
        chosen = tokens[:, prefix:].gather(1, positions.unsqueeze(-1).expand(-1, -1, width))
        return torch.cat([tokens[:, :prefix], chosen], 1)

    with entering(model, keep):
        yield


def most_uncertain(spread: Tensor, ratio: float) -> Tensor:
    """A mask (B, N) of the share of tokens with the largest spread.

    >>> most_uncertain(torch.tensor([[0.3, 0.1, 0.2, 0.9]]), 0.5).tolist()
    [[True, False, False, True]]
    """
    count = max(1, int(spread.shape[1] * ratio))
    mask = torch.zeros_like(spread, dtype=torch.bool)
    return mask.scatter(1, spread.topk(count, dim=1).indices, True)


@contextmanager
def blanked(model: nn.Module, mask: Tensor, token: Tensor) -> Iterator[None]:
    """Put a mask token (D) in place of the masked patches (B, N), before positions are added."""

    def change(embeddings: Tensor) -> Tensor:
        where = mask.view(len(embeddings), 1, *embeddings.shape[-2:])
        return torch.where(where, token.to(embeddings.dtype).view(1, -1, 1, 1), embeddings)

    with patches(model, change):
        yield


def _find_attention(block: nn.Module) -> nn.Module:
    for module in block.modules():
        if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            return module
        joint = hasattr(module, "num_heads") and isinstance(getattr(module, "qkv", None), nn.Module)
        if joint or (hasattr(module, "num_attention_heads") and _separate(module)):
            return module
    raise TargetError(
        "The last block's attention has neither a joint nor separate query and key projections, "
        "so the class token's attention cannot be computed; choose another model or method."
    )


def _separate(attention: nn.Module) -> tuple[str, ...]:
    return next((pair for pair in _PROJECTIONS if hasattr(attention, pair[0])), ())
