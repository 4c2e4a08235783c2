"""Making a domain's maps, and judging whether and how far they are to act: its trust."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.domains.router import Router
from ostinato.domains.verdict import LEAST, Change, elsewhere
from ostinato.experts.maps import block_map
from ostinato.experts.routed import EVERY, BlockMap, Branch, Expert, Hooks, Pass
from ostinato.methods.base import Input, Method
from ostinato.methods.ostinato._bank import Domain, Version
from ostinato.methods.ostinato._making import Made
from ostinato.methods.ostinato._shrunk import halves_of, shrunk
from ostinato.methods.ostinato._state import DomainBank
from ostinato.methods.ostinato._timing import NEW
from ostinato.methods.ostinato._trust import doubt, is_varied, likely
from ostinato.methods.ostinato.settings import OstinatoConfig
from ostinato.ops.losses import distribution_entropy
from ostinato.ops.statistics import SourceStatistics

TRUSTED = 0.0
"""Doubt below which a map acts."""
_JUDGED = NEW
"""Latest images that maps are judged on."""

TENS, SCORE = 10, 20
_Tried = tuple[float, float, tuple[BlockMap, ...], Tensor]
"""Doubt, share, maps, logits."""


def _whole(count: int) -> int:
    """Of so many images, how many make maps: few different numbers, so that passes are alike.

    A pass over a number of images that has come before can be captured.

    >>> [_whole(count) for count in (8, 19, 27, 63, 64, 100, 256)]
    [8, 19, 20, 60, 64, 64, 256]
    """
    step = NEW if count >= NEW else TENS
    return max(count - count % step, min(count, SCORE))


class MapMaker(Method):
    """The part of the method that makes maps from a domain's latest images."""

    config: OstinatoConfig
    hooks: Hooks
    statistics: SourceStatistics
    version: Version
    router: Router
    bank: DomainBank
    events: list[str]

    def _window(self, number: int) -> int:
        """How many of a domain's latest images its maps are to be made from now; 0: not now.

        Besides the counts at which they are due, maps are made anew where the images that came
        since lie elsewhere than those that they were made from; then of these images alone.
        """
        domain, enough = self.bank.domains[number], self.config.enough
        if self._is_due(domain):
            return _whole(min(domain.window(enough), len(domain.recent)))
        fresh = domain.images - domain.made_at
        if not domain.maps or fresh < LEAST or not len(domain.place):
            return 0
        latest = self.router.latest(number, min(fresh, enough))
        if not elsewhere(latest, domain.place, domain.place_of):
            return 0
        self.events.append(f"images of domain {number} moved")
        return _whole(min(max(min(fresh, NEW), enough), len(domain.recent)))

    def _is_due(self, domain: Domain) -> bool:
        """Whether a domain has the images that its maps are to be made from next."""
        enough = min(self.config.enough, self.config.buffer)
        return domain.images >= domain.due and len(domain.recent) >= enough

    def _latest(self, number: int, window: int, pixels: Tensor, change: Change) -> Tensor:
        """A domain's latest images, those of the batch as they came if they came in their size."""
        kept = self.bank.domains[number].recent[-window:]
        if kept[-1].shape != pixels.shape[1:]:
            return torch.stack(kept).float() / 255
        mine = zip(change.owners, change.known, strict=True)
        places = [row for row, (owner, new) in enumerate(mine) if owner == number and new]
        fresh = pixels if len(places) == len(pixels) else pixels[places]
        fresh = fresh[-len(kept) :]
        older = [image.float() / 255 for image in kept[: len(kept) - len(fresh)]]
        return torch.cat([torch.stack(older), fresh]) if older else fresh

    def _make_maps(
        self, domain: Domain, images: Tensor, classes: Tensor | None, source: Tensor | None = None
    ) -> Tensor:
        """Make a domain's maps anew; the surest answers decide whether and how far they act.

        Judged without what was learned, since learning makes answers sure whether they are right
        or not. The source wins unless something is surer.

        Args:
            domain: the domain.
            images: its latest ones, pixels in [0, 1].
            classes: the only classes there are, if not all.
            source: the source model's logits for the images, where they are known.

        Returns:
            Logits of the last of these images, by what answers the domain from now on.
        """
        judged = Input(images[-_JUDGED:], classes)
        if source is None:
            source, _ = self._passed(judged, None)
        source = source[-len(judged) :]
        soon = not domain.lasts(self.config.enough)
        tried = self._tried(
            judged, source, domain.shares_to_try(self.config), domain.share > 0, soon
        )
        if self.config.trust:
            tried.insert(0, (TRUSTED, 0.0, (), source))
        _, domain.share, domain.maps, logits = min(tried, key=lambda one: one[0])
        answers = likely(logits)
        domain.variety = float(distribution_entropy(answers[-self.config.micro :].mean(0)))
        domain.unsure = float(torch.special.entr(answers).sum(1).mean())
        learned = () if domain.branches is None else domain.branches.branches()
        if domain.maps and (learned or len(images) > len(judged)):
            # From all images, and with what was learned: moments belong to what feeds a block.
            whole = Input(images, classes)
            logits, domain.maps = self._passed(whole, Expert((), learned), domain.share)
        domain.made(self.config.enough)
        return logits

    def _tried(
        self, judged: Input, source: Tensor, shares: Sequence[float], trusted: bool, soon: bool
    ) -> list[_Tried]:
        """What each share comes to: its doubt, itself, its maps and the answers with them.

        Args:
            judged: images of a domain.
            source: the source model's logits for them.
            shares: those to try.
            trusted: whether the domain's maps act already.
            soon: whether the first share that may act ends it: soon is better than best.
        """
        tried: list[_Tried] = []
        varied = True  # as far as the middle share says
        for share in shares:
            logits, maps = self._passed(judged, Expert(), share)
            spread = is_varied(logits) and (varied or share <= self.config.middle)
            varied = spread if share == self.config.middle else varied
            tried.append((doubt(logits, source, trusted, spread), share, maps, logits))
            if soon and tried[-1][0] < TRUSTED:
                break
        return tried

    def _passed(
        self,
        batch: Input,
        expert: Expert | None,
        share: float | Tensor | None = None,
        shared: tuple[Branch, ...] | None = None,
    ) -> Made:
        """Logits; where a share is given, with maps that are made on the way, and these maps.

        Where the expert has learned branches the shared ones act, too: the present version's,
        unless given.
        """
        made: list[BlockMap] = []

        def make(number: int, tokens: Tensor) -> BlockMap:
            count, group = len(batch), self.processes
            own = group.own(tokens, count)
            source, here = self.statistics.tokens[EVERY * number], group.counts(count)[group.rank]
            halves = halves_of(own, self.hooks.prefix, group.start(count), here, group.total)
            found = shrunk(source, halves, count)
            made.append(block_map(source, found, 0.0 if share is None else share))
            return made[-1]

        owners = [None if expert is None else 0] * self.processes.taken(len(batch))
        shared = self._shared_beside(expert) if shared is None else shared
        now = Pass(owners, [expert or Expert()], shared, None if share is None else make)
        with torch.no_grad(), self.autocast(), self.hooks.open(now):
            logits = self.logits(batch).detach()
        return logits, tuple(made)

    def _shared_beside(self, expert: Expert | None) -> tuple[Branch, ...]:
        """The shared branches that act beside an expert."""
        return self.version.shared if expert is not None and expert.branches else ()
