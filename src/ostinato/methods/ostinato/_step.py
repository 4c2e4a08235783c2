"""Forward, loss and gradients of one update as a CUDA graph, for domains that come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import SCALE, Acting, BlockMap, Branch, side_by_side
from ostinato.experts.stack import Rows, moved_by
from ostinato.methods.ostinato import _turns as captures
from ostinato.methods.ostinato._bank import Domain
from ostinato.methods.ostinato._learning import Differentiated
from ostinato.methods.ostinato._turns import KEPT, Recorder, Size, Sizes, Turns, is_older, on
from ostinato.ops import kernels
from ostinato.ops.features import pool_tokens
from ostinato.ops.losses import facts

Work = Callable[[Tensor, Acting, tuple[tuple[Branch, ...], ...]], Differentiated]


@dataclass(frozen=True)
class Started:
    """Gradients on their way, for a domain as it was then.

    Attributes:
        domain: whose.
        maps: its maps.
        groups: the branches that were differentiated by.
        changes: how often they had changed.
        found: logits, loss and gradients.
    """

    domain: Domain
    maps: tuple[BlockMap, ...]
    groups: tuple[FlatBranches, FlatBranches]
    changes: tuple[int, int]
    found: Differentiated

    def holds(self, domain: Domain, shared: FlatBranches) -> bool:
        """Whether they are what would be found now."""
        now = (shared, domain.branches)
        same = domain is self.domain and domain.maps is self.maps
        return same and all(
            one is other and one.changes == count
            for one, other, count in zip(self.groups, now, self.changes, strict=True)
        )


class LearningPass:
    """One domain's maps from its row of a stack, and branches to differentiate by.

    Args:
        row: (1,) the row, where a later one may be written.
        rows: the stack's.
        shared: the shared branches.
        own: the domain's.
        class_token: whether features are first tokens; means over all otherwise.
    """

    idle = whole = False

    def __init__(
        self,
        row: Tensor,
        rows: Rows,
        shared: tuple[Branch, ...],
        own: tuple[Branch, ...],
        *,
        class_token: bool,
    ) -> None:
        self.row, self.rows, self.shared, self.own = row, rows, shared, own
        self.class_token, self.features = class_token, list[Tensor]()
        self._own: Rows | None = None
        self._first: tuple[Tensor, Tensor] | None = None

    def keep(self, tokens: Tensor) -> Tensor:
        """The feature that stands for each image after a block."""
        if self.class_token and self._first is not None and self._first[0] is tokens:
            return self._first[1]
        return pool_tokens(tokens, self.class_token)

    def block(self, number: int, tokens: Tensor) -> Tensor:
        """Tokens after a block, moved by the domain's map."""
        if kernels.ready(tokens, self.rows.matrices):
            return kernels.run(self._moved_at_once, self._moved, number, tokens)
        return self._moved(number, tokens)

    def _moved_at_once(self, number: int, tokens: Tensor) -> Tensor:
        from ostinato.ops.kernels.maps import Parts, moved_and_first

        moved, first = moved_and_first(tokens, self.row, Parts(*self.rows.block(number)))
        self._first = (moved, first)
        return moved

    def _moved(self, number: int, tokens: Tensor) -> Tensor:
        if self._own is None:
            self._own = self.rows.of(self.row)
        parts = self._own.block(number)
        return moved_by([None if part is None else part[0] for part in parts], tokens)

    def fed(self, number: int, output: Tensor) -> Tensor:
        """The output with what both branches add."""
        if kernels.ready(output):
            return kernels.run(self._fed_at_once, self._fed, number, output)
        return self._fed(number, output)

    def _fed_at_once(self, number: int, output: Tensor) -> Tensor:
        from ostinato.ops.kernels.branches import Pair
        from ostinato.ops.kernels.learned import fed_by_two

        tokens = output.reshape(len(output), -1, output.shape[-1])
        shared, own = (Pair(one.down, one.up) for one in (self.shared[number], self.own[number]))
        return fed_by_two(tokens, self.row, shared, own, SCALE).reshape(output.shape)

    def _fed(self, number: int, output: Tensor) -> Tensor:
        both = side_by_side((self.shared[number], self.own[number]))
        return output + both(output).to(output.dtype)


