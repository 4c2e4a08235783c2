"""Which expert answers each image of a common forward: streams' versions beside one another.

Everything that a forward looks up lies in arrays by (version, domain), so that no stream costs a
step of its own. Rows of experts stay on the device for as long as their version answers and there
is room; those that were used longest ago go first, and are written again where they are wanted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ostinato.domains.table import Array, Decided, Slot, Table
from ostinato.experts.routed import Branch, Expert
from ostinato.experts.stack import Row, Stack
from ostinato.methods.ostinato._bank import Version

_ABSENT = -1
"""Stands for the row of an expert that has none now."""
_SHARE = 4
"""The part of a GPU's memory that rows may take: one in so many."""
_HOST_BYTES = 96 * 2**20
"""What rows may take on a CPU."""


@dataclass(eq=False)
class InUse:
    """A published version as common forwards use it.

    Attributes:
        version: the version.
        ranks: of the shared branches and of a domain's own.
        slot: its place among other versions, once it has been asked.
        rows: by place in the version's view, the rows of experts that were asked for.
    """

    version: Version
    ranks: tuple[int, int]
    slot: Slot | None = None
    rows: dict[int, Row] = field(default_factory=dict)

    def expert(self, domain: int) -> Expert | None:
        """A domain's expert, shared and own branches as one; None where the source answers."""
        if self.version.shares.get(domain, 0.0) <= 0:
            return None
        return joined(self.version.experts[domain], self.version.shared, self.ranks)


@dataclass(frozen=True)
class Seated:
    """What is known of all images of a forward, an entry each.

    Attributes:
        domains: whose expert answers; 0 is the source.
        trust: how far that expert acts.
        heat: what logits are divided by.
        index: the stack's row of that expert; 0 is the source's.
        held: those rows, which nobody else gets meanwhile.
        learned: whether any of them has learned branches.
    """

    domains: Array
    trust: Array
    heat: Array
    index: Array
    held: list[Row]
    learned: bool


