"""Experts that images carry with them: one forward, each image with its own domain's expert.

Hooks are put on a model once. During a `Pass` they let every image's expert act: its map after each
block, its learned branch after each feed-forward network. Without a pass the model is its source,
bit for bit. A pass belongs to the thread that opened it and reads nothing that changes, so that any
number of threads can predict while another one learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import TargetError
from ostinato.experts._targets import Target, Targets, has_targets, inner_targets
from ostinato.experts.compiled import CompiledBlocks
from ostinato.ops.blocks import find_blocks
from ostinato.ops.features import open_tokens, prefix_tokens
from ostinato.ops.layouts import Layout

EVERY = 2
"""Blocks from one map to the next: maps after all of them cost twice as much and gain nothing."""
SCALE = 0.25
"""Of the learned branches: half for each of two branches, half for each of two experts."""
_EXACT = (torch.float, torch.double)
"""Precisions in which a number times one, plus zeros, is itself."""


class Branch(NamedTuple):
    """Low-rank weights beside one feed-forward network: `gelu(z · down) · up`.

    Tensors are one domain's, or have a first dimension for one domain an image.

    >>> branch = Branch(torch.zeros(4, 2), torch.zeros(2, 4))
    >>> branch(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    down: Tensor
    up: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        """Apply to tokens, features last."""
        hidden = F.gelu(z @ self.down.to(z.dtype))
        return hidden @ self.up.to(z.dtype)


@dataclass(frozen=True)
class BlockMap:
    """`x + x ∘ scale + (x · down) · up + shift` for tokens, `x + prefix` for prefix tokens.

    Where `up` is empty, `down` is the whole matrix. Tensors are one domain's, or have a first
    dimension for one domain an image.

    >>> none, line = torch.zeros(2, 2), torch.zeros(2)
    >>> still = BlockMap(line, none, none[:0], line, torch.zeros(0, 2))
    >>> still(torch.tensor([[[1.0, 2.0]]])).flatten().tolist()
    [1.0, 2.0]
    """

    scale: Tensor
    down: Tensor
    up: Tensor
    shift: Tensor
    prefix: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """Move (B, N, D) tokens."""
        scale, down, up, shift, prefix = (part.to(tokens) for part in self.tensors())
        return moved(tokens, 1 + scale, down, up, shift, prefix)

    def to(self, device: torch.device | str) -> BlockMap:
        """The same numbers on another device."""
        return BlockMap(*(part.to(device) for part in self.tensors()))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All five, in order."""
        return self.scale, self.down, self.up, self.shift, self.prefix


def moved(
    tokens: Tensor, factor: Tensor, down: Tensor, up: Tensor, shift: Tensor, prefix: Tensor
) -> Tensor:
    """What a `BlockMap` does, with `1 + scale` as its `factor`.

    Everything but the prefix is done to whole tensors, since a pass over them costs more than the
    few tokens too many; what that made of the prefix is then replaced. A CPU has the factor in a
    whole matrix, which then is one product: ones and zeros leave tokens as they are to the bit.
    """
    if not up.numel() and tokens.device.type == "cpu" and tokens.dtype in _EXACT:
        whole = _affine(tokens, down + factor.diag_embed(), shift)
    else:
        change = _affine(tokens @ down, up, shift) if up.numel() else _affine(tokens, down, shift)
        whole = torch.addcmul(change, tokens, factor.unsqueeze(-2))
    count = prefix.shape[-2]
    if not count:
        return whole
    if whole.requires_grad:
        return torch.cat([tokens[:, :count] + prefix, whole[:, count:]], 1)
    torch.add(tokens[:, :count], prefix, out=whole[:, :count])
    return whole


def _affine(tokens: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """`tokens · matrix + shift` as one operator; both may have a first dimension, an image each.

    >>> eye = torch.eye(2)
    >>> _affine(torch.ones(1, 3, 2), eye, eye[0])[0, 0].tolist()
    [2.0, 1.0]
    """
    if matrix.ndim == 3:
        return torch.baddbmm(shift.unsqueeze(-2), tokens, matrix)
    return F.linear(tokens, matrix.mT, shift)


@dataclass(frozen=True)
class Expert:
    """What one domain does to a forward; empty parts do nothing.

    Attributes:
        maps: one for every second block, from the first on.
        branches: one learned branch a feed-forward network.

    >>> Expert().maps
    ()
    """

    maps: tuple[BlockMap, ...] = ()
    branches: tuple[Branch, ...] = ()

    def to(self, device: torch.device | str) -> Expert:
        """The same on another device."""
        return Expert(
            tuple(one.to(device) for one in self.maps),
            tuple(Branch(one.down.to(device), one.up.to(device)) for one in self.branches),
        )


class Acting(Protocol):
    """What hooks ask of a pass; see `Pass` and `experts.stack.StackPass`."""

    idle: bool
    whole: bool
    features: list[Tensor]

    @property
    def keep(self) -> Callable[[Tensor], Tensor] | None:
        """Gives what of a block's tokens `features` is to collect; None where nothing is."""

    def block(self, number: int, tokens: Tensor) -> Tensor:
        """Tokens after a block that has a map, changed by the map of that number."""

    def fed(self, number: int, output: Tensor) -> Tensor | None:
        """A feed-forward network's output with what branches add; None where they add nothing."""


class Pass:
    """One forward's experts: whose images are whose, and what is made on the way.

    Args:
        owners: per image, the row of `experts` it goes by; None stands for the source.
        experts: the experts in use.
        shared: the learned branches that all images but the source's share.
        make: called with a map's number and its block's tokens where maps are made on the way.
        keep: gives what of a block's tokens `features` is to collect, after the maps.
        whole: whether that is asked of all tokens, also of those that no answer rests on.

    >>> Pass([None, None], []).idle, Pass([0, None], [Expert()]).idle
    (True, False)
    """

    def __init__(
        self,
        owners: Sequence[int | None],
        experts: Sequence[Expert],
        shared: tuple[Branch, ...] = (),
        make: Callable[[int, Tensor], BlockMap] | None = None,
        keep: Callable[[Tensor], Tensor] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.keep, self.whole, self.features = keep, whole, list[Tensor]()
        self.owners, self.experts, self.shared, self.make = tuple(owners), experts, shared, make
        used = sorted({owner for owner in self.owners if owner is not None})
        self.single = used[0] if len(used) == 1 and None not in self.owners else None
        self.idle = not used and make is None
        self._rows = [used.index(o) + 1 if o is not None else 0 for o in self.owners]
        self._used = used
        self._index: Tensor | None = None

    def index(self, rows: Tensor) -> Tensor:
        """Per row: 0 for the source, else one more than the place among the used.

        A model that cuts its images up has several rows in a row for each.
        """
        if self._index is None or self._index.device != rows.device:
            self._index = torch.tensor(self._rows, device=rows.device)
        pieces = len(rows) // len(self._rows)
        return self._index.repeat_interleave(pieces) if pieces > 1 else self._index

    def block(self, number: int, tokens: Tensor) -> Tensor:
        """Tokens after a block, moved by each image's map."""
        if self.make is not None:
            return self.make(number, tokens)(tokens)
        if self.single is not None:
            maps = self.experts[self.single].maps
            return maps[number](tokens) if maps else tokens
        found = [e.maps[number] if e.maps else None for e in (self.experts[u] for u in self._used)]
        known = next((one for one in found if one is not None), None)
        if known is None:
            return tokens
        index = self.index(tokens)
        stacked = (
            _stacked([None if one is None else one.tensors()[part] for one in found], like)[index]
            for part, like in enumerate(known.tensors())
        )
        return BlockMap(*stacked)(tokens)

    def fed(self, number: int, output: Tensor) -> Tensor | None:
        """A feed-forward network's output with what branches add; None where they add nothing."""
        added = self._branch(number, output)
        return None if added is None else output + added.to(output.dtype)

    def _branch(self, number: int, z: Tensor) -> Tensor | None:
        if self.single is not None:
            own = self.experts[self.single].branches
            both = [b[number] for b in (self.shared, own) if b]
            return side_by_side(both)(z) if both else None
        return self._mixed_branch(number, z)

    def _mixed_branch(self, number: int, z: Tensor) -> Tensor | None:
        found = [self.experts[u].branches for u in self._used]
        known = next((one[number] for one in found if one), None)
        if known is None and not self.shared:
            return None
        index = self.index(z)
        tokens = z.reshape(len(z), -1, z.shape[-1])
        total = torch.zeros_like(tokens)
        if self.shared:
            total = self.shared[number](tokens) * (index > 0).to(z.dtype)[:, None, None]
        if known is not None:
            downs = _stacked([one[number].down if one else None for one in found], known.down)
            ups = _stacked([one[number].up if one else None for one in found], known.up)
            total = total + Branch(downs[index], ups[index])(tokens)
        return SCALE * total.reshape(z.shape)


def leaves(branches: Sequence[Branch], kind: torch.dtype | None = None) -> tuple[Branch, ...]:
    """Branches as tensors to differentiate by, in a precision; nobody else's gradients.

    >>> leaves([Branch(torch.ones(4, 2), torch.ones(2, 4))])[0].down.requires_grad
    True
    """
    return tuple(
        Branch(*(part.detach().to(kind or part.dtype).requires_grad_() for part in one))
        for one in branches
    )


def side_by_side(branches: Sequence[Branch]) -> Branch:
    """Several branches as one, `SCALE` in its `up`: that is small, what it gives is not.

    >>> one = Branch(torch.ones(4, 2), torch.ones(2, 4))
    >>> both = side_by_side([one, one])
    >>> both.down.shape, both.up[0].tolist()
    (torch.Size([4, 4]), [0.25, 0.25, 0.25, 0.25])
    """
    down = torch.cat([one.down for one in branches], 1)
    return Branch(down, SCALE * torch.cat([one.up for one in branches], 0))


def _stacked(tensors: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Zeros for the source first, then one entry each; None is zeros too."""
    zero = torch.zeros_like(like)
    return torch.stack([zero, *(zero if one is None else one for one in tensors)])


_PASS: ContextVar[tuple[object, Acting] | None] = ContextVar("ostinato-pass", default=None)


class Hooks:
    """The places in a model where experts act.

    Maps stand after every second block, from the first on. Learned branches stand after every
    feed-forward network; where a model has none, as networks of convolutions have none, after every
    block. Where an answer rests on the first tokens alone (`experts.unread`), the last feed-forward
    network is given no others while experts act.

    Args:
        model: gets hooks, and nothing else; `remove` takes them off.
        targets: feed-forward networks for learned branches; None finds them.
        widths: features after each block, for models without feed-forward networks.

    Attributes:
        blocks: how many blocks there are.
        prefix: tokens that stand before an image's own.
        widths: per learned branch, the name of its place and the width there.
        last: the last feed-forward network, where it may be given fewer tokens.
        alone: whether it is given first tokens alone.

    >>> import timm
    >>> hooks = Hooks(timm.create_model("test_vit", num_classes=10))
    >>> hooks.blocks, hooks.prefix
    (6, 1)
    >>> hooks.remove()
    """

    def __init__(
        self, model: nn.Module, targets: Targets = None, widths: Sequence[int] = ()
    ) -> None:
        blocks = find_blocks(model)
        self.blocks, self.prefix = len(blocks), prefix_tokens(model)
        self.after_blocks = targets is None and not has_targets(model)
        feeds = [] if self.after_blocks else inner_targets(model, blocks, targets)
        self.widths = [(target.name, target.dim) for target in feeds]
        if not (self.widths or self.after_blocks):
            first = next(iter(blocks))
            raise TargetError(
                f"No feed-forward network lies in the blocks that were found ({first}, ...): name "
                "the modules whose outputs are to be adapted as blocks=[...], and feed-forward "
                "networks in them as targets=[...], if others are meant."
            )
        if self.after_blocks:
            self.widths = list(zip(blocks, widths, strict=False))
        self._layouts = [Layout.of(block) for block in blocks.values()]
        self._modules = list(blocks.values())
        self._hooked: list[tuple[nn.Module, Any]] = []
        for number, block in enumerate(blocks.values()):
            handle = block.register_forward_hook(partial(self._after_block, number))
            self._hooked.append((block, handle))
        for number, target in enumerate(feeds):
            handle = target.module.register_forward_hook(partial(self._after_feed, number))
            self._hooked.append((target.module, handle))
        self.alone, self.last = False, self._narrowable(list(blocks)[-1], feeds)
        if self.last is not None:
            handle = self.last.register_forward_pre_hook(self._before_last)
            self._hooked.append((self.last, handle))

    def _narrowable(self, block: str, feeds: Sequence[Target]) -> nn.Module | None:
        """The last block's feed-forward network, where no map needs all its tokens."""
        inside = bool(feeds) and feeds[-1].name.startswith(f"{block}.") and feeds[-1].entry is None
        mapped = (self.blocks - 1) % EVERY == 0
        return feeds[-1].module if inside and self.prefix > 0 and not mapped else None

    def remove(self) -> None:
        """Take every hook off."""
        for _, handle in self._hooked:
            handle.remove()
        self._hooked = []

    def compiled(self, compile: Callable[..., Any] | None = None) -> CompiledBlocks:
        """The blocks, to be run compiled around these hooks."""
        hooked = [(module, handle.id) for module, handle in self._hooked]
        return CompiledBlocks(self._modules, hooked, compile)

    @contextmanager
    def open(self, now: Acting) -> Iterator[None]:
        """Inside, forwards of this thread go by this pass."""
        token = _PASS.set((self, now))
        try:
            yield
        finally:
            _PASS.reset(token)

    def pooled(self, tokens: Tensor) -> Tensor:
        """What stands for an image in its tokens: the class token, else the mean over them."""
        return tokens[:, 0] if self.prefix > 0 else tokens.mean(1)

    def _now(self) -> Acting | None:
        found = _PASS.get()
        if found is None or found[0] is not self or found[1].idle:
            return None
        return found[1]

    def _after_block(self, number: int, module: nn.Module, inputs: Any, output: Any) -> Any:
        now = self._now()
        if now is None or (number % EVERY and now.keep is None and not self.after_blocks):
            return None
        put_back: Callable[[Tensor], Any] | None = None
        if isinstance(output, Tensor) and output.ndim == 3:
            tokens = output
        else:
            opened = open_tokens(output, self._layouts[number])
            if opened is None:
                raise TargetError(
                    f"Block {number} gives {type(output).__name__}, no (batch, tokens, features)."
                )
            tokens, put_back = opened
        if number % EVERY == 0:
            tokens = now.block(number // EVERY, tokens)
        if self.after_blocks:
            changed = now.fed(number, tokens)
            tokens = tokens if changed is None else changed
        if now.keep is not None:
            now.features.append(now.keep(tokens))
        return tokens if put_back is None else put_back(tokens)

    def _before_last(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        now = self._now() if self.alone else None
        if now is None or now.whole or not inputs:
            return None
        return (inputs[0][:, : self.prefix], *inputs[1:])

    def _after_feed(self, number: int, module: nn.Module, inputs: Any, output: Any) -> Any:
        now = self._now()
        if now is None:
            return None
        return now.fed(number, output)