class StepCapture:
    """The gradients of one batch size, captured.

    Args:
        work: differentiates, given pixels, a pass and the branches.
        groups: the shared branches and a domain's; others of their size can be loaded.
        pixels: a batch of the size.
        rows: the stack's.
        row: the domain's.
        class_token: whether the loss needs first tokens, or means over all.
        pool: memory shared with other captures.
        turns: of all captures in that memory.
    """

    def __init__(
        self,
        work: Work,
        groups: tuple[FlatBranches, FlatBranches],
        pixels: Tensor,
        rows: Rows,
        row: int,
        class_token: bool,
        pool: Any,
        turns: Turns,
    ) -> None:
        self._turns = turns
        self.pixels = pixels.clone(memory_format=torch.contiguous_format)
        self.values = [group.value.clone() for group in groups]
        self.row = torch.tensor([row], device=pixels.device)
        shared, own = (
            group.leaves(value) for group, value in zip(groups, self.values, strict=True)
        )

        self.temperature = torch.ones((), device=pixels.device)

        def differentiate() -> Differentiated:
            now = LearningPass(self.row, rows, shared, own, class_token=class_token)
            made = work(self.pixels, now, (shared, own))
            if made.loss is None:
                return made
            seen = facts(made.logits, made.loss, made.grads, self.temperature)
            return made._replace(facts=seen)

        self.found, self._replay = captures.record(differentiate, pool)

    def __call__(
        self,
        pixels: Tensor,
        row: int,
        groups: tuple[FlatBranches, FlatBranches],
        temperature: float,
    ) -> Differentiated:
        """The gradients of a batch; tensors are the caller's own."""
        self._turns.begin(pixels.device)
        self.pixels.copy_(pixels)
        self.row.fill_(row)
        self.temperature.fill_(temperature)
        for value, group in zip(self.values, groups, strict=True):
            value.copy_(group.value)
        self._replay()
        logits, loss, grads, seen = self.found
        own = Differentiated(
            logits.clone(),
            None if loss is None else loss.clone(),
            tuple(g.clone() for g in grads),
            None if seen is None else seen.clone(),
        )
        self._turns.end(pixels.device)
        return own


class StepCaptures(Recorder):
    """The captured gradients of a method, by batch size.

    Args:
        work: differentiates, given pixels, a pass and the branches.
        class_token: whether the loss needs first tokens, or means over all.
    """

    def __init__(self, work: Work, *, class_token: bool) -> None:
        super().__init__()
        self._work, self._class_token = work, class_token
        self._kept: dict[Size, StepCapture] = {}
        self._room: Rows | None = None
        self._sizes = Sizes()

    def gradients(
        self,
        pixels: Tensor,
        rows: Rows,
        row: int,
        groups: tuple[FlatBranches, FlatBranches],
        temperature: float = 1.0,
    ) -> Differentiated | None:
        """Gradients of a batch whose size has come before; None where it is not captured."""
        if self.refused is not None:
            return None
        size = tuple(pixels.shape)
        with self._lock, on(pixels.device):
            if not self._sizes.worth(size, self._kept) or is_older(rows, self._room):
                return None
            if self._room is not rows:  # they grew: what is captured reads the old ones
                # Memory that all captures have left cannot be captured in again.
                self._kept, self._room, self._pool = {}, rows, None
            if size not in self._kept:
                made = self._make(pixels, rows, row, groups)
                if made is None:
                    return None
                if len(self._kept) >= KEPT:
                    del self._kept[self._sizes.rarest(self._kept)]
                self._kept[size] = made
            return self._kept[size](pixels, row, groups, temperature)

    def _make(
        self, pixels: Tensor, rows: Rows, row: int, groups: tuple[FlatBranches, FlatBranches]
    ) -> StepCapture | None:
        def make() -> StepCapture:
            return StepCapture(
                self._work, groups, pixels, rows, row, self._class_token, self._pool, self._turns
            )

        found: StepCapture | None = self._recorded(make, pixels.device)
        return found