class Desk:
    """Versions that are in use, and where their experts lie.

    Args:
        stack: of experts' rows.
        device: of the model.
        most: experts that have rows; more only where one forward needs them.
    """

    def __init__(self, stack: Stack, device: torch.device, most: int | None = None) -> None:
        self.stack, self.table = stack, Table(device)
        self.most = most or _affordable(stack, device)
        self.lock = threading.RLock()
        self._versions: weakref.WeakValueDictionary[int, InUse] = weakref.WeakValueDictionary()
        self._ids = np.zeros((0, 0), np.int64)
        self._trust = np.zeros((0, 0))
        self._heat = np.ones((0, 0))
        self._rows = np.zeros((0, 0), np.int64)
        self._used = np.zeros((0, 0), np.int64)
        self._learned = np.zeros(1, bool)
        self._turn = 0

    def route(
        self, asked: Sequence[InUse], placed: Tensor, sizes: Sequence[int]
    ) -> tuple[Decided, Seated]:
        """Decide of every version's images, and find their experts.

        Args:
            asked: versions.
            placed: (B, d) descriptors of all images, on the device.
            sizes: how many of them are each version's.
        """
        with self.lock:
            self._admit([one for one in asked if one.slot is None])
            slots = [one.slot.number for one in asked if one.slot is not None]
            decided = self.table.decide(placed, slots, sizes)
            return decided, self._seat(np.repeat(slots, sizes), decided.best)

    def _admit(self, new: Sequence[InUse]) -> None:
        """Take in versions that have not been asked before."""
        versions = list({id(one): one for one in new}.values())
        if not versions:
            return
        slots = self.table.slots([one.version.view for one in versions])
        self._make_room()
        for one, slot in zip(versions, slots, strict=True):
            ids, at, version = one.version.view.ids, slot.number, one.version
            one.slot = slot
            self._versions[at] = one
            self._ids[at, : len(ids)] = ids
            trust = [version.shares.get(domain, 0.0) for domain in ids]
            self._trust[at, : len(ids)] = trust
            self._heat[at, : len(ids)] = [version.temperatures.get(domain, 1.0) for domain in ids]
            learned = (version.experts[domain].branches for domain in ids if domain)
            self._learned[at] = bool(version.shared) or any(learned)
            acting = [_ABSENT if share > 0 else 0 for share in trust]
            self._rows[at], self._rows[at, : len(ids)] = 0, acting
            self._used[at] = 0

    def _make_room(self) -> None:
        size, room = self.table.size, self.table.room
        if self._ids.shape == (size, room):
            return
        for name in ("_ids", "_trust", "_heat", "_rows", "_used"):
            old = getattr(self, name)
            new = np.zeros((size, room), old.dtype)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
        self._learned = np.resize(self._learned, size)

    def _seat(self, slots: Array, best: Array) -> Seated:
        self._turn += 1
        index = self._rows[slots, best]
        self._used[slots, best] = self._turn
        missing = np.flatnonzero(index == _ABSENT)
        if len(missing):
            pairs = {(int(slots[at]), int(best[at])) for at in missing}
            self._leave(len(pairs))
            for slot, place in sorted(pairs):
                self._write(slot, place)
            index = self._rows[slots, best]
        wanted = np.unique(np.stack([slots, best]), axis=1)
        held = [
            self._versions[slot].rows[place]
            for slot, place in wanted[:, self._rows[tuple(wanted)] > 0].T.tolist()
        ]
        at, learned = (slots, best), bool(self._learned[slots[index > 0]].any())
        return Seated(self._ids[at], self._trust[at], self._heat[at], index, held, learned)

    def _write(self, slot: int, place: int) -> None:
        version = self._versions[slot]
        expert = version.expert(version.version.view.ids[place])
        number = 0
        if expert is not None:
            row = self.stack.add(expert)
            number = row.number
            if number:
                version.rows[place] = row
        self._rows[slot, place] = number

    def _leave(self, more: int) -> None:
        """Let rows go that were used longest ago, where there would be too many."""
        live = sorted(self._versions)
        held = self._rows[live] > 0
        over = int(held.sum()) + more - self.most
        if over <= 0:
            return
        which, place = np.nonzero(held)
        used = self._used[np.asarray(live)[which], place]
        for at in np.argsort(used, kind="stable")[:over]:
            slot = live[int(which[at])]
            if used[at] < self._turn:  # this forward's own stay
                self._versions[slot].rows.pop(int(place[at]), None)
                self._rows[slot, place[at]] = _ABSENT


def _affordable(stack: Stack, device: torch.device) -> int:
    """Rows that there is room for."""
    now = stack.now
    each = sum(one[0].numel() * one.element_size() for one in (now.matrices, now.vectors))
    whole = _HOST_BYTES
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory // _SHARE
    return max(64, whole // max(each, 1))


def joined(expert: Expert, shared: tuple[Branch, ...], ranks: tuple[int, int]) -> Expert:
    """An expert whose branches are the shared ones and its own side by side; none is zero.

    >>> one = Branch(torch.ones(4, 2), torch.ones(2, 4))
    >>> both = joined(Expert((), (one,)), (), (3, 2))
    >>> both.branches[0].down.shape, both.branches[0].down[0].tolist()
    (torch.Size([4, 5]), [0.0, 0.0, 0.0, 1.0, 1.0])
    """
    if not shared and not expert.branches:
        return Expert(expert.maps)
    like = shared or expert.branches
    expert = expert.to(like[0].down.device)
    first = shared or tuple(_nothing(one, ranks[0]) for one in like)
    second = expert.branches or tuple(_nothing(one, ranks[1]) for one in like)
    return Expert(
        expert.maps,
        tuple(
            Branch(torch.cat([a.down, b.down], 1), torch.cat([a.up, b.up], 0))
            for a, b in zip(first, second, strict=True)
        ),
    )


def _nothing(like: Branch, rank: int) -> Branch:
    width = len(like.down)
    return Branch(like.down.new_zeros(width, rank), like.up.new_zeros(rank, width))
