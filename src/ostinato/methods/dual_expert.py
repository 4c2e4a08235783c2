"""Dual expert: shared and domain self-adaptive experts with a frequency-aware discriminator.

The project's own method (AAAI 2026), with three presets:

- ``paper``: the paper's settings, read literally: entropy of confident predictions, plain
  distance rule, lr 1e-5;
- ``robust``: the same experts; domains are told apart by style, source statistics are aligned,
  entropy helps a classifier on a leash (it fades out wherever alignment gets worse), and experts
  learn less and less as they settle. The default where statistics are given;
- ``source-free``: no statistics; confident entropy at a small rate. The default without.

Weight decay is decoupled (AdamW) in `robust`: as an L2 term under Adam it shrinks the experts as
fast as they learn.

Every preset is watched: an expert whose predictions lose their diversity rolls back to its last
good snapshot, and only it and the shared branch are touched. A guard that never fires changes no
bit; `guard=False` takes it away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from ostinato.dense import refuse_windows
from ostinato.domains.discriminator import Evidence, make_discriminator
from ostinato.experts.pool import ExpertPool
from ostinato.methods._dual_expert_settings import PRESETS, DualExpertConfig
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.contract import Need
from ostinato.ops.features import FeatureTaps
from ostinato.ops.guard import CollapseGuard
from ostinato.ops.leash import Leash
from ostinato.ops.losses import confident_entropy, entropy_threshold, marginal
from ostinato.ops.optim import make_optimizer
from ostinato.ops.pace import Pace
from ostinato.ops.statistics import RunningMoments, alignment, check_fits, excess
from ostinato.registry import METHODS
from ostinato.types import Decision

SHARED = -1  # the shared branch, among the groups the guard watches


@METHODS.register("dual_expert")
class DualExpert(Method):
    """Predict, recognise or discover the domain, and adapt the shared and that domain's expert."""

    name = "dual_expert"
    Config = DualExpertConfig
    info = MethodInfo(
        title="Ostinato",
        paper="Zhao et al., AAAI 2026",
        trains="shared experts and the selected domain's experts",
        predicts="before",
        tasks=frozenset({"classification", "segmentation"}),
        differences=(
            "distance is a mean over dimensions with a sampling correction; kappa is relative to "
            "ln C; collapse guard; presets other than 'paper' change the objective"
        ),
    )
    presets = PRESETS

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """Statistics for alignment; domain labels for the oracle discriminator."""
        assert isinstance(config, DualExpertConfig)
        found: set[Need] = set()
        if config.alignment > 0:
            found.add("source statistics")
        if config.discriminator.kind == "oracle":
            found.add("domain labels")
        return frozenset(found)

    def configure(self) -> None:
        """Put experts into every FFN, and set up discriminator, moments and guard."""
        config = self.config
        if config.discriminator.route == "sample":
            refuse_windows(self.model.base, "route = 'sample' gives each image its own experts")
        self.taps = FeatureTaps(self.model.base)
        self.statistics = self.resources.statistics
        if self.statistics is not None:
            check_fits(self.statistics, len(self.taps.blocks))
            self.statistics = self.statistics.to(self.model.device)
        self.discriminator = self.track("discriminator", make_discriminator(config.discriminator))
        self.pool = self.track(
            "pool",
            ExpertPool(
                self.model.base,
                config.experts,
                optimizer=self._make_optimizer,
                targets=self.targets,
                seed=config.seed,
                max_domains=config.max_domains,
                retire=config.retire,
                offload=config.offload,
            ),
        )
        self.moments = self.track("moments", RunningMoments(config.fill))
        self.leash = self.track("leash", Leash(config.leash or 1.0))
        self.pace = self.track("pace", Pace(config.settle))
        self.guard = self.track("guard", CollapseGuard(config.guard_window, config.guard_tolerance))

    evidence: Evidence  # what the last decision rested on, for records and figures
    decision: Decision

    def route(self, batch: Input) -> Decision:
        """Describe the images, decide, and select (or add) the domain's experts."""
        self.evidence = self._describe(batch)
        decision = self.decision = self.discriminator.decide(self.evidence)
        wanted = decision.per_sample or (decision.domain,)
        for domain in dict.fromkeys(wanted):
            if domain not in self.pool.domains:
                self._add(domain)
        self.pool.select(self._present(decision))
        return decision

    def _present(self, decision: Decision) -> int | tuple[int, ...]:
        """What the batch is routed to; under a bound, one of its domains may retire another."""
        if decision.per_sample is None:
            return decision.domain
        left = Counter(d for d in decision.per_sample if d in self.pool.domains)
        usual = left.most_common(1)[0][0]
        return tuple(d if d in left else usual for d in decision.per_sample)

    def objective(self, batch: Input) -> Objective:
        """Per domain in the batch: alignment of its features, and entropy on a leash."""
        with self.taps:
            logits = self.logits(batch)
        losses: list[Tensor] = []
        used: list[Tensor] = []
        for domain, chosen, count in self._groups(len(batch)):
            mine = logits if chosen is None else logits[chosen]
            features = [f if chosen is None else f[chosen] for f in self.taps.features]
            loss, confident = self._loss(domain, mine, features)
            losses.append(loss * (count / len(batch)))
            used.append(confident)
        return Objective(logits, torch.stack(losses).sum(), torch.stack(used).sum())

    def _loss(self, domain: int, logits: Tensor, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """One domain's loss, and how many of its predictions take part."""
        config = self.config
        threshold = entropy_threshold(config.kappa, logits.shape[1], config.kappa_unit)
        entropy, confident = confident_entropy(logits, threshold, weighted=config.weighted)
        if config.alignment == 0:
            return config.entropy * entropy, confident
        dense = logits.ndim > 2
        distance = self._distance(domain, features, dense)
        weight: float | Tensor = config.pixel_entropy if dense else config.entropy
        if config.leash is not None:
            weight = weight * self.leash.allow(domain, distance)
        total = config.alignment * distance + weight * entropy
        return total, torch.full_like(confident, len(logits))

    def _distance(self, domain: int, features: list[Tensor], dense: bool) -> Tensor:
        """From the source's statistics.

        Batches of a classifier are drawn from all over; neighbouring frames show one street. What
        they have in common is then no sign of a shift as long as source images are found as far
        from their mean, and how little they differ among themselves says nothing.
        """
        assert self.statistics is not None
        moments = self.moments.blend(domain, features)
        if dense:
            return excess(moments, self.statistics, self.config.tolerance)
        return alignment(moments, self.statistics)

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step of the shared and of every selected domain's optimizer.

        A decision on thin evidence may be wrong, and then teaches the wrong expert: no step.
        """
        if not self.decision.settled:
            return False
        optimizers = self.pool.optimizers()
        groups = self._learning()
        self._set_rates(groups)
        moved = self.descend(objective, optimizers)
        if moved:
            for watched in groups:
                self.pace.count(watched)
        return moved

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Watch for collapse, then let the domain's Gaussian learn the batch."""
        assert decision is not None
        if self.config.guard and objective.loss is not None:
            self._watch(objective.logits)
        self.discriminator.update(self.evidence, decision)

    def abort(self, decision: Decision | None) -> None:
        """Take domains out again that a failed batch had brought."""
        for domain in set(self.pool.domains) - set(self.discriminator.domains):
            self.pool.remove(domain)

    def release(self) -> None:
        """Take the experts out of the model."""
        if hasattr(self, "pool"):
            self.pool.detach()

    def trained(self) -> int:
        """Shared branch and one domain."""
        return self.pool.count("shared") + self.pool.count("domain")

    def added(self, domains: int = 1) -> int:
        """Shared branch and all domains."""
        return self.pool.count("shared") + domains * self.pool.count("domain")

    def details(self) -> list[str]:
        """Branch sizes and domains so far."""
        total = sum(p.numel() for p in self._flags.parameters())
        shared, domain = self.pool.count("shared"), self.pool.count("domain")
        return [
            f"  shared branch    {shared / 1e6:.3f} M = {100 * shared / total:.2f} %",
            f"  each domain      {domain / 1e6:.3f} M = {100 * domain / total:.2f} %",
            f"  experts in       {len(self.pool.layers)} feed-forward layers",
            f"  domains so far   {len(self.pool.domains)}",
        ]

    def _make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        config = self.config
        return make_optimizer(
            config.optimizer,
            parameters,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
        )

    def _describe(self, batch: Input) -> Evidence:
        features = self._features(batch) if self.discriminator.needs_features else None
        return Evidence(
            descriptors=self.discriminator.describe(batch.pixels, features),
            confidence=lambda: self._confidence(batch),
            oracle=batch.oracle,
            image_size=(int(batch.pixels.shape[-2]), int(batch.pixels.shape[-1])),
        )

    def _features(self, batch: Input) -> Tensor:
        with torch.no_grad(), self.autocast(), self.pool.bypass(), self.taps:
            self.logits(batch)
        return self.taps.features[-1]

    def _confidence(self, batch: Input) -> float:
        with torch.no_grad(), self.autocast():
            return float(self.logits(batch).float().softmax(1).amax(1).mean())

    def _add(self, domain: int) -> None:
        retired = self.pool.add(domain, nearest=self.discriminator.nearest_pair)
        if retired is None:
            return
        if retired.into is None:
            self.discriminator.remove(retired.domain)
        else:
            self.discriminator.merge(retired.domain, retired.into)
        for kept in (self.moments, self.leash, self.guard, self.pace):
            kept.forget(retired.domain)
        self.events.append(f"retired domain {retired.domain}")

    def _groups(self, images: int) -> Iterator[tuple[int, Tensor | None, int]]:
        """Each selected domain, the images it has (None for all), and how many."""
        active = self.pool.active
        if isinstance(active, int):
            yield active, None, images
        elif active is not None:
            owner = torch.tensor(active, device=self.model.device)
            for domain in dict.fromkeys(active):
                chosen = (owner == domain).nonzero().squeeze(1)
                yield domain, chosen, len(chosen)

    def _learning(self) -> dict[int, Literal["shared"] | int]:
        """The groups that an update moves: what they are watched as, and what the pool calls it."""
        groups: dict[int, Literal["shared"] | int] = {SHARED: "shared"}
        return groups | {domain: domain for domain, _, _ in self._groups(1)}

    def _set_rates(self, groups: dict[int, Literal["shared"] | int]) -> None:
        """Experts slow down as they settle, and for good when they went bad."""
        for watched, group in groups.items():
            share = self.pace.share(watched)
            if self.config.guard:
                share *= self.config.guard_backoff ** self.guard.strikes(watched)
            if share < 1:
                self.pool.set_lr(self.config.lr * share, group)

    def _watch(self, logits: Tensor) -> None:
        for domain, chosen, count in self._groups(len(logits)):
            mean = marginal(logits if chosen is None else logits[chosen])
            verdict = self.guard.observe(domain, mean, count)
            if verdict == "bad":
                self.pool.rollback(domain)
                self.pool.rollback("shared")
                self.guard.strike(domain)
                self.guard.strike(SHARED)
                self.events.append(f"rolled back domain {domain} and the shared branch")
            elif verdict == "good" and self.counters["steps"] % self.config.snapshot_every == 0:
                self.pool.snapshot(domain)
                self.pool.snapshot("shared")
