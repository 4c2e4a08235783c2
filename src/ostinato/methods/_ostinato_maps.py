"""Making a domain's maps, and judging whether and how far they are to act: its trust."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ostinato.experts.routed import Expert, Hooks, Pass
from ostinato.methods._ostinato_parts import Domain, OstinatoConfig, Version
from ostinato.methods.base import Input, Method
from ostinato.ops.losses import distribution_entropy, flatten_logits
from ostinato.ops.moments import BlockMap, block_map, token_moments
from ostinato.ops.statistics import SourceStatistics

TRUSTED = 0.0
"""Doubt below which a map acts: it has to be surer than the source."""
CHANCE = 0.5
"""Standard errors of that difference that count against a map."""
TRIALS = 150
"""Images up to which every share is tried whenever maps are made."""


class MapMaker(Method):
    """The part of the method that makes maps from a domain's latest images."""

    config: OstinatoConfig
    hooks: Hooks
    statistics: SourceStatistics
    version: Version
    events: list[str]

    def _make_maps(self, domain: Domain, classes: Tensor | None) -> None:
        """Make a domain's maps anew; the surest answers decide whether and how far they act.

        Judged without what was learned, since learning makes answers sure whether they are right
        or not. The source wins unless something is surer.
        """
        batch = Input(torch.stack(domain.recent).float() / 255, classes)
        source = self._probabilities(batch, None)
        early = domain.images < TRIALS or domain.share == 0
        tried: list[tuple[float, float, tuple[BlockMap, ...], Tensor]] = []
        if self.config.trust:
            tried.append((TRUSTED, 0.0, (), source))
        if domain.maps:
            answers = self._probabilities(batch, Expert(domain.maps))
            tried.append((doubt(answers, source), domain.share, domain.maps, answers))
        for share in self.config.shares if early else (domain.share,):
            made: list[BlockMap] = []
            answers = self._probabilities(batch, Expert(), made, share)
            tried.append((doubt(answers, source), share, tuple(made), answers))
        _, domain.share, domain.maps, answers = min(tried, key=lambda one: one[0])
        domain.variety = float(distribution_entropy(answers[-self.config.micro :].mean(0)))
        domain.unsure = float(torch.special.entr(answers).sum(1).mean())
        if domain.branches is not None and domain.maps:
            made = []  # once more with what was learned: moments belong to what feeds a block
            self._probabilities(batch, Expert((), domain.branches.branches()), made, domain.share)
            domain.maps = tuple(made)
        domain.made()

    def _probabilities(
        self,
        batch: Input,
        expert: Expert | None,
        made: list[BlockMap] | None = None,
        share: float = 0.0,
    ) -> Tensor:
        """Answers as (items, C); where a list is given, maps are made on the way into it."""

        def make(number: int, tokens: Tensor) -> BlockMap:
            own = self.processes.own(tokens, len(batch))
            found = token_moments(own, self.hooks.prefix, self.processes.total)
            one = block_map(self.statistics.tokens[number], found, share)
            assert made is not None
            made.append(one)
            return one

        owners = [None if expert is None else 0] * self.processes.taken(len(batch))
        shared = self.version.shared if expert is not None and expert.branches else ()
        now = Pass(owners, [expert or Expert()], shared, None if made is None else make)
        with torch.no_grad(), self.autocast(), self.hooks.open(now):
            logits = self.logits(batch)
        return flatten_logits(logits).float().softmax(1)


def doubt(answers: Tensor, source: Tensor) -> float:
    """How much less sure answers are than the source's, in ln C; below `TRUSTED` they act.

    The mean difference of entropies, and half of what chance leaves open of it. On tuning images of
    two models, over corruptions, severities and mixes of classes, it went with the change of the
    error.

    Args:
        answers: (items, C) probabilities.
        source: the source's, of the same items.

    >>> sure, unsure = torch.tensor([[0.99, 0.01]] * 4), torch.tensor([[0.6, 0.4]] * 4)
    >>> doubt(sure, unsure) < 0 < doubt(unsure, sure)
    True
    """
    more = torch.special.entr(answers).sum(1) - torch.special.entr(source).sum(1)
    chance = more.std() / math.sqrt(max(len(more) - 1, 1))
    total = more.mean() + CHANCE * chance
    return float(total) / math.log(answers.shape[1])
