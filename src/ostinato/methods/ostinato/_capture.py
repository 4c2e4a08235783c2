"""Whole answers as CUDA graphs: a GPU then waits for no launch, and the host is free meanwhile.

What changes from batch to batch and from version to version lies in tensors of fixed place and
size, so that switching, founding, learning and retiring domains need no new capture. Only growth
does (of the stack, or of routing's rows; both double), and another batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ostinato.domains.routes import Routed, Routes
from ostinato.experts.routed import Branch
from ostinato.experts.stack import Rows
from ostinato.methods.ostinato import _turns as captures
from ostinato.methods.ostinato._bank import Version
from ostinato.methods.ostinato._published import Placed
from ostinato.methods.ostinato._turns import KEPT, KINDS, Recorder, Size, Sizes, Turns, is_older, on


@dataclass(frozen=True)
class Answered:
    """One captured answer, on its way; tensors are the caller's own.

    Attributes:
        placed: the version that answers.
        logits: of the batch.
        routed: what was decided.
        described: descriptors, on the device.
        arrived: waits until the descriptors are on the host, not for the forward; gives them.
    """

    placed: Placed
    logits: Tensor
    routed: Routed
    described: Tensor
    arrived: Callable[[], Tensor]


def sent(described: Tensor) -> Callable[[], Tensor]:
    """Send descriptors off to the host; what waits for them, and for nothing sent off later."""
    if not described.is_cuda:
        kept = described.clone()
        return lambda: kept
    host = torch.empty(described.shape, dtype=described.dtype, pin_memory=True)
    host.copy_(described, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(described.device))

    def arrived() -> Tensor:
        event.synchronize()
        return host

    return arrived


@contextmanager
def beside(device: torch.device) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Gives a place for work that waits for what was sent off before this, and for nothing later.

    Its results are for the host, which has to wait for them before it lets go of what they read.
    """
    if device.type != "cuda":
        yield nullcontext
        return
    with on(device):
        before, aside = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
        aside.wait_stream(before)
        yield lambda: torch.cuda.stream(aside)


class Capture:
    """One batch size's answer.

    Args:
        describe: gives descriptors of pixels.
        forward: gives logits of pixels, with the rows of a placed version.
        pixels: a batch of the size.
        placed: a version; others that fit can be loaded later.
        pool: memory shared with other captures.
        turns: of all captures in that memory.
    """

    def __init__(
        self,
        describe: Callable[[Tensor], Tensor],
        forward: Callable[[Tensor, Placed, Tensor], Tensor],
        pixels: Tensor,
        placed: Placed,
        pool: Any,
        turns: Turns,
    ) -> None:
        self._turns = turns
        self.pixels = pixels.clone(memory_format=torch.contiguous_format)
        routes = Routes(placed.routes.facts.clone(), placed.routes.width)
        shared = tuple(Branch(one.down.clone(), one.up.clone()) for one in placed.shared)
        # Neither version nor rows are held on to: those of experts that are gone become free.
        bare = Version(0, placed.version.view)
        self.placed = replace(placed, version=bare, routes=routes, shared=shared, held=())
        self._loaded = (placed.routes, placed.shared)
        self.described, self._describe = captures.record(lambda: describe(self.pixels), pool)

        def answer() -> tuple[Routed, Tensor]:
            routed = self.placed.routes(self.described)
            return routed, forward(self.pixels, self.placed, routed.rows)

        (self.routed, self.logits), self._answer = captures.record(answer, pool)

    def __call__(self, pixels: Tensor, placed: Placed) -> Answered:
        """Send a batch on its way."""
        self._turns.begin(pixels.device)
        self._load(placed)
        self.pixels.copy_(pixels)
        self._describe()
        arrived = sent(self.described)
        self._answer()
        routed = Routed(
            self.routed.owners.clone(), self.routed.rows.clone(), self.routed.distance.clone()
        )
        logits, described = self.logits.clone(), self.described.clone()
        self._turns.end(pixels.device)
        return Answered(placed, logits, routed, described, arrived)

    def _load(self, placed: Placed) -> None:
        routes, shared = self._loaded
        if placed.routes is not routes:
            self.placed.routes.facts.copy_(placed.routes.facts)
        if placed.shared is not shared:
            for own, other in zip(self.placed.shared, placed.shared, strict=True):
                own.down.copy_(other.down)
                own.up.copy_(other.up)
        self._loaded = (placed.routes, placed.shared)


class Captures(Recorder):
    """The captured answers of a method, by batch size.

    Args:
        describe: gives descriptors of pixels.
        forward: gives logits of pixels, with the rows of a placed version.
    """

    def __init__(
        self,
        describe: Callable[[Tensor], Tensor],
        forward: Callable[[Tensor, Placed, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self._describe, self._forward = describe, forward
        self._kept: dict[Size, dict[Any, Capture]] = {}
        self._room: Rows | None = None
        self._sizes = Sizes()

    def answer(self, pixels: Tensor, placed: Placed) -> Answered | None:
        """The answer to a batch whose size has come before; None where it is not captured."""
        if self.refused is not None:
            return None
        size = tuple(pixels.shape)
        with self._lock, on(pixels.device), torch.inference_mode(False), torch.no_grad():
            if not self._sizes.worth(size, self._kept) or is_older(placed.rows, self._room):
                return None
            if self._room is not placed.rows:  # they grew: what is captured reads the old ones
                # Memory that all captures have left cannot be captured in again.
                self._kept, self._room, self._pool = {}, placed.rows, None
            key = (placed.routes.room, bool(placed.shared), placed.maps, placed.branches)
            capture = self._kept.get(size, {}).get(key)
            if capture is None:
                capture = self._make(pixels, placed)
                if capture is None:
                    return None
                self._keep(size, key, capture)
            return capture(pixels, placed)

    def _keep(self, size: Size, key: Any, capture: Capture) -> None:
        if size not in self._kept and len(self._kept) >= KEPT:
            del self._kept[self._sizes.rarest(self._kept)]
        alike = self._kept.setdefault(size, {})
        if len(alike) >= KINDS:
            del alike[next(iter(alike))]
        alike[key] = capture

    def _make(self, pixels: Tensor, placed: Placed) -> Capture | None:
        def make() -> Capture:
            return Capture(self._describe, self._forward, pixels, placed, self._pool, self._turns)

        found: Capture | None = self._recorded(make, pixels.device)
        return found
