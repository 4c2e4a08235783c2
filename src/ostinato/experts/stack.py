"""All published experts side by side on the device, a row each: one gather serves any mix of them.

Row 0 is the source's and does nothing. A row is written once, when an expert is first asked for,
and belongs to it until nobody holds the row any more; so whoever reads an older version goes on
reading what it was. Rows grow by doubling. Experts may lie on another device than rows do.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.experts.routed import SCALE, Branch, Expert, moved
from ostinato.ops import kernels

START = 8


@dataclass(frozen=True)
class Layout:
    """What one expert takes.

    Attributes:
        blocks: per block, width, rank of its map (the width itself for a whole one) and how many
            prefix tokens there are.
        feeds: per feed-forward network, width and rank of the learned branch.

    >>> Layout(blocks=((4, 4, 1),), feeds=((4, 2),)).matrices()  # a whole map, then a branch
    [(4, 4), (1, 4), (4, 2), (2, 4)]
    """

    blocks: tuple[tuple[int, int, int], ...]
    feeds: tuple[tuple[int, int], ...]

    def matrices(self) -> list[tuple[int, int]]:
        """Shapes of matrices and shifts, in the order in which a row holds them."""
        found = []
        for width, rank, _ in self.blocks:
            found += [(width, rank)] + [(rank, width)] * (rank < width) + [(1, width)]
        for width, rank in self.feeds:
            found += [(width, rank), (rank, width)]
        return found

    def vectors(self) -> list[tuple[int, int]]:
        """Shapes of factors and prefixes, likewise."""
        return [shape for width, _, count in self.blocks for shape in ((1, width), (count, width))]


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
        at = sum(2 + (rank < width) for width, rank, _ in ranks[:number])
        low = ranks[number][1] < ranks[number][0]
        matrices, vectors = self.parts
        factor, prefix = vectors[2 * number : 2 * number + 2]
        up = matrices[at + 1] if low else None
        return matrices[at], up, factor[:, 0], matrices[at + 1 + low][:, 0], prefix

    def feed(self, number: int) -> tuple[Tensor, Tensor]:
        """A branch's down and up, a row each; `SCALE` is in the latter."""
        at = sum(2 + (rank < width) for width, rank, _ in self.layout.blocks) + 2 * number
        return self.parts[0][at], self.parts[0][at + 1]

    def of(self, index: Tensor) -> Rows:
        """The rows of some images, an image each: one operator for each of the two tensors."""
        return Rows(
            self.matrices.index_select(0, index), self.vectors.index_select(0, index), self.layout
        )


