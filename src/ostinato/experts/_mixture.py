"""The experts themselves: their settings, a low-rank expert, and a dense mixture of them.

The maths are pure functions; the classes hold parameters. Parameters of a mixture are stored
already concatenated over its experts, so that the fused form has little to put together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.config import Config


class ExpertConfig(Config):
    """What the experts at every FFN look like.

    A branch that is switched off is left out, and the other keeps its own coefficient: λ for the
    shared branch, 1 − λ for the domain branch. The same holds while no domain is selected.

    >>> ExpertConfig(experts=4).replace(balance=0.3).balance
    0.3
    """

    shared_rank: int = Field(32, ge=1, description="rank of each shared expert")
    domain_rank: int = Field(16, ge=1, description="rank of each domain expert")
    experts: int = Field(2, ge=1, description="experts per mixture (M)")
    balance: float = Field(0.5, ge=0, le=1, description="weight λ of the shared branch")
    placement: Literal["post", "parallel"] = Field(
        "post", description="experts read the FFN's output (post) or its input (parallel)"
    )
    fusion: Literal["fixed", "learned", "input"] = Field(
        "fixed",
        description="λ fixed, learned as one scalar per block, or gated by the pooled tokens",
    )
    form: Literal["fused", "reference"] = Field(
        "fused", description="one product for all experts, or the readable reference"
    )
    shared: bool = Field(True, description="use the shared branch")
    domain: bool = Field(True, description="use the domain branch")

    @model_validator(mode="after")
    def _some_branch(self) -> Self:
        if not (self.shared or self.domain):
            raise ValueError("shared and domain are both off: switch at least one on")
        return self


def _low_rank(z: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """`gelu(z · down) · up` over the last dimension, computed in z's dtype."""
    result: Tensor = F.gelu(z @ down.to(z.dtype)) @ up.to(z.dtype)
    return result


def seeded(seed: int, *labels: object) -> torch.Generator:
    """A CPU generator that depends on the seed and the labels and on nothing else."""
    text = "/".join(str(part) for part in (seed, *labels))
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))


def _draw(dim: int, width: int, generator: torch.Generator | None) -> Tensor:
    """Uniform in ±1/√dim, as linear layers start; drawn on the CPU so that devices agree."""
    bound = dim**-0.5
    values = torch.empty(dim, width, device="cpu")
    return values.uniform_(-bound, bound, generator=generator or seeded(0))


