"""Which domain each image belongs to: the source, one of those met before, or none of them yet.

Descriptors are seen in coordinates (`ops.whitening`) where images of one domain lie around their
mean with spread one. An image goes to the domain under which it is likeliest, given
what has been coming lately; domain 0 is the source, whose mean never moves. Domains are founded by
splitting: where the recent images of a domain are two groups far apart, the group that the domain's
mean does not explain becomes a domain of its own. So a block stream, a shuffled one and single
images are one rule, and nothing is founded by an image alone.

`decide` reads a frozen `View`; `observe` is the one place that changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.domains.distances import between, elsewhere, squared
from ostinato.domains.merging import likest, nearest
from ostinato.domains.routing_state import NAMES, expected_routing, read_routing
from ostinato.domains.splitting import LATEST, fresh, split_off
from ostinato.domains.traffic import alone, later, staying
from ostinato.domains.verdict import FAR, SOURCE, Change, View, blended
from ostinato.ops.expect import Expected
from ostinato.ops.snapshot import State
from ostinato.ops.whitening import Content

DOUBT = 10.0
"""Images that a domain's own spread is held near the usual one by."""
RENEW = 128
"""Images after which it is settled anew which domain each recent one belongs to."""

PRESENT = 50
"""Latest images that may join a new domain whoever they belong to."""
MERGE = 0.62
"""Share of `apart` below which two domains are one."""
KNOWN = 0.4
"""Share of `apart` below which a new group is a domain that there is."""
NEAR, SEEN = 4.0, 128
"""Domains beyond so many times `apart` are not compared, those nearer by so many images each."""
TEST, SELDOM, GROWTH = 8, 512, 3.0
"""A domain is tested for two after so many images: at first, at most, and as a part of its own."""
SOON = 2
"""So many will do where its latest images lie elsewhere."""
AGAIN = 512
"""Latest images among which one that comes again is known."""


