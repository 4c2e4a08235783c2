"""What is known of domains, what is decided of a batch by it, and how images count in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ostinato.ops.whitening import Content

SOURCE = 0
LEAST = 8
"""Images that found a domain at the least, where they lie far away."""
FAR = 5.0
"""Times a domain's usual squared distance beyond which an image belongs to none."""
DEGREES = 48.0
"""Independent numbers a descriptor counts as; its 369 depend on one another."""
POWER = 0.25
"""How far a domain's own spread counts where domains are compared: 0 is not at all, 1 fully."""
LOCAL = 16.0
"""Images that the picture of the present traffic reaches back."""
DRIFT = 0.02
"""Share of the prior that the present traffic does not decide."""
_DOUBT = 10.0
"""Images that a domain's own spread is held near the usual one by."""
_SAME = 1e-3
"""Mean squared difference of placed descriptors below which two images are one; usual is 2."""
_GLANCE = 48
"""Numbers of a placed descriptor that nearly all pairs of images are told apart by."""
_SLACK = 0.05
"""Rounding of products in single precision, which a glance must not take for a difference."""
MOVED, SURE = 3.0, 2.5
"""Images lie elsewhere where their mean does by this (squared), and by so many deviations of what
chance makes of it."""
TEST, SELDOM, GROWTH = 8, 512, 3.0
"""A domain is tested for two after so many images: at first, at most, and as a part of its own in
mixed traffic; where it comes alone, once it has twice as many."""
_SOON = 2
"""So many will do where its latest images lie elsewhere."""


@dataclass(frozen=True)
class View:
    """What deciding needs, frozen: a published version holds one.

    Attributes:
        ids: domains, the source first.
        means: (K, d) where they lie, in content's deviations.
        spreads: (K,) each domain's usual squared distance, 1 on average.
        counts: (K,) images behind each.
        mix: (K,) what the latest traffic was made of.

    >>> means, even = torch.tensor([[0.0], [9.0]]), torch.ones(2)
    >>> known = View((0, 1), means, even, counts=50 * even, mix=0.5 * even)
    >>> known.decide(torch.tensor([[0.5], [8.0], [60.0]])).owners()  # the last one is far from both
    [0, 1, 0]
    """

    ids: tuple[int, ...]
    means: Tensor
    spreads: Tensor
    counts: Tensor
    mix: Tensor

    @cached_property
    def numbers(self) -> Tensor:
        """The domains as a tensor, where the means are."""
        return torch.tensor(self.ids, device=self.means.device)

    def distances(self, placed: Tensor) -> Tensor:
        """(B, K): mean squared distance to every domain, 1 for a usual image of it."""
        apart = squared(placed, self.means) / placed.shape[1]
        return apart / (self.spreads * (1 + 1 / self.counts))

    def near(self, ids: Tensor) -> View:
        """Some domains, the source, and all whose mean lies near enough to theirs to be chosen.

        Args:
            ids: the domains whose images are to be decided of.
        """
        mine = (self.numbers[:, None] == ids).any(1)
        reach = 4 * FAR * self.means.shape[1] * float(self.spreads[mine].max())
        rows = (squared(self.means[mine].float(), self.means.float()) <= reach).any(0) | mine
        rows[0] = True
        if bool(rows.all()):
            return self
        kept = [one for one, row in zip(self.ids, rows.tolist(), strict=True) if row]
        parts = (self.means, self.spreads, self.counts, self.mix)
        return View(tuple(kept), *(part[rows] for part in parts))

    def decide(self, placed: Tensor) -> Verdict:
        """Each image's domain, its posterior and its distance; changes nothing.

        Args:
            placed: (B, d) what `Content.place` gave.
        """
        apart = self.distances(placed)
        own = self.spreads**POWER
        fit = -0.5 * DEGREES * (own.log() + 2 * torch.log1p(apart * (self.spreads / own) / 2))
        mix = self.mix
        for _ in range(2):  # the batch tells what is coming, which tells more of the batch
            posterior = (fit + self._prior(mix).log()).softmax(1)
            mix = blended(self.mix, posterior)
        best = posterior.argmax(1)
        distance = apart.gather(1, best[:, None])[:, 0]
        ids = self.numbers[best]
        return Verdict(ids, distance, posterior, distance > FAR)

    def _prior(self, mix: Tensor) -> Tensor:
        often = self.counts.clone()
        often[0].clamp_(min=1.0)
        return (1 - DRIFT) * mix + DRIFT * often / often.sum()


