"""All published experts side by side on the device, a row each: one gather serves any mix of them.

Row 0 is the source's and does nothing. A row is written once, when an expert is first asked for,
and belongs to it until nobody holds the expert any more; so whoever reads an older version goes on
reading what it was. Rows grow by doubling.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.experts.routed import SCALE, Branch, Expert
from ostinato.ops.moments import moved

START = 8


@dataclass(frozen=True)
class Layout:
    """What one expert takes.

    Attributes:
        blocks: per block, width, rank of its map (the width itself for a whole one) and how many
            prefix tokens there are.
        feeds: per feed-forward network, width and rank of the learned branch.

    >>> Layout(blocks=((4, 4, 1),), feeds=((4, 2),)).matrices()  # a whole map, then a branch
    [(4, 4), (4, 2), (2, 4)]
    """

    blocks: tuple[tuple[int, int, int], ...]
    feeds: tuple[tuple[int, int], ...]

    def matrices(self) -> list[tuple[int, int]]:
        """Shapes of the matrices, in the order in which a row holds them."""
        found = []
        for width, rank, _ in self.blocks:
            found += [(width, rank)] + [(rank, width)] * (rank < width)
        for width, rank in self.feeds:
            found += [(width, rank), (rank, width)]
        return found

    def vectors(self) -> list[tuple[int, int]]:
        """Shapes of factors, shifts and prefixes, likewise."""
        return [
            shape
            for width, _, count in self.blocks
            for shape in ((1, width), (1, width), (count, width))
        ]


@dataclass(frozen=True)
class Rows:
    """The rows as they are at one moment: two tensors, and views of their parts.

    Attributes:
        matrices: (capacity, n), in the precision of the model's products.
        vectors: (capacity, m), in single precision at least.
        layout: how a row is divided.
    """

    matrices: Tensor
    vectors: Tensor
    layout: Layout
    parts: tuple[list[Tensor], list[Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = (
            _cut(self.matrices, self.layout.matrices()),
            _cut(self.vectors, self.layout.vectors()),
        )
        object.__setattr__(self, "parts", parts)

    def block(self, number: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """A block's down, up (None for a whole map), factor, shift and prefix, a row each."""
        ranks = self.layout.blocks
        at = sum(1 + (rank < width) for width, rank, _ in ranks[:number])
        low = ranks[number][1] < ranks[number][0]
        matrices, vectors = self.parts
        factor, shift, prefix = vectors[3 * number : 3 * number + 3]
        up = matrices[at + 1] if low else None
        return matrices[at], up, factor[:, 0], shift[:, 0], prefix

    def feed(self, number: int) -> tuple[Tensor, Tensor]:
        """A branch's down and up, a row each; `SCALE` is in the latter."""
        at = sum(1 + (rank < width) for width, rank, _ in self.layout.blocks) + 2 * number
        return self.parts[0][at], self.parts[0][at + 1]


