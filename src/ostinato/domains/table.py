"""Views of many streams side by side on the device: one decision for the images of all of them.

What `View.decide` does for one stream is done here for any number of them at once, each with its
own domains, and by its own images alone. A slot is written once, when a view is first asked for,
and belongs to it until nobody holds the slot any more. Slots and places for domains grow by
doubling; places beyond the domains there are have no prior, and so no image.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ostinato.domains.routes import capacity
from ostinato.domains.verdict import DEGREES, DRIFT, FAR, LOCAL, POWER, View

_START = 8
_FACTS = 6
"""Numbers of a domain beside its mean: see `_facts`."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Slot:
    """A view's place in a table; it is the view's for as long as somebody holds this."""

    number: int


@dataclass(frozen=True)
class Decided:
    """What was decided of all images, on the host.

    Attributes:
        best: (B,) the place of each image's domain among those of its view; 0 is the source.
        distance: (B,) squared distance to the likeliest domain, 1 is usual.
        far: (B,) images that no known domain explains; their `best` is 0.
    """

    best: Array
    distance: Array
    far: Array


class Table:
    """Views that are in use.

    Args:
        device: where images are decided of.

    >>> near, even = torch.tensor([[0.0], [9.0]]).double(), torch.ones(2).double()
    >>> known = View((0, 1), near, even, counts=50 * even, mix=0.5 * even)
    >>> table = Table("cpu")
    >>> slots = table.slots([known, known])
    >>> images = torch.tensor([[0.5], [8.0], [60.0]]).double()
    >>> table.decide(images, [one.number for one in slots], [1, 2]).best.tolist()
    [0, 1, 0]
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = device
        self._lock = threading.RLock()
        self._free = list(range(_START - 1, -1, -1))
        self.size, self.room = _START, 0
        self._means = torch.empty(0)
        self._facts = torch.empty(0)

    def slots(self, views: Sequence[View]) -> list[Slot]:
        """A slot for each view, written now: all of them by one transfer."""
        if not views:
            return []
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._make_room(views)
            numbers = [self._free.pop() for _ in views]
            width = self._means.shape[2]
            packed = np.zeros((len(views), self.room, width + _FACTS))
            packed[:, :, width + 1] = 1.0
            for place, view in zip(packed, views, strict=True):
                means = view.means.numpy()
                place[: len(means), :width] = means
                place[: len(means), width:] = _facts(view, means).T
            written = torch.from_numpy(packed).to(self.device)
            where = torch.tensor(numbers, device=self.device)
            self._means.index_copy_(0, where, written[..., :width])
            self._facts.index_copy_(0, where, written[..., width:].mT)
            made = [Slot(number) for number in numbers]
            for slot in made:
                weakref.finalize(slot, _free, weakref.ref(self), slot.number)
            return made

    def _make_room(self, views: Sequence[View]) -> None:
        room = max(self.room, *(capacity(len(view.ids)) for view in views))
        size = self.size
        while size - self.size + len(self._free) < len(views):
            size *= 2
        if (size, room) == (self.size, self.room):
            return
        width = views[0].means.shape[1]
        means = torch.zeros(size, room, width, dtype=torch.double, device=self.device)
        facts = torch.zeros(size, _FACTS, room, dtype=torch.double, device=self.device)
        facts[:, 1] = 1.0
        if self.room:
            means[: self.size, : self.room] = self._means
            facts[: self.size, :, : self.room] = self._facts
        self._means, self._facts = means, facts
        self._free[:0] = range(size - 1, self.size - 1, -1)
        self.size, self.room = size, room

    def _freed(self, number: int) -> None:
        with self._lock:
            self._free.append(number)

    @torch.no_grad()
    def decide(self, placed: Tensor, slots: Sequence[int], sizes: Sequence[int]) -> Decided:
        """Decide of the images of several views; one transfer there, and one back.

        Args:
            placed: (B, d) what `Content.place` gave, on the table's device.
            slots: of each view.
            sizes: how many of the images are each view's, in the order of `placed`.
        """
        with self._lock:
            all_means, all_facts = self._means, self._facts
        count, most = len(slots), max(sizes)
        uneven = count * most > len(placed)
        given, places = _moved(slots, sizes, most if uneven else 0, placed.device)
        where, images, kept = given[0].long(), given[1][:, None], given[2][:, None]
        means, facts = all_means.index_select(0, where), all_facts.index_select(0, where)
        squares, scale, level, wide, mix, rare = facts.unbind(1)
        own = placed
        if places is not None:
            own = placed.new_zeros(count * most, placed.shape[1]).index_copy_(0, places, placed)
        own = own.view(count, most, -1)
        apart = torch.baddbmm(squares[:, None], own, means.mT, alpha=-2)
        apart = (apart + own.square().sum(2, keepdim=True)).clamp_min_(0) / scale[:, None]
        fit = level[:, None] - DEGREES * torch.log1p(apart * wide[:, None])
        there = None
        if places is not None:
            there = (torch.arange(most, device=placed.device) < images)[..., None]
        mixed = mix
        for _ in range(2):  # as in `View.decide`
            posterior = (fit + ((1 - DRIFT) * mixed + rare).log()[:, None]).softmax(2)
            told = posterior if there is None else posterior * there
            mixed = kept * mix + (1 - kept) * (told.sum(1) / images)
        best = posterior.argmax(2)
        distance = apart.gather(2, best[..., None])[..., 0]
        both = torch.stack([best.double(), distance]).flatten(1)
        found = (both if places is None else both.index_select(1, places)).cpu().numpy()
        far = found[1] > FAR
        return Decided(np.where(far, 0, found[0]).astype(np.int64), found[1], far)


def _facts(view: View, means: Array) -> Array:
    """(6, K): a mean's square, a distance's unit, level and width of the fit, mix, rare visits."""
    spreads, counts, mix = (one.numpy() for one in (view.spreads, view.counts, view.mix))
    own, often = spreads**POWER, counts.copy()
    often[0] = max(often[0], 1.0)
    with np.errstate(divide="ignore"):  # a domain without images is infinitely wide
        scale = means.shape[1] * spreads * (1 + 1 / counts)
    level = -0.5 * DEGREES * np.log(own)
    rare = DRIFT * often / often.sum()
    return np.stack([np.square(means).sum(1), scale, level, spreads / own / 2, mix, rare])


def _places(counts: Array, most: int) -> list[Array]:
    """Where each image lies once every view has as many places as the one with most images."""
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    own = np.arange(counts.sum()) - np.repeat(first, counts)
    return [np.repeat(most * np.arange(len(counts)), counts) + own]


def _moved(
    slots: Sequence[int], sizes: Sequence[int], most: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Slots, sizes and what each view's past keeps of its weight; the places of all images.

    Places are there where `most` says how many each view gets: sizes differ then.
    """
    counts = np.asarray(sizes)
    rows = [np.asarray(slots), counts, (1 - 1 / LOCAL) ** counts]
    whole = np.concatenate([*rows, *(_places(counts, most) if most else ())], dtype=float)
    moved = torch.from_numpy(whole).to(device)
    count = 3 * len(slots)
    return moved[:count].view(3, -1), moved[count:].long() if most else None


def _free(table: weakref.ref[Table], number: int) -> None:
    found = table()
    if found is not None:
        found._freed(number)