@dataclass(frozen=True)
class Verdict:
    """What was decided of a batch.

    Attributes:
        ids: (B,) domain of each image; 0 is the source.
        distance: (B,) squared distance to it, 1 is usual.
        posterior: (B, K) over the view's domains.
        far: (B,) images that no known domain explains; the source answers them.

    >>> one = torch.ones(1)
    >>> Verdict(torch.tensor([3]), 9 * one, one[:, None], torch.tensor([True])).owners()
    [0]
    """

    ids: Tensor
    distance: Tensor
    posterior: Tensor
    far: Tensor

    def owners(self) -> list[int]:
        """The domain whose expert answers each image."""
        return torch.where(self.far, torch.full_like(self.ids, SOURCE), self.ids).tolist()


@dataclass(frozen=True)
class Change:
    """What an observation did to the domains.

    Attributes:
        owners: (B,) where the observed images belong now.
        known: (B,) False for images seen before, which count once.
        founded: new domains, each with the one that it was split off.
        merged: (gone, into) pairs.
        distance: mean squared distance of the images to their likeliest domains, 1 is usual; 0
            where domains were told.

    >>> Change(owners=[2], known=[True], founded={2: 0}).merged
    ()
    """

    owners: list[int]
    known: list[bool]
    founded: Mapping[int, int] = field(default_factory=dict)
    merged: tuple[tuple[int, int], ...] = ()
    distance: float = 0.0


def blended(mix: Tensor, posterior: Tensor) -> Tensor:
    """The picture of the traffic after a batch: each image fades the past by 1 / `LOCAL`."""
    kept = (1 - 1 / LOCAL) ** len(posterior)
    return kept * mix + (1 - kept) * posterior.mean(0)


def squared(a: Tensor, b: Tensor) -> Tensor:
    """(n, m): squared distances between the rows of two tensors.

    >>> import torch
    >>> squared(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
    25.0
    """
    squares = a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * (a @ b.T)
    return squares.clamp_min(0)


def fresh(placed: Tensor, recent: Tensor) -> Tensor:
    """Which rows show something new: neither in `recent` nor earlier in the batch.

    >>> fresh(torch.tensor([[0.0], [1.0], [1.0], [2.0]]), torch.tensor([[2.0]])).tolist()
    [True, True, False, False]
    """
    placed, recent = placed.float(), recent.float()  # far more exact than what is asked
    bound = _SAME * placed.shape[1]
    # A few numbers suffice to tell nearly all pairs apart; the rest is looked at in full.
    glance = torch.cat([recent[:, :_GLANCE], placed[:, :_GLANCE]])
    like = squared(placed[:, :_GLANCE], glance) <= bound + _SLACK
    like &= torch.arange(len(glance)) < (len(recent) + torch.arange(len(placed)))[:, None]
    some = like.any(1)
    if bool(some.any()):
        like[some] &= squared(placed[some], torch.cat([recent, placed])) <= bound
    return ~like.any(1)


