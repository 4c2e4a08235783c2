"""Small trainable maps beside frozen layers, put there by hooks and taken out without a trace.

The layers themselves are not replaced: an adapter is a module of its own whose output a hook adds
to the layer's. `Adapted` holds model and adapters together, so that both are parameters of one
module (which is what a teacher needs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import TargetError
from ostinato.ops.blocks import find_blocks
from ostinato.ops.tokens import token_width


class TwoRanks(nn.Module):
    """Two bottlenecks side by side, of a low and a high rank, each with a scale of its own.

    Both start without effect: their way up is zero.

    >>> pair = TwoRanks(4, 6, 1, 3, torch.Generator().manual_seed(0))
    >>> bool((pair(torch.ones(2, 4)) == 0).all())
    True
    """

    def __init__(
        self, inside: int, outside: int, low: int, high: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        for name, rank in (("low", low), ("high", high)):
            down = torch.randn(rank, inside, generator=generator) / rank**2
            self.register_parameter(f"{name}_down", nn.Parameter(down))
            self.register_parameter(f"{name}_up", nn.Parameter(torch.zeros(outside, rank)))
        self.scales = (1.0, 1.0)  # low, high

    def forward(self, tokens: Tensor) -> Tensor:
        """What both add."""
        low, high = (
            F.linear(F.linear(tokens, getattr(self, f"{n}_down")), getattr(self, f"{n}_up"))
            for n in ("low", "high")
        )
        return self.scales[0] * low + self.scales[1] * high


class _MetaNetwork(nn.Module):
    """A scale and shift of a frozen part's output, and a bottleneck beside the part.

    >>> meta = _MetaNetwork(4, 2, torch.Generator().manual_seed(0))
    >>> tokens = torch.rand(1, 3, 4)
    >>> bool((meta(tokens, 2 * tokens) == 2 * tokens).all())
    True
    """

    def __init__(self, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width)
        self.down = nn.Parameter(torch.randn(rank, width, generator=generator) / width**0.5)
        self.up = nn.Parameter(torch.zeros(width, rank))
        self.gap: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "gap": None}  # of the last forward, with its graph

    def forward(self, entered: Tensor, left: Tensor) -> Tensor:
        """The part's output as adapted, from what entered and left the frozen part."""
        hidden = F.gelu(F.linear(self.norm(entered), self.down))
        return left * self.scale + self.shift + F.linear(hidden, self.up)


class Adapted(nn.Module):
    """A model and its adapters as one module; calling it calls the model."""

    def __init__(self, model: nn.Module, adapters: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.model = model
        # Names hold dots, which a ModuleDict refuses.
        self.adapters = nn.ModuleDict({name.replace(".", "/"): a for name, a in adapters.items()})
        device = next(model.parameters()).device
        self.adapters.to(device)
        self._handles: list[Any] = []

    def forward(self, pixels: Tensor) -> Tensor:
        """The model's output, adapters included."""
        output: Tensor = self.model(pixels)
        return output

    def parts(self) -> list[Any]:
        """The adapters in order."""
        return list(self.adapters.values())

    def added(self) -> dict[str, nn.Parameter]:
        """The adapters' parameters by name."""
        return {f"adapters.{name}": p for name, p in self.adapters.named_parameters()}

    def detach(self) -> None:
        """Take every hook out of the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def beside_attention(model: nn.Module, low: int, high: int, generator: torch.Generator) -> Adapted:
    """Two-rank adapters beside every linear layer inside the model's attention modules."""
    linears = attention_linears(model)
    adapters = {
        name: TwoRanks(linear.in_features, linear.out_features, low, high, generator)
        for name, linear in linears.items()
    }
    adapted = Adapted(model, adapters)

    for linear, adapter in zip(linears.values(), adapted.parts(), strict=True):
        adapted._handles.append(linear.register_forward_hook(_Beside(adapter)))
    return adapted


def attention_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Every linear layer inside an attention module that is called as a layer."""
    found: dict[str, nn.Linear] = {}
    for start, block in find_blocks(model).items():
        for name, module in block.named_modules():
            attends = any("att" in part.lower() for part in name.split("."))
            # torch's own attention reads the weights of its linear layers and never calls them.
            plain = type(module) is nn.Linear
            if attends and plain:
                found[f"{start}.{name}"] = module
    if not found:
        raise TargetError(
            "The model's attention has no linear layer that could take an adapter (torch's "
            "MultiheadAttention reads its weights directly); use a timm or Hugging Face model."
        )
    return found


def beside_parts(model: nn.Module, parts: int, rank: int, generator: torch.Generator) -> Adapted:
    """A meta network beside each of so many groups of consecutive blocks.

    Each forward leaves in every meta network `gap`: the mean absolute difference between the
    adapted and the frozen part's output for the part's input, with a gradient to it alone.
    """
    blocks = list(find_blocks(model).values())
    width = token_width(model)
    parts = min(parts, len(blocks))
    ends = [round((k + 1) * len(blocks) / parts) for k in range(parts)]
    adapters = {f"part{k}": _MetaNetwork(width, rank, generator) for k in range(parts)}
    adapted = Adapted(model, adapters)
    for k, meta in enumerate(adapted.parts()):
        first, last = blocks[0 if k == 0 else ends[k - 1]], blocks[ends[k] - 1]
        adapted._handles += _Around(meta).hook(first, last)
    return adapted


class _Beside:
    """Adds an adapter's output; an object, so that a copy of the model has its own adapter."""

    def __init__(self, adapter: nn.Module) -> None:
        self.adapter = adapter

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return output + self.adapter(inputs[0])


class _Around:
    """Sees what enters the first block of a part, and changes what leaves its last one."""

    def __init__(self, meta: Any) -> None:
        self.meta = meta
        self.entered: list[Tensor] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember what comes in."""
        self.entered[:] = [args[0] if args else next(iter(kwargs.values()))]

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """What goes out, changed, and how much it was changed by."""
        meta = self.meta
        left = output[0] if isinstance(output, tuple) else output
        x = self.entered.pop()
        if left.shape[-1] != x.shape[-1] or left.shape[-1] != len(meta.scale):
            raise TargetError("The model's blocks change their width; use a plain transformer.")
        apart = meta(x.detach(), left.detach()) - left.detach()
        meta.gap = apart.float().abs().mean()
        changed = meta(x, left)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def hook(self, first: nn.Module, last: nn.Module) -> list[Any]:
        """Put both ends into the model; returns what takes them out."""
        return [
            first.register_forward_pre_hook(self.enter, with_kwargs=True),
            last.register_forward_hook(self.leave),
        ]
