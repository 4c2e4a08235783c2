"""Low-rank experts after every block, a few of them chosen per image by its domain's router."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import TargetError
from ostinato.methods._adapters import Adapted
from ostinato.ops.blocks import find_blocks
from ostinato.ops.features import open_tokens
from ostinato.ops.layouts import Layout


class BlendedExperts(nn.Module):
    """E experts `gelu(x down) up`, of which the K of largest gate run for an image.

    The gate's logits are a linear map, one per domain, of the image's mean token; gates are a
    softmax over the chosen K. Experts start without effect.

    Attributes:
        domains: the domain of every image of the next forward, or one for all.
        gates: (B, E) softmax over all experts, of the last forward.
        chosen: (B, K) experts that ran.
    """

    def __init__(
        self, width: int, experts: int, chosen: int, rank: int, domains: int, seed: torch.Generator
    ) -> None:
        super().__init__()
        self.k = min(chosen, experts)
        draw = lambda *shape: torch.randn(*shape, generator=seed)  # noqa: E731
        self.router = nn.Parameter(draw(domains, experts, width) / math.sqrt(width))
        self.down = nn.Parameter(draw(experts, rank, width) / math.sqrt(width))
        self.up = nn.Parameter(torch.zeros(experts, width, rank))
        self.domains: Tensor | int = 0
        self.noise: torch.Generator | None = None
        self.gates: Tensor | None = None
        self.chosen: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """What the chosen experts add to (B, N, D)."""
        logits = self.logits(tokens)
        self.gates = logits.softmax(1)
        top, self.chosen = logits.topk(self.k, 1)
        down, up = self.down[self.chosen], self.up[self.chosen]  # (B, K, r, D), (B, K, D, r)
        hidden = F.gelu(torch.einsum("bnd,bkrd->bknr", tokens, down.to(tokens.dtype)))
        weighted = hidden * top.softmax(1)[:, :, None, None].to(tokens.dtype)
        return torch.einsum("bknr,bkdr->bnd", weighted, up.to(tokens.dtype))

    def logits(self, tokens: Tensor) -> Tensor:
        """(B, E); with noise while it is set, as warming wants it."""
        mean = tokens.float().mean(1)
        router = self.router[_per_sequence(self.domains, len(mean))].expand(len(mean), -1, -1)
        logits = torch.einsum("bd,bed->be", mean, router)
        if self.noise is not None:
            logits = logits + torch.randn(logits.shape, generator=self.noise).to(logits.device)
        return logits


def after_blocks(
    model: nn.Module, experts: int, chosen: int, rank: int, domains: int, seed: torch.Generator
) -> Adapted:
    """Blended experts after every block of a transformer with or without stages."""
    blocks = find_blocks(model)
    widths = {name: _width(block) for name, block in blocks.items()}
    adapters = {
        name: BlendedExperts(width, experts, chosen, rank, domains, seed)
        for name, width in widths.items()
    }
    adapted = Adapted(model, adapters)
    for block, adapter in zip(blocks.values(), adapted.parts(), strict=True):
        adapted._handles.append(block.register_forward_hook(_Behind(adapter, Layout.of(block))))
    return adapted


class _Behind:
    """Adds what experts say of a block's output; an object, so that a copy has its own experts."""

    def __init__(self, adapter: nn.Module, layout: Layout) -> None:
        self.adapter, self.layout = adapter, layout

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        opened = open_tokens(output, self.layout)
        if opened is None:
            return None
        tokens, put_back = opened
        return put_back(tokens + self.adapter(tokens))


def _per_sequence(domains: Tensor | int, count: int) -> Tensor | int:
    """The domain of every sequence of tokens, where a model cuts images into several in a row.

    >>> _per_sequence(torch.tensor([2, 0]), 4)
    tensor([2, 2, 0, 0])
    """
    if isinstance(domains, int) or len(domains) in (1, count):
        return domains
    if count % len(domains):
        raise TargetError(
            f"The model makes {count} sequences of tokens of {len(domains)} images, so it is "
            "unknown which belong to which; use a model with as many for every image."
        )
    return domains.repeat_interleave(count // len(domains))


def route_to(adapted: Adapted, domains: Tensor | int) -> None:
    """Set the domain of the images to come in every block."""
    for part in adapted.parts():
        part.domains = domains


def domain_information(gates: Tensor, domains: Tensor) -> Tensor:
    """Mutual information, in nats, of domain and expert over a batch's gates (B, E).

    Where an image was cut into several sequences, each has its own gates and the image's domain.

    >>> apart = torch.eye(2)
    >>> round(float(domain_information(apart, torch.tensor([0, 1]))), 4)
    0.6931
    """
    each = domains.repeat_interleave(len(gates) // len(domains))
    member = F.one_hot(each).to(gates.dtype)
    member = member[:, member.sum(0) > 0]
    given = member.T @ gates / member.sum(0)[:, None]  # P(expert | domain)
    prior = member.mean(0)
    mean = prior @ given
    entropy = lambda p: -(p * p.clamp_min(1e-12).log()).sum(-1)  # noqa: E731
    return torch.as_tensor(entropy(mean) - prior @ entropy(given))


def _width(block: nn.Module) -> int:
    for module in block.modules():
        if isinstance(module, nn.LayerNorm):
            return int(module.normalized_shape[-1])
    raise TargetError(
        "A block has no LayerNorm that would tell its tokens' width; use a transformer or another "
        "method."
    )