def elsewhere(latest: Tensor, mean: Tensor, images: float = math.inf) -> bool:
    """Whether a domain's latest images lie off a mean, by more than chance.

    The squared distance of two means is by chance tr Σ (1/n + 1/m), give or take √(2 tr Σ²) of the
    same. Both are estimated from the images themselves, without bias: those of a domain that vary
    in few directions are often far off by chance, those that vary in many hardly ever.

    Args:
        latest: (n, d) placed descriptors; fewer than `LEAST` say nothing.
        mean: (d,) where others of its images lay.
        images: of which the mean was taken.

    >>> import torch
    >>> some = torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    >>> elsewhere(some, torch.zeros(16)), elsewhere(some + 1, torch.zeros(16))
    (False, True)
    """
    count = len(latest)
    if count < LEAST:
        return False
    centre = latest.mean(0)
    off = latest - centre
    within = off @ off.T / (count - 1)
    spread, squares = float(within.trace()), float(within.square().sum())
    directions = (
        (count - 1) ** 2 / ((count - 2) * (count + 1)) * (squares - spread**2 / (count - 1))
    )
    share = 1 / count + 1 / images
    chance = math.sqrt(2 * max(directions, spread**2 / len(mean))) * share
    away = float((centre - mean).square().sum()) - spread * share
    return away > MOVED + SURE * chance


