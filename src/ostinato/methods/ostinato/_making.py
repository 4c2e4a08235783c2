"""The pass that makes a domain's maps as a CUDA graph: what a new domain costs is mostly launches.

Moments, roots and low ranks are many small operators after every second block. Their sizes depend
on the model alone, so one capture for a number of images serves every domain and every share, with
and without what was learned. The source's own pass, which maps are judged beside, is captured
likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.experts.routed import BlockMap, Branch
from ostinato.methods.ostinato import _turns as captures
from ostinato.methods.ostinato._turns import Recorder, Size, Sizes, on

KEPT = 12
"""Passes that are kept: `maps.whole` gives about half as many numbers of images."""
Made = tuple[Tensor, tuple[BlockMap, ...]]
"""Logits, and the maps that were made on the way to them."""
Groups = tuple[tuple[Branch, ...], ...]
"""Learned branches that act meanwhile: the shared ones, and a domain's; none where nothing is."""
Making = Callable[[Tensor, Tensor | None, Groups], Made]
"""Makes maps, given pixels and the share that they are to move tokens by; none without a share."""


@dataclass(frozen=True)
class _Pass:
    """One captured pass: what it reads (up to `learned`), what it writes, and what runs it."""

    pixels: Tensor
    share: Tensor
    learned: list[Tensor]
    logits: Tensor
    parts: Tensor
    shapes: tuple[torch.Size, ...]
    replay: Callable[[], Any]


class MapCaptures(Recorder):
    """The captured passes that make maps, by number and size of images.

    Args:
        work: makes maps.
    """

    def __init__(self, work: Making) -> None:
        super().__init__()
        self._work = work
        self._kept: dict[Size, _Pass] = {}
        self._sizes = Sizes(seen=1)

    def made_from(self, pixels: Tensor, share: float | None, groups: Groups = ()) -> Made | None:
        """Logits and maps, in tensors of their own; None where it is not captured.

        Args:
            pixels: images of a domain.
            share: what its maps are to move tokens by; None for the source's logits.
            groups: learned branches that act, the shared ones first.
        """
        if self.refused is not None:
            return None
        size = (*pixels.shape, int(share is not None), *(len(group) for group in groups))
        with self._lock, on(pixels.device), torch.inference_mode(False), torch.no_grad():
            if not self._sizes.worth(size, self._kept, KEPT):
                return None
            if size not in self._kept:
                made = self._recorded(lambda: self._captured(pixels, share, groups), pixels.device)
                if made is None:
                    return None
                if len(self._kept) >= KEPT:
                    del self._kept[self._sizes.rarest(self._kept)]
                self._kept[size] = made
            return self._replayed(self._kept[size], pixels, share, _parts(groups))

    def _captured(self, pixels: Tensor, share: float | None, groups: Groups) -> _Pass:
        given = pixels.clone(memory_format=torch.contiguous_format)
        moved = torch.ones((), dtype=torch.double, device=pixels.device)
        shapes = list[torch.Size]()
        own = tuple(tuple(Branch(b.down.clone(), b.up.clone()) for b in group) for group in groups)

        def work() -> tuple[Tensor, Tensor]:
            logits, maps = self._work(given, None if share is None else moved, own)
            parts = [part for one in maps for part in one.tensors()]
            shapes[:] = [part.shape for part in parts]
            flat = [part.flatten() for part in parts]
            return logits, torch.cat(flat) if flat else logits.new_empty(0)

        (logits, parts), replay = captures.record(work, self._pool)
        return _Pass(given, moved, _parts(own), logits, parts, tuple(shapes), replay)

    def _replayed(
        self, one: _Pass, pixels: Tensor, share: float | None, learned: list[Tensor]
    ) -> Made:
        self._turns.begin(pixels.device)
        one.pixels.copy_(pixels)
        if learned:
            torch._foreach_copy_(one.learned, learned)
        if share is not None:
            one.share.fill_(share)
        one.replay()
        logits, parts = one.logits.clone(), one.parts.clone()
        self._turns.end(pixels.device)
        cut = parts.split([shape.numel() for shape in one.shapes])
        own = iter([part.view(shape) for part, shape in zip(cut, one.shapes, strict=True)])
        count = len(one.shapes) // 5
        return logits, tuple(BlockMap(*(next(own) for _ in range(5))) for _ in range(count))


def _parts(groups: Groups) -> list[Tensor]:
    """All tensors of some branches, in order."""
    return [part for group in groups for branch in group for part in branch]