class Router:
    """Domains of single images, found and kept online.

    Args:
        content: what clean descriptors are like.
        enough: images of one piece that found a domain.
        apart: deviations between two groups that make them two domains; half of it merges them.
        limit: domains at most, the source not counted; at the limit the nearest two merge.
        memory: latest images whose descriptors are kept.

    >>> clean = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> router = Router(Content.of(clean), enough=8)
    >>> router.observe(clean[:16]).founded, router.observe(clean[16:40] + 2).founded
    ({}, {1: 0})
    >>> router.view().decide(router.content.place(clean[40:43] + 2)).ids.tolist()
    [1, 1, 1]
    """

    def __init__(
        self,
        content: Content,
        *,
        enough: int = 20,
        apart: float = 5.5,
        limit: int = 32,
        memory: int = 1024,
    ) -> None:
        self.content, self.enough, self.apart = content, enough, apart
        self.limit, self.memory = limit, memory
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

    # Reading.

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

    def _spreads(self, means: Tensor) -> Tensor:
        """Each domain's mean squared distance on recent images, held near its last by `DOUBT`."""
        count = torch.full((len(self.ids),), DOUBT, dtype=torch.double)
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

    def latest(self, domain: int, count: int) -> Tensor:
        """(n, d) the placed descriptors of a domain's latest images, at most so many."""
        return self.recent[(self.owner == domain).nonzero()[-count:, 0]]

    # Changing.

    def observe(self, descriptors: Tensor) -> Change:
        """Take in a batch: traffic, means, new domains, merged ones."""
        return self.take(self.content.place(descriptors.cpu()))

    def take(self, placed: Tensor) -> Change:
        """The same for descriptors that are in content's deviations already, on the host."""
        verdict = self.view().decide(placed)
        new = fresh(placed, self.recent[-AGAIN:])
        self.mix = blended(self.mix, verdict.posterior)
        self._view = None
        start = len(self.recent)
        self._add(placed[new], verdict.ids[new])
        founded = self._found(self._due(placed[new], verdict.ids[new]))
        self.unrenewed += int(new.sum())
        merged: list[tuple[int, int]] = []
        if self.unrenewed >= RENEW and len(self.ids) > 1:
            merged = self._renew() + self._merge_near()
        while len(self.ids) - 1 > self.limit:
            merged.append(self._merge(*self._nearest()))
        if founded:  # what is known now decides of the whole batch
            verdict = self.view().decide(placed)
        owners = verdict.owners()
        for place, owner in zip(new.nonzero()[:, 0].tolist(), self.owner[start:], strict=True):
            if int(owner) in founded or owners[place] not in self.ids:
                owners[place] = int(owner)
        owners = [owner if owner in self.ids else SOURCE for owner in owners]
        self._trim()
        alive = {domain: parent for domain, parent in founded.items() if domain in self.ids}
        far = float(verdict.distance.mean())
        return Change(owners, new.tolist(), alive, tuple(merged), far)

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
            moved = elsewhere(rows, view.means[row].float(), float(view.spreads[row]))
            old = 0.0 if domain == SOURCE else float(self.counts[row]) / GROWTH
            wait = SOON if moved else min(max(TEST, old), SELDOM)
            if self.untested[row] >= wait:
                self.untested[row] = 0
                due.append(domain)
        return due

    def _found(self, candidates: Sequence[int]) -> dict[int, int]:
        founded: dict[int, int] = {}
        queue = list(candidates)
        while queue:
            domain = queue.pop(0)
            members, group = self._split(domain)
            if group is None:
                continue
            chosen = members[group]
            if self._is_known(self.recent[chosen], domain):
                continue
            for owner in self.owner[chosen].unique().tolist():
                self._move(chosen[self.owner[chosen] == owner], owner, self.next_id)
            founded[self.next_id] = domain
            queue += [domain, self.next_id]
            self.next_id += 1
            if len(founded) >= self.limit:
                break
        return founded

    def _split(self, domain: int) -> tuple[Tensor, Tensor | None]:
        """Recent images that could leave a domain, and which of them do; the latest join in."""
        mine = self.owner == domain
        members = mine.clone()
        members[-PRESENT:] = True
        chosen = members.nonzero()[:, 0][-LATEST:]
        view, row, rows = self.view(), self.ids.index(domain), self.recent[chosen]
        others = squared(rows, view.means.float())
        others[:, row] = float("inf")
        group = split_off(
            rows,
            view.means[row].float(),
            self.enough,
            self.apart,
            fixed=domain == SOURCE,
            mine=mine[chosen],
            others=others.amin(1),
            alone=alone(mine),
            stay=staying(self.owner, self.counts),
            past=max(int(self.counts[row]) - int(mine[chosen].sum()), 0),
        )
        if group is not None and domain != SOURCE:
            group = later(group, mine[chosen], self.enough)
        return chosen, group

    def _is_known(self, group: Tensor, domain: int) -> bool:
        """Whether a group split off a domain lies by another one: they would merge at once."""
        view, mean = self.view(), group.mean(0)
        chance = (1 / view.counts + 1 / len(group)) * len(mean)
        away = (view.means.float() - mean).square().sum(1) - chance.float()
        away[[0, self.ids.index(domain)]] = float("inf")
        row = int(away.argmin())
        recent = self.recent[self.owner == self.ids[row]][-SEEN:]
        if not math.isfinite(away[row]) or len(recent) < 2:
            return False
        gap = between(view.means[row].float() - mean, group, recent, float(away[row]))
        return gap < KNOWN * self.apart

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
        ids = self.view().decide(self.recent.double()).ids
        homes = {d: int(ids[self.owner == d].mode().values) for d in self.owner.unique().tolist()}
        for domain in self.ids[:]:
            moved = (self.owner == domain) & (ids != domain)
            for into in ids[moved].unique().tolist():
                self._move((moved & (ids == into)).nonzero()[:, 0], domain, into)
        return [self._merge_empty(d, into) for d, into in homes.items() if self._is_empty(d)]

    def _is_empty(self, domain: int) -> bool:
        """Whether a domain has lost its images: it would stand where the source does."""
        few = float(self.counts[self.ids.index(domain)]) <= 1
        return domain != SOURCE and few and not bool((self.owner == domain).any())

    def _merge_empty(self, domain: int, into: int) -> tuple[int, int]:
        row = self.ids.index(domain)
        self.sums[row], self.counts[row] = 0, 0
        return self._merge(domain, into)

    def _merge_near(self) -> list[tuple[int, int]]:
        merged = []
        while len(self.ids) > 2:
            gone, into, gap = self._likest()
            if gap >= MERGE * self.apart:
                break
            merged.append(self._merge(gone, into))
        return merged

    def _likest(self) -> tuple[int, int, float]:
        """The two domains, younger and older, that merging would start with, and their gap."""
        view, rows = self.view(), self._rows(self.owner)
        recent = [self.recent[rows == row][-SEEN:] for row in range(len(self.ids))]
        younger, older, gap = likest(view, recent, NEAR * self.apart, MERGE * self.apart)
        return self.ids[younger], self.ids[older], gap

    def _nearest(self) -> tuple[int, int]:
        """The two nearest domains as (younger, older)."""
        younger, older = nearest(self.view())
        return self.ids[younger], self.ids[older]

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

    def remove(self, domain: int) -> None:
        """Forget a domain; its recent images are the source's again."""
        self._merge(domain, SOURCE)
        self.sums[0] = 0
        self.counts[0] = float(self.content.images)

    def _trim(self) -> None:
        self.recent, self.owner = self.recent[-self.memory :], self.owner[-self.memory :]

    # State.

    def export_state(self) -> State:
        """Everything but the clean content, which comes with the statistics."""
        tensors = {name: getattr(self, name) for name in NAMES}
        values = {"ids": list(self.ids), "next_id": self.next_id, "unrenewed": self.unrenewed}
        return State(tensors, values)

    def expected(self, state: State) -> Expected:
        """See `expected_routing`."""
        return expected_routing(state, {name: getattr(self, name).dtype for name in NAMES})

    def import_state(self, state: State) -> None:
        """Become what `export_state` described; nothing changes where it does not fit."""
        read = read_routing(state, len(self.content.mean))
        self.ids, self.next_id, self.unrenewed = read.ids, read.next_id, read.unrenewed
        for name in NAMES:
            setattr(self, name, read.tensors[name])
        self._view = None