class Known:
    """Domains as they are known now, and the latest images with whose they are.

    Args:
        content: what clean descriptors are like.

    >>> from ostinato.ops.whitening import Content
    >>> clean = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> Known(Content.of(clean)).view().ids
    (0,)
    """

    def __init__(self, content: Content) -> None:
        self.content = content
        self.clear()

    def clear(self) -> None:
        """Back to the source alone."""
        width = len(self.content.mean)
        self.ids: list[int] = [SOURCE]
        self.next_id = 1
        self.sums = torch.zeros(1, width, dtype=torch.double)
        self.counts = torch.tensor([float(self.content.images)], dtype=torch.double)
        self.mix = torch.ones(1, dtype=torch.double)
        self.spreads = torch.ones(1, dtype=torch.double)
        self.untested = torch.zeros(1, dtype=torch.double)
        self.recent = torch.zeros(0, width)  # many, and exact enough
        self.owner = torch.zeros(0, dtype=torch.long)
        self.unrenewed = 0
        self._view: View | None = None

    @property
    def domains(self) -> tuple[int, ...]:
        """The domains met so far, without the source."""
        return tuple(self.ids[1:])

    def view(self) -> View:
        """A frozen picture of what is known now."""
        if self._view is None:
            means = self.sums / self.counts[:, None]
            self._view = View(
                tuple(self.ids),
                means,
                self._spreads(means),
                self.counts.clone(),
                self.mix.clone(),
            )
        return self._view

    def latest(self, domain: int, count: int) -> Tensor:
        """(n, d) the placed descriptors of a domain's latest images, at most so many."""
        return self.recent[(self.owner == domain).nonzero()[-count:, 0]]

    def _spreads(self, means: Tensor) -> Tensor:
        """Each domain's mean squared distance on recent images, held near its last by `_DOUBT`."""
        count = torch.full((len(self.ids),), _DOUBT, dtype=torch.double)
        total = count * self.spreads
        if len(self.recent):
            row = self._rows(self.owner)
            apart = torch.linalg.vector_norm(self.recent - means.float()[row], dim=1).square()
            off = (apart.double() / means.shape[1]).clamp_max(2 * FAR)
            total.index_add_(0, row, off)
            count.index_add_(0, row, torch.ones_like(off))
        spreads = total / count
        spreads[0] = spreads[0].clamp_max(1.0)  # the source is what the clean images were
        return spreads

    def _rows(self, owners: Tensor) -> Tensor:
        rows = torch.zeros(max(self.ids) + 1, dtype=torch.long)
        rows[torch.tensor(self.ids)] = torch.arange(len(self.ids))
        return rows[owners]

    def _add(self, placed: Tensor, ids: Tensor) -> None:
        self.recent = torch.cat([self.recent, placed.float()])
        self.owner = torch.cat([self.owner, ids])
        for domain in ids.unique().tolist():
            if domain != SOURCE:
                row = self.ids.index(domain)
                self.sums[row] += placed[ids == domain].sum(0)
                self.counts[row] += int((ids == domain).sum())

    def _due(self, placed: Tensor, ids: Tensor) -> list[int]:
        """Domains to be tested for two: those that moved, and those with enough new images.

        Every test may find by chance what is not there, and takes time, so an old domain whose
        images are as ever is tested seldom.
        """
        view, due = self.view(), []
        for domain in ids.unique().tolist():
            row, count = self.ids.index(domain), int((ids == domain).sum())
            self.untested[row] += count
            latest = (self.owner == domain).nonzero()[-max(count, TEST) :, 0]
            rows = self.recent[latest]
            mixed = 1 - float(self.mix[row]) if len(self.ids) > 2 else 1.0  # of one it says nothing
            old = 0.0 if domain == SOURCE else float(self.counts[row]) / GROWTH**mixed
            some = float(self.untested[row])
            if some >= min(max(TEST, old), SELDOM) or (
                some >= _SOON and elsewhere(rows, view.means[row].float())
            ):
                self.untested[row] = 0
                due.append(domain)
        return due

    def _move(self, members: Tensor, source: int, into: int) -> None:
        """Let recent images belong to another domain, which may be a new one."""
        if into not in self.ids:
            self.ids.append(into)
            self.sums = torch.cat([self.sums, torch.zeros_like(self.sums[:1])])
            self.counts = torch.cat([self.counts, self.counts.new_zeros(1)])
            self.mix = torch.cat([self.mix, self.mix.new_zeros(1)])
            self.spreads = torch.cat([self.spreads, self.spreads.new_ones(1)])
            self.untested = torch.cat([self.untested, self.untested.new_zeros(1)])
        total, count = self.recent[members].double().sum(0), len(members)
        here, there = self.ids.index(source), self.ids.index(into)
        share = self.mix[here] * count / max(int((self.owner == source).sum()), 1)
        self.mix[here] -= share
        self.mix[there] += share
        if source != SOURCE:
            self.sums[here] -= total
            self.counts[here] = (self.counts[here] - count).clamp_min(1.0)
        if into != SOURCE:
            self.sums[there] += total
            self.counts[there] += count
        self.owner[members] = into
        self._view = None

    def _renew(self) -> list[tuple[int, int]]:
        """Settle anew which domain each recent image belongs to."""
        self.unrenewed = 0
        self.spreads = self.view().spreads.clone()
        ids = self.view().near(self.owner.unique()).decide(self.recent.double()).ids
        homes = {d: int(ids[self.owner == d].mode().values) for d in self.owner.unique().tolist()}
        for domain in sorted(homes, key=self.ids.index):
            moved = (self.owner == domain) & (ids != domain)
            for into in ids[moved].unique().tolist():
                self._move((moved & (ids == into)).nonzero()[:, 0], domain, into)
        merged = []
        for domain, into in homes.items():
            few = float(self.counts[self.ids.index(domain)]) <= 1
            if domain != SOURCE and few and not bool((self.owner == domain).any()):
                # It has lost its images, and would stand where the source does.
                merged.append(self._merge_empty(domain, into))
        return merged

    def _merge_empty(self, domain: int, into: int) -> tuple[int, int]:
        row = self.ids.index(domain)
        self.sums[row], self.counts[row] = 0, 0
        return self._merge(domain, into)

    def _merge(self, gone: int, into: int) -> tuple[int, int]:
        here, there = self.ids.index(gone), self.ids.index(into)
        self.sums[there] += self.sums[here]
        self.counts[there] += self.counts[here]
        self.mix[there] += self.mix[here]
        self.owner[self.owner == gone] = into
        rest = [row for row in range(len(self.ids)) if row != here]
        self.sums, self.counts = self.sums[rest], self.counts[rest]
        self.mix, self.spreads = self.mix[rest], self.spreads[rest]
        self.untested = self.untested[rest]
        del self.ids[here]
        self._view = None
        return gone, into