def _cut(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    found, at = [], 0
    for height, width in shapes:
        part = flat[:, at : at + height * width]
        found.append(part.view(len(flat), height, width))
        at += height * width
    return found


class Stack:
    """Rows of experts that are in use.

    Args:
        layout: what an expert takes.
        device: where rows live.
        kind: precision of the matrices.

    >>> stack = Stack(Layout(((4, 4, 1),), ((4, 2),)), "cpu")
    >>> stack.rows([Expert()]), len(stack.now.matrices)
    ([0], 8)
    """

    def __init__(
        self, layout: Layout, device: torch.device | str, kind: torch.dtype = torch.float
    ) -> None:
        self.layout = layout
        self._lock = threading.RLock()
        self._known: dict[int, int] = {}
        self._free = list(range(START - 1, 0, -1))
        self.growths = 0
        self.now = self._empty(START, device, kind)

    def _empty(self, rows: int, device: torch.device | str, kind: torch.dtype) -> Rows:
        sizes = [
            sum(height * width for height, width in shapes)
            for shapes in (self.layout.matrices(), self.layout.vectors())
        ]
        with torch.inference_mode(False), torch.no_grad():
            matrices = torch.zeros(rows, sizes[0], device=device, dtype=kind)
            vectors = torch.zeros(
                rows, sizes[1], device=device, dtype=torch.promote_types(kind, torch.float)
            )
            made = Rows(matrices, vectors, self.layout)
            for number in range(len(self.layout.blocks)):
                made.block(number)[2].fill_(1.0)
        return made

    def rows(self, experts: Sequence[Expert]) -> list[int]:
        """The row of each expert; those not seen before are written now."""
        with self._lock:
            return [self._row(expert) for expert in experts]

    def _row(self, expert: Expert) -> int:
        if not expert.maps and not expert.branches:
            return 0
        row = self._known.get(id(expert))
        if row is None:
            if not self._free:
                self._grow()
            row = self._free.pop()
            self._write(row, expert)
            self._known[id(expert)] = row
            weakref.finalize(expert, _forget, weakref.ref(self), id(expert))
        return row

    def _forget(self, key: int) -> None:
        with self._lock:
            self._free.append(self._known.pop(key))

    def _grow(self) -> None:
        old = self.now
        count = len(old.matrices)
        new = self._empty(2 * count, old.matrices.device, old.matrices.dtype)
        with torch.inference_mode(False), torch.no_grad():
            new.matrices[:count] = old.matrices
            new.vectors[:count] = old.vectors
        self.now = new
        self._free.extend(range(2 * count - 1, count - 1, -1))
        self.growths += 1

    def _write(self, row: int, expert: Expert) -> None:
        with torch.inference_mode(False), torch.no_grad():
            matrices: list[Tensor] = []
            vectors: list[Tensor] = []
            for number, (width, rank, count) in enumerate(self.layout.blocks):
                if not expert.maps:
                    like = self.now.vectors
                    sizes = (1 + (rank < width)) * width * rank
                    matrices.append(like.new_zeros(sizes))
                    vectors += [like.new_ones(width), like.new_zeros((1 + count) * width)]
                    continue
                one = expert.maps[number]
                matrices += [one.down.flatten(), one.up.flatten()]
                factor = 1 + one.scale.to(self.now.vectors)
                vectors += [factor, one.shift, one.prefix.flatten()]
            for number, (width, rank) in enumerate(self.layout.feeds):
                if not expert.branches:
                    matrices.append(self.now.vectors.new_zeros(2 * width * rank))
                    continue
                branch = expert.branches[number]
                matrices += [branch.down.flatten(), SCALE * branch.up.flatten()]
            self.now.matrices[row] = torch.cat(matrices).to(self.now.matrices)
            self.now.vectors[row] = torch.cat(vectors).to(self.now.vectors)


def _forget(stack: weakref.ref[Stack], key: int) -> None:
    found = stack()
    if found is not None:
        found._forget(key)


class StackPass:
    """One forward's experts by rows of a stack: what `Pass` does, for any mix in the same time.

    Args:
        index: (B,) the row of each image, on the model's device; 0 stands for the source.
        rows: the stack's.
        shared: the learned branches that all images but the source's share, `SCALE` in their `up`.
        single: the one row of all images, where the host knows it.
        maps: whether any row has maps.
        branches: whether any row has learned branches.
    """

    make = None
    keep: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self,
        index: Tensor,
        rows: Rows,
        shared: tuple[Branch, ...] = (),
        *,
        single: int | None = None,
        maps: bool = True,
        branches: bool = True,
    ) -> None:
        self.index, self.rows, self.shared, self.single = index, rows, shared, single
        self.maps, self.branches = maps, branches
        self.features: list[Tensor] = []
        self.idle = single == 0 or not (maps or branches or shared)

    def _index(self, count: int) -> Tensor:
        """The row of each row of a tensor; a model that cuts its images up has several for each."""
        pieces = count // len(self.index)
        return self.index.repeat_interleave(pieces) if pieces > 1 else self.index

    def _pick(self, part: Tensor, count: int, kind: torch.dtype | None = None) -> Tensor:
        if self.single is not None:
            found = part[self.single]
        else:
            found = part.index_select(0, self._index(count))
        return found if kind is None else found.to(kind)

    def block(self, number: int, tokens: Tensor) -> Tensor:
        """Tokens after a block, moved by each image's map."""
        if not self.maps:
            return tokens
        down, up, factor, shift, prefix = self.rows.block(number)
        kind, count = tokens.dtype, len(tokens)
        return moved(
            tokens,
            self._pick(factor, count, kind),
            self._product(self._pick(down, count), kind),
            self._product(factor[:0] if up is None else self._pick(up, count), kind),
            self._pick(shift, count, kind),
            self._pick(prefix, count, kind),
        )

    def _product(self, matrix: Tensor, kind: torch.dtype) -> Tensor:
        """Autocast takes half precision as it is; without it, a product needs one precision."""
        return matrix if torch.is_autocast_enabled(matrix.device.type) else matrix.to(kind)

    def branch(self, number: int, z: Tensor) -> Tensor | None:
        """What the learned branches add to a feed-forward network's output; None for nothing."""
        if not self.shared and not self.branches:
            return None
        tokens = z.reshape(len(z), -1, z.shape[-1])
        total: Tensor | None = None
        if self.shared:
            one = self.shared[number]
            hidden = F.gelu(tokens @ self._product(one.down, z.dtype))
            if self.single is None:
                index = self._index(len(z))
                hidden = hidden * (index > 0).to(hidden.dtype)[:, None, None]
            total = hidden @ self._product(one.up, z.dtype)
        if self.branches:
            down, up = (self._pick(part, len(z)) for part in self.rows.feed(number))
            hidden = F.gelu(tokens @ self._product(down, z.dtype))
            up = self._product(up, z.dtype)
            if total is None or up.ndim == 2:
                own = hidden @ up
                total = own if total is None else total + own
            else:
                total = torch.baddbmm(total, hidden, up)
        assert total is not None
        return total.reshape(z.shape)
