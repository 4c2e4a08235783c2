"""One domain for each image, for batches that mix domains.

A known domain takes an image by the Gaussian posterior, log-determinant included. An image that
fits none is held for a while; held images found a domain once a group among them is large enough
(the evidence), of one piece, and farther from every domain than `separation`. Images are held for
`HOLD`·evidence images only, so a domain's own outliers, some 5 % of it, never gather to a group.

Single images vary with what they show about as much as with their domain, so only domains well
apart can be told apart this way: where batches are known to hold one domain, route="batch" is far
more exact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from ostinato.domains.gaussian import distance, log_density
from ostinato.domains.grouping import contrast, groups
from ostinato.domains.settings import DiscriminatorConfig, Evidence
from ostinato.domains.store import DomainStore
from ostinato.ops.snapshot import State
from ostinato.types import Decision

HOLD = 8
START = 2
FIT = 0.75


@dataclass
class _Plan:
    """What a batch leads to: where each image goes, which domains open, and who waits."""

    owners: list[int]
    fits: list[bool]
    founded: list[tuple[int, Tensor]]
    held: Tensor
    ages: list[int]
    started: bool


class SampleRouter:
    """Routes images one by one; keeps those that fit no domain.

    Until 2·evidence images have come there is one provisional domain; then the groups among them
    found the first ones.
    """

    def __init__(self, config: DiscriminatorConfig) -> None:
        self.config = config
        self.held: Tensor | None = None
        self.ages: list[int] = []
        self.provisional: int | None = None
        # The plan of the latest decision: worked out once, then carried out by `update`.
        self._planned: tuple[Tensor, _Plan] | None = None

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """A domain for every image, and the majority's for the batch."""
        z = evidence.descriptors
        plan = self._plan(domains, z)
        self._planned = (z, plan)
        distances = domains.distances(z).tolist() if domains.ids else []
        chosen, _ = Counter(plan.owners).most_common(1)[0]
        return Decision(
            domain=chosen,
            is_new=any(owner not in domains.ids for owner in plan.owners),
            distance=min(distances, default=float("inf")),
            threshold=self.config.threshold,
            distances=tuple(zip(domains.ids, distances, strict=True)),
            evidence=len(z),
            settled=plan.started,
            per_sample=tuple(plan.owners),
        )

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """Found what the plan founds, and let every domain learn the images that fit it."""
        z = evidence.descriptors
        known = self._planned is not None and self._planned[0] is z
        plan = self._planned[1] if known and self._planned else self._plan(domains, z)
        self._planned = None
        for domain, group in plan.founded:
            if domain in domains.ids:
                domains.restart(domain, group)
            elif domain >= domains.next_id:
                domains.open(domain, group)
            else:  # retired since the decision
                continue
            if plan.started:
                domains.absorb(domain, group)
        fits = torch.tensor(plan.fits, device=z.device)
        owners = torch.tensor(plan.owners, device=z.device)
        for domain in sorted(set(plan.owners)):
            own = z[fits & (owners == domain)]
            # A domain may have been retired since the decision.
            if len(own) and domain in domains.ids:
                domains.absorb(domain, own)
        self.held, self.ages = plan.held, plan.ages
        self.provisional = None if plan.started else plan.owners[0]

    def forget(self, domain: int, into: int | None = None) -> None:
        """A domain was removed, or merged into another."""
        if self.provisional == domain:
            self.provisional, self.held, self.ages = None, None, []

    # -- planning ----------------------------------------------------------------------------

    def _plan(self, domains: DomainStore, z: Tensor) -> _Plan:
        if self.provisional is not None or not domains.ids:
            return self._start(domains, z)
        owner, fits = self._match(domains, z)
        held, ages, source = self._hold(z, fits)
        founded: list[tuple[int, Tensor]] = []
        left = torch.ones(len(held), dtype=torch.bool, device=z.device)
        if len(held) >= self.config.evidence:
            for index in groups(held, self.config.separation, self._least()):
                if self._is_domain(domains, held[index], [group for _, group in founded]):
                    domain = domains.next_id + len(founded)
                    founded.append((domain, held[index]))
                    left[index] = False
                    for image in source[index].tolist():
                        if image >= 0:
                            owner[image] = domain
        ages = [age for age, stay in zip(ages, left.tolist(), strict=True) if stay]
        return _Plan(owner, fits, founded, held[left], ages, True)

    def _start(self, domains: DomainStore, z: Tensor) -> _Plan:
        """Before there are domains: gather, then let the largest group be the first."""
        first = domains.next_id if self.provisional is None else self.provisional
        pool = z if self.held is None else torch.cat([self.held.to(z.device), z])
        owners, fits = [first] * len(z), [False] * len(z)
        if len(pool) < START * self.config.evidence:
            return _Plan(owners, fits, [(first, pool)], pool, [0] * len(pool), False)
        found = groups(pool, self.config.separation, self._least())
        new = domains.next_id + (0 if self.provisional is not None else 1)
        founded = [(first, pool[found[0]])]
        left = torch.ones(len(pool), dtype=torch.bool, device=z.device)
        left[found[0]] = False
        for index in found[1:]:
            if len(index) >= self.config.evidence:
                domain = new + len(founded) - 1
                founded.append((domain, pool[index]))
                left[index] = False
                for image in (index - (len(pool) - len(z))).tolist():
                    if image >= 0:
                        owners[image] = domain
        return _Plan(owners, fits, founded, pool[left], [0] * int(left.sum()), True)

    def _match(self, domains: DomainStore, z: Tensor) -> tuple[list[int], list[bool]]:
        """The likeliest domain of each image, and whether the image fits it."""
        best = log_density(z, domains.mean, domains.scale).argmax(1)
        apart = distance(z, domains.mean, domains.scale).gather(1, best[:, None])[:, 0]
        images = torch.tensor(domains.images, dtype=z.dtype, device=z.device)
        excess = apart - 1 - 1 / images[best]
        owners = [domains.ids[k] for k in best.tolist()]
        return owners, (excess <= FIT * self.config.separation).tolist()

    def _hold(self, z: Tensor, fits: list[bool]) -> tuple[Tensor, list[int], Tensor]:
        """Held images with this batch's misfits: descriptors, ages, and places in the batch."""
        misfits = torch.tensor([i for i, fit in enumerate(fits) if not fit], dtype=torch.long)
        old = self.held.to(z.device) if self.held is not None else z[:0]
        ages = [age + len(z) for age in self.ages]
        young = [i for i, age in enumerate(ages) if age < HOLD * self.config.evidence]
        held = torch.cat([old[young], z[misfits.to(z.device)]])
        source = torch.cat([torch.full((len(young),), -1), misfits])
        return held, [ages[i] for i in young] + [0] * len(misfits), source.to(z.device)

    def _is_domain(self, domains: DomainStore, group: Tensor, others: list[Tensor]) -> bool:
        if len(group) < self.config.evidence:
            return False
        limit = self.config.separation
        if float(domains.distances(group, corrected=True).min()) <= limit:
            return False
        return all(float(contrast(group, other)) > limit for other in others)

    def _least(self) -> int:
        return max(2, self.config.evidence // 3)

    # -- state -------------------------------------------------------------------------------

    def export_state(self) -> State:
        """The held images with their ages, and whether the first domain is provisional."""
        tensors = {} if self.held is None else {"held": self.held}
        return State(tensors, {"ages": list(self.ages), "provisional": self.provisional})

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        held = state.tensors.get("held")
        self.held = None if held is None else held.clone()
        self.ages = list(state.values["ages"])
        self.provisional = state.values["provisional"]
        self._planned = None
