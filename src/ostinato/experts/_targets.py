"""What an FFN is, told by structure: widths that go out and come back, beside an attention.

Module names differ between libraries and their versions, so none is relied on. A feed-forward
network is a module whose own linear layers lead from D features to H ≥ D and back to D, gated or
not, or two neighbours in a block that do so together (the layout of transformers 4, where the
second also adds the residual). It counts when the block it is in holds an attention too; heads,
patch embeddings, patch merging and whatever lies inside an attention do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from ostinato.errors import TargetError
from ostinato.ops.blocks import Choice, choose, find_blocks
from ostinato.ops.layouts import FEATURES_LAST, Layout

Targets = Choice

# Children by which an attention is known; every library uses some of them.
_PROJECTIONS = frozenset(
    {"q", "k", "v", "qk", "kv", "qkv", "query", "key", "value", "query_key_value", "Wqkv"}
    | {"q_proj", "k_proj", "v_proj", "kv_proj", "qkv_proj", "wq", "wk", "wv"}
    | {"to_q", "to_k", "to_v", "to_kv", "to_qkv"}
)


@dataclass(frozen=True)
class Target:
    """A place for experts.

    Attributes:
        name: the module's path in the model.
        module: the module to wrap; its output is the FFN's, before the residual.
        dim: features D of that output.
        entry: the module that takes the FFN's input, where that is another one.
        layout: where a 4-D output has its features.

    >>> Target("blocks.0.mlp", nn.Linear(4, 4), dim=4).layout.usual
    False
    """

    name: str
    module: nn.Module
    dim: int
    entry: nn.Module | None = None
    layout: Layout = FEATURES_LAST


def find_targets(model: nn.Module, targets: Targets = None) -> list[Target]:
    """Every FFN of the model, or those that `targets` chooses, in the model's order.

    Of a model without any attention, such as a network of convolutions, every block.

    Args:
        model: any module.
        targets: None finds them; otherwise a module's name or the end of one ("mlp"), a regular
            expression for whole names, a list of these, or a predicate of name and module.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 32)
    >>> [(t.name, t.dim) for t in find_targets(nn.Sequential(layer))]
    [('0.linear2', 8)]
    """
    seen = _Survey(model)
    if targets is None:
        found = [target for target in seen.ffns if seen.beside_attention(target.name)]
        found = found or seen.blocks()
        if not found:
            raise TargetError(f"No transformer FFN was found. {seen.hint()}")
        return found
    chosen = choose(model, targets, "targets", seen.hint(), [ffn.name for ffn in seen.ffns])
    return [seen.target(name) for name in chosen]


def inner_targets(model: nn.Module, blocks: Iterable[str], targets: Targets) -> list[Target]:
    """The feed-forward networks inside blocks (those outside serve another purpose), or the chosen.

    A CLIP has a tower for texts that no image passes.
    """
    found = find_targets(model, targets)
    if targets is not None:
        return found
    starts = tuple(f"{name}." for name in blocks)
    return [target for target in found if f"{target.name}.".startswith(starts)]


def has_targets(model: nn.Module) -> bool:
    """Whether the model has feed-forward networks that `find_targets` finds by itself.

    >>> has_targets(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
    False
    """
    seen = _Survey(model)
    return any(seen.beside_attention(target.name) for target in seen.ffns)


class _Survey:
    """One walk through a model: its attentions and everything shaped like an FFN."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        self.attentions = [n for n, m in self.modules.items() if _is_attention(m)]
        self.ffns = [t for n, m in self.modules.items() if n for t in self._ffn(n, m)]
        self.convolutional = [
            n for n, m in self.modules.items() if _width(_pointwise(m)) and not self._attends(n)
        ]

    def _ffn(self, name: str, module: nn.Module) -> Iterator[Target]:
        if self._in_attention(name):
            return
        dim = _width(_linears(module))
        if dim and not self._attends(name):
            yield Target(name, module, dim)
        else:
            yield from self._pairs(name, module)

    def _pairs(self, name: str, block: nn.Module) -> Iterator[Target]:
        """Neighbours that are an FFN together, in a block with an attention of its own."""
        if not self._attends(name):
            return
        steps = []
        for child, module in block.named_children():
            linears = [(child, module)] if _is_linear(module) else _named_linears(child, module)
            if len(linears) == 1 and not self._attends(f"{name}.{child}"):
                steps.append((module, *linears[0]))
        for (entry, _, up), (_, path, down) in pairwise(steps):
            if dim := _width([_size(up), _size(down)]):
                yield Target(f"{name}.{path}", down, dim, entry)

    def _in_attention(self, name: str) -> bool:
        return any(name == a or name.startswith(f"{a}.") for a in self.attentions)

    def _attends(self, name: str) -> bool:
        start = f"{name}." if name else ""
        return any(a == name or a.startswith(start) for a in self.attentions)

    def beside_attention(self, name: str) -> bool:
        """Whether the nearest attention around belongs to the same block.

        Going up from the module, the first relative that holds an attention decides. If an FFN
        lies in that relative too, it is a whole block or a stack of them, and the module is a head.
        """
        parts = name.split(".")
        known = [t.name for t in self.ffns] + self.convolutional
        for depth in range(len(parts) - 1, -1, -1):
            above, own = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
            start = f"{above}." if above else ""
            relatives = {
                start + a[len(start) :].split(".")[0]
                for a in self.attentions
                if a.startswith(start)
            } - {own}
            if relatives:
                return any(
                    not any(k.startswith(f"{relative}.") for k in known) for relative in relatives
                )
        return False

    def blocks(self) -> list[Target]:
        """The blocks of a model that has no attention at all; experts stand after them."""
        if self.attentions:
            return []
        try:
            found = find_blocks(self.modules[""])
        except TargetError:
            return []
        widths = {name: _last_width(block) for name, block in found.items()}
        return [
            Target(name, block, widths[name], layout=Layout.of(block))
            for name, block in found.items()
        ]

    def target(self, name: str) -> Target:
        """A chosen module as a target, or the reason why it cannot be one."""
        module = self.modules[name]
        for known in self.ffns:
            if known.module is module:
                return known
        if any(isinstance(m, nn.Conv2d) for m in module.modules()) and not _linears(module):
            raise TargetError(
                f"{name} is convolutional, so its features come first (B, D, H, W); experts need "
                f"features last. {self.hint()}"
            )
        sizes = [_size(m) for m in module.modules() if _is_linear(m)]
        if not sizes:
            raise TargetError(f"{name} has no linear layer that tells its width. {self.hint()}")
        return Target(name, module, sizes[-1][1])

    def hint(self) -> str:
        """What to pass instead."""
        parts = []
        if self.ffns:
            names = _some([t.name for t in self.ffns])
            parts.append(f"These look like FFNs: {names}. Pass some of them as targets=.")
        if self.convolutional:
            names = _some(self.convolutional)
            parts.append(f"These are channels-first, which experts do not fit: {names}.")
        return " ".join(parts) or (
            "No module looks like one (linear layers from D features to more and back to D); "
            "pass targets= with names, a regular expression or a predicate of (name, module)."
        )


def _some(names: list[str], most: int = 12) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    return any(name in _PROJECTIONS for name, _ in module.named_children())


def _is_linear(module: nn.Module) -> bool:
    """A linear layer, or something that acts as one (low-rank or quantised replacements)."""
    if isinstance(module, nn.Linear):
        return True
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    weight = getattr(module, "weight", None)
    return (
        all(isinstance(s, int) for s in sizes) and isinstance(weight, Tensor) and weight.ndim == 2
    )


def _size(linear: nn.Module) -> tuple[int, int]:
    return int(linear.in_features), int(linear.out_features)  # type: ignore[arg-type]


def _named_linears(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{prefix}.{n}", m) for n, m in module.named_children() if _is_linear(m)]


def _linears(module: nn.Module) -> list[tuple[int, int]]:
    return [_size(m) for m in module.children() if _is_linear(m)]


def _last_width(block: nn.Module) -> int:
    """Features that a block's last layer gives."""
    last = [m for m in block.modules() if _is_linear(m) or isinstance(m, nn.Conv2d)][-1]
    return int(last.out_channels) if isinstance(last, nn.Conv2d) else _size(last)[1]


def _pointwise(module: nn.Module) -> list[tuple[int, int]]:
    convolutions = [m for m in module.children() if isinstance(m, nn.Conv2d)]
    return [(m.in_channels, m.out_channels) for m in convolutions if m.kernel_size == (1, 1)]


def _width(sizes: list[tuple[int, int]]) -> int | None:
    """D, where the layers go from D to H (or 2H, to be gated) and one goes back from H ≥ D."""
    if not 2 <= len(sizes) <= 3:
        return None
    # Of three, some name the way back in the middle; of two, the order tells it from a bottleneck.
    for position in (2, 1, 0) if len(sizes) == 3 else (1,):
        hidden, dim = sizes[position]
        ups = sizes[:position] + sizes[position + 1 :]
        outs = {hidden, 2 * hidden} if len(ups) == 1 else {hidden}
        if hidden >= dim and all(i == dim and o in outs for i, o in ups):
            return dim
    return None