def _cut(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    found, at = [], 0
    for height, width in shapes:
        part = flat[:, at : at + height * width]
        found.append(part.view(len(flat), height, width))
        at += height * width
    return found


@dataclass(frozen=True, eq=False)
class Row:
    """An expert's place in a stack; it is the expert's for as long as somebody holds this.

    Attributes:
        number: which row.
        expert: whose; an empty one stands for those that only their row was kept of.
    """

    number: int
    expert: Expert


class Stack:
    """Rows of experts that are in use.

    Args:
        layout: what an expert takes.
        device: where rows live.
        kind: precision of the matrices.

    >>> stack = Stack(Layout(((4, 4, 1),), ((4, 2),)), "cpu")
    >>> stack.rows([Expert()])[0].number, len(stack.now.matrices)
    (0, 8)
    """

    def __init__(
        self, layout: Layout, device: torch.device | str, kind: torch.dtype = torch.float
    ) -> None:
        self.layout = layout
        self._lock = threading.RLock()
        self._known: weakref.WeakValueDictionary[int, Row] = weakref.WeakValueDictionary()
        self._source = Row(0, Expert())
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

    def rows(self, experts: Sequence[Expert]) -> list[Row]:
        """The row of each expert; those that have none are written now."""
        with self._lock:
            return [self._row(expert) for expert in experts]

    def _row(self, expert: Expert) -> Row:
        if not expert.maps and not expert.branches:
            return self._source
        row = self._known.get(id(expert))
        if row is None:
            row = self._known[id(expert)] = self._new(expert, expert)
        return row

    def add(self, expert: Expert) -> Row:
        """A row of its own for an expert that nobody asks for again: only the row is kept."""
        with self._lock:
            if not expert.maps and not expert.branches:
                return self._source
            return self._new(expert, Expert())

    def _new(self, expert: Expert, kept: Expert) -> Row:
        if not self._free:
            self._grow()
        row = Row(self._free.pop(), kept)
        self._write(row.number, expert)
        weakref.finalize(row, _free, weakref.ref(self), row.number)
        return row

    def reserve(self, rows: int) -> None:
        """Have at least so many rows: what reads them need not be made anew when they grow."""
        with self._lock:
            while len(self.now.matrices) < rows:
                self._grow()

    def _freed(self, number: int) -> None:
        with self._lock:
            self._free.append(number)

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
            like = expert.maps[0].shift if expert.maps else expert.branches[0].down
            for number, (width, rank, count) in enumerate(self.layout.blocks):
                if not expert.maps:
                    sizes = (1 + (rank < width)) * width * rank + width
                    matrices.append(like.new_zeros(sizes))
                    vectors += [like.new_ones(width), like.new_zeros(count * width)]
                    continue
                one = expert.maps[number]
                matrices += [one.down.flatten(), one.up.flatten(), one.shift]
                factor = 1 + one.scale.to(self.now.vectors.dtype)
                vectors += [factor, one.prefix.flatten()]
            if expert.branches:
                ups = torch._foreach_mul([branch.up for branch in expert.branches], SCALE)
                for branch, up in zip(expert.branches, ups, strict=True):
                    matrices += [branch.down.flatten(), up.flatten()]
            else:
                sizes = sum(2 * width * rank for width, rank in self.layout.feeds)
                matrices.append(like.new_zeros(sizes))
            self.now.matrices[row] = torch.cat(matrices).to(self.now.matrices)
            self.now.vectors[row] = torch.cat(vectors).to(self.now.vectors)


def _free(stack: weakref.ref[Stack], number: int) -> None:
    found = stack()
    if found is not None:
        found._freed(number)


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
    whole = False
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
        # Without kernels a GPU gathers rows by few large operators; a CPU goes layer by layer.
        self.at_once = index.is_cuda
        self._gathered: tuple[int, Rows] | None = None
        self._masked: Tensor | None = None
        self.idle = single == 0 or not (maps or branches or shared)

    def _index(self, count: int) -> Tensor:
        """The row of each row of a tensor; a model that cuts its images up has several for each."""
        pieces = count // len(self.index)
        return self.index.repeat_interleave(pieces) if pieces > 1 else self.index

    def _own(self, count: int) -> Rows | None:
        """All parts of every image's row, where they are gathered at once."""
        if self.single is not None or not self.at_once:
            return None
        if self._gathered is None or self._gathered[0] != count:
            self._gathered = (count, self.rows.of(self._index(count)))
        return self._gathered[1]

    def _pick(self, parts: Sequence[Tensor | None], count: int) -> list[Tensor | None]:
        if self.single is not None:
            return [None if part is None else part[self.single] for part in parts]
        index = self._index(count)
        return [None if part is None else part.index_select(0, index) for part in parts]

    def block(self, number: int, tokens: Tensor) -> Tensor:
        """Tokens after a block, moved by each image's map."""
        if not self.maps:
            return tokens
        if self.single is None and kernels.ready(tokens, self.rows.matrices):
            return kernels.run(self._moved_at_once, self._moved, number, tokens)
        return self._moved(number, tokens)

    def _moved_at_once(self, number: int, tokens: Tensor) -> Tensor:
        from ostinato.ops.kernels.maps import Parts, moved_rows

        return moved_rows(tokens, self.index, Parts(*self.rows.block(number)))

    def _moved(self, number: int, tokens: Tensor) -> Tensor:
        own = self._own(len(tokens))
        if own is None:
            found = self._pick(self.rows.block(number), len(tokens))
        else:
            found = list(own.block(number))
        return moved_by(found, tokens)

    def fed(self, number: int, output: Tensor) -> Tensor | None:
        """A feed-forward network's output with what branches add; None where they add nothing."""
        if not self.shared and not self.branches:
            return None
        tokens = output.reshape(len(output), -1, output.shape[-1])
        if self.single is None and kernels.ready(tokens, self.rows.matrices):
            found = kernels.run(self._fed_at_once, self._fed, number, tokens)
        else:
            found = self._fed(number, tokens)
        return found.reshape(output.shape)

    def _fed_at_once(self, number: int, tokens: Tensor) -> Tensor:
        from ostinato.ops.kernels.branches import Pair, fed_rows

        shared = Pair(self.shared[number].down, self.shared[number].up) if self.shared else None
        own = Pair(*self.rows.feed(number)) if self.branches else None
        return fed_rows(tokens, self.index, shared, own)

    def _fed(self, number: int, tokens: Tensor) -> Tensor:
        both = [(one.down, one.up) for one in self.shared[number : number + 1]]
        if self.branches:
            both.append(self._feed(number, len(tokens)))
        if self.single is not None:  # side by side they are one branch, in half as many passes
            both = [(torch.cat([down for down, _ in both], 1), torch.cat([up for _, up in both]))]
        total = tokens
        for down, up in both:
            hidden = F.gelu(tokens @ _fitting(down, tokens.dtype))
            if self.single is None and down.ndim == 2:  # the shared one
                hidden = hidden * self._mask(len(tokens), hidden.dtype)
            total = _added(total, hidden, _fitting(up, tokens.dtype))
        return total

    def _feed(self, number: int, count: int) -> tuple[Tensor, Tensor]:
        """Down and up of the images' own branches: of all of them, or of each image."""
        own = self._own(count)
        if own is not None:
            return own.feed(number)
        down, up = self._pick(self.rows.feed(number), count)
        assert down is not None
        assert up is not None
        return down, up

    def _mask(self, count: int, kind: torch.dtype) -> Tensor:
        """1 for images with an expert, 0 for the source's, which the shared branch leaves alone."""
        if self._masked is None or (len(self._masked), self._masked.dtype) != (count, kind):
            self._masked = (self._index(count) > 0).to(kind)[:, None, None]
        return self._masked


def moved_by(parts: Sequence[Tensor | None], tokens: Tensor) -> Tensor:
    """Tokens moved by what `Rows.block` gives, of one row or of one for each image."""
    down, up, factor, shift, prefix = parts
    assert down is not None
    assert factor is not None
    assert shift is not None
    assert prefix is not None
    kind = tokens.dtype
    return moved(
        tokens,
        factor.to(kind),
        _fitting(down, kind),
        factor[:0] if up is None else _fitting(up, kind),
        _fitting(shift, kind),
        prefix.to(kind),
    )


def _fitting(matrix: Tensor, kind: torch.dtype) -> Tensor:
    """Autocast takes half precision as it is; without it, a product needs one precision."""
    return matrix if torch.is_autocast_enabled(matrix.device.type) else matrix.to(kind)


def _added(total: Tensor, hidden: Tensor, up: Tensor) -> Tensor:
    """`total + hidden · up`, in one operator where that keeps the total's precision."""
    if total.dtype != hidden.dtype:  # autocast would round the total to half precision first
        return total + (hidden @ up).to(total.dtype)
    if up.ndim == 3:
        return torch.baddbmm(total, hidden, up)
    flat = torch.addmm(total.flatten(0, 1), hidden.flatten(0, 1), up)
    return flat.view(total.shape)