class LowRankExpert(nn.Module):
    """One expert, `gelu(z W_down) W_up`; W_up starts at zero, so it starts without effect.

    >>> LowRankExpert(8, 2)(torch.ones(1, 3, 8)).abs().max().item()
    0.0
    """

    def __init__(self, dim: int, rank: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.down = nn.Parameter(_draw(dim, rank, generator))
        self.up = nn.Parameter(torch.zeros(rank, dim))

    def forward(self, z: Tensor) -> Tensor:
        """Apply the expert to the last dimension."""
        return _low_rank(z, self.down, self.up)


def mixture_shapes(dim: int, rank: int, experts: int) -> dict[str, tuple[int, ...]]:
    """The parameters of a mixture, by name and in order.

    >>> mixture_shapes(768, 16, 2)["down"]
    (768, 32)
    """
    width = experts * rank
    return {
        "down": (dim, width),
        "up": (width, dim),
        "router": (dim, experts),
        "router_bias": (experts,),
    }


class Mixture(nn.Module):
    """M low-rank experts under a dense softmax router, per token: `Σ αᵢ Eᵢ(z)`.

    Expert i owns columns i·r to (i+1)·r of `down` and the same rows of `up`. The router starts at
    zero, which is an even mixture; the experts differ by their random `down`.

    >>> mixture = Mixture(8, rank=2, experts=3)
    >>> mixture(torch.ones(1, 5, 8)).shape, sum(p.numel() for p in mixture.parameters())
    (torch.Size([1, 5, 8]), 123)
    """

    down: nn.Parameter
    up: nn.Parameter
    router: nn.Parameter
    router_bias: nn.Parameter

    def __init__(
        self,
        dim: int,
        rank: int,
        experts: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.dim, self.rank, self.experts = dim, rank, experts
        for name, shape in mixture_shapes(dim, rank, experts).items():
            setattr(self, name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset(generator)

    @torch.no_grad()
    def reset(self, generator: torch.Generator | None = None) -> None:
        """Back to the start: random `down`, everything else zero, hence no effect."""
        self.down.copy_(_draw(self.dim, self.down.shape[1], generator))
        for parameter in (self.up, self.router, self.router_bias):
            parameter.zero_()

    def gates(self, z: Tensor) -> Tensor:
        """The router's weights α, (..., M), in z's dtype."""
        scores = z @ self.router.to(z.dtype) + self.router_bias.to(z.dtype)
        gates: Tensor = scores.softmax(-1).to(z.dtype)
        return gates

    def forward(self, z: Tensor) -> Tensor:
        """The reference form: one expert after the other."""
        gates = self.gates(z)
        downs = self.down.split(self.rank, dim=1)
        ups = self.up.split(self.rank, dim=0)
        parts = [_low_rank(z, down, up) for down, up in zip(downs, ups, strict=True)]
        return torch.stack([gates[..., i, None] * y for i, y in enumerate(parts)]).sum(0)


def gate_spread(config: ExpertConfig) -> Tensor:
    """(2M, M·r_shared + M·r_domain): which gate scales which channel, fixed λ folded in."""
    weights = (config.balance, 1.0 - config.balance) if config.fusion == "fixed" else (1.0, 1.0)
    blocks = [
        weight * torch.eye(config.experts, device="cpu").repeat_interleave(rank, dim=1)
        for weight, rank in zip(weights, (config.shared_rank, config.domain_rank), strict=True)
    ]
    spread: Tensor = torch.block_diag(*blocks)
    return spread


def fused(
    z: Tensor, mixtures: Sequence[Mixture], spread: Tensor, weights: Tensor | None = None
) -> Tensor:
    """The weighted sum of mixtures with the same M as one product down and one up.

    Args:
        z: tokens, features last.
        mixtures: G mixtures.
        spread: (G·M, Σ M·r): carries each gate to its expert's hidden channels; constant
            branch weights are folded in.
        weights: (..., G), where the branch weights are tensors.
    """
    width = sum(m.down.shape[1] for m in mixtures)
    scores = sum(m.experts for m in mixtures)
    # The routers ride along in the product down; tensor cores want widths in eights.
    columns = torch.cat([*(m.down for m in mixtures), *(m.router for m in mixtures)], 1)
    columns = F.pad(columns, (0, -(width + scores) % 8)).to(z.dtype)
    bias = torch.cat([m.router_bias for m in mixtures]).to(z.dtype)
    up = torch.cat([m.up for m in mixtures], 0).to(z.dtype)
    product = z @ columns
    hidden = F.gelu(product[..., :width])
    routed = product[..., width : width + scores] + bias
    gates = routed.unflatten(-1, (len(mixtures), -1)).softmax(-1)
    if weights is not None:
        gates = gates * weights.unsqueeze(-1)
    channels = gates.flatten(-2).to(hidden.dtype) @ spread.to(hidden.dtype)
    mixed: Tensor = (hidden * channels) @ up
    return mixed


def product_gap(a: Mixture, b: Mixture) -> float:
    """`‖D U − D' U'‖²` without forming the products, which are far larger than their factors."""
    (d, u), (e, v) = [(m.down.cpu().double(), m.up.cpu().double()) for m in (a, b)]

    def inner(d: Tensor, u: Tensor, e: Tensor, v: Tensor) -> Tensor:
        return ((d.T @ e) * (u @ v.T)).sum()

    return float(inner(d, u, d, u) + inner(e, v, e, v) - 2 * inner(d, u, e, v))
