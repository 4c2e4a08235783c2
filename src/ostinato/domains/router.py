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

from torch import Tensor

from ostinato.domains._distances import between
from ostinato.domains._merging import likest, nearest
from ostinato.domains._routing_state import NAMES, PER_DOMAIN, expected_routing, read_routing
from ostinato.domains._splitting import LATEST, split_off
from ostinato.domains._traffic import alone, later, staying
from ostinato.domains.verdict import SOURCE, Change, Known, blended, fresh, squared
from ostinato.ops.expect import Expected
from ostinato.ops.snapshot import State
from ostinato.ops.whitening import Content

_RENEW = 128
"""Images after which it is settled anew which domain each recent one belongs to."""

_PRESENT = 50
"""Latest images that may join a new domain whoever they belong to."""
_MERGE = 0.62
"""Share of `apart` below which two domains are one."""
_KNOWN = 0.4
"""Share of `apart` below which a new group is a domain that there is."""
NEAR, SEEN = 4.0, 128
"""Domains beyond so many times `apart` are not compared, those nearer by so many images each."""
_AGAIN = 512
"""Latest images among which one that comes again is known."""


class Router(Known):
    """Domains of single images, found and kept online.

    Args:
        content: what clean descriptors are like.
        enough: images of one piece that found a domain.
        apart: deviations between two groups that make them two domains; half of it merges them.
        limit: domains at most, the source not counted; at the limit the nearest two merge.
        memory: latest images whose descriptors are kept.

    >>> import torch
    >>> clean = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> router = Router(Content.of(clean), enough=8)
    >>> router.observe(clean[:16]).founded, router.observe(clean[16:40] + 2).founded
    ({}, {1: 0})
    >>> router.view().decide(router.content.place(clean[40:43] + 2)).ids.tolist()
    [1, 1, 1]
    """

    per_domain = PER_DOMAIN
    """Tensors of a state that have a row for every domain."""

    def __init__(
        self,
        content: Content,
        *,
        enough: int = 20,
        apart: float = 5.5,
        limit: int = 32,
        memory: int = 1024,
    ) -> None:
        self.enough, self.apart, self.limit, self.memory = enough, apart, limit, memory
        super().__init__(content)

    def observe(self, descriptors: Tensor) -> Change:
        """Take in a batch: traffic, means, new domains, merged ones."""
        return self.take(self.content.place(descriptors.cpu()))

    def take(self, placed: Tensor) -> Change:
        """The same for descriptors that are in content's deviations already, on the host."""
        verdict = self.view().decide(placed)
        new = fresh(placed, self.recent[-_AGAIN:])
        self.mix = blended(self.mix, verdict.posterior)
        self._view = None
        start = len(self.recent)
        self._add(placed[new], verdict.ids[new])
        due = self._due(placed[new], verdict.ids[new])
        founded = self._found(due) if due else {}
        self.unrenewed += int(new.sum())
        merged: list[tuple[int, int]] = []
        if self.unrenewed >= _RENEW and len(self.ids) > 1:
            merged = self._renew()
            if len(self.ids) > 2:
                merged += self._merge_near()
        while len(self.ids) - 1 > self.limit:
            merged.append(self._merge(*self._nearest()))
        if founded:  # what is known now decides of the whole batch
            verdict = self.view().decide(placed)
        owners = verdict.owners()
        for place, owner in zip(new.nonzero()[:, 0].tolist(), self.owner[start:], strict=True):
            if int(owner) in founded or owners[place] not in self.ids:
                owners[place] = int(owner)
        owners = [owner if owner in self.ids else SOURCE for owner in owners]
        self.recent, self.owner = self.recent[-self.memory :], self.owner[-self.memory :]
        alive = {domain: parent for domain, parent in founded.items() if domain in self.ids}
        far = float(verdict.distance.mean())
        return Change(owners, new.tolist(), alive, tuple(merged), far)

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
        members[-_PRESENT:] = True
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
        return gap < _KNOWN * self.apart

    def _merge_near(self) -> list[tuple[int, int]]:
        merged = []
        while len(self.ids) > 2:
            gone, into, gap = self._likest()
            if gap >= _MERGE * self.apart:
                break
            merged.append(self._merge(gone, into))
        return merged

    def _likest(self) -> tuple[int, int, float]:
        """The two domains, younger and older, that merging would start with, and their gap."""
        view, rows = self.view(), self._rows(self.owner)
        recent = [self.recent[:0]] * len(self.ids)
        for row in rows.unique().tolist():
            recent[row] = self.recent[rows == row][-SEEN:]
        younger, older, gap = likest(view, recent, NEAR * self.apart, _MERGE * self.apart)
        return self.ids[younger], self.ids[older], gap

    def _nearest(self) -> tuple[int, int]:
        """The two nearest domains as (younger, older)."""
        younger, older = nearest(self.view())
        return self.ids[younger], self.ids[older]

    def remove(self, domain: int) -> None:
        """Forget a domain; its recent images are the source's again."""
        self._merge(domain, SOURCE)
        self.sums[0] = 0
        self.counts[0] = float(self.content.images)

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
