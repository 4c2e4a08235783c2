"""Dual expert: shared and domain self-adaptive experts with a frequency-aware discriminator.

The paper's method (AAAI 2026), with two presets:

- ``paper``: the paper's settings, read literally: entropy of confident predictions, plain
  distance rule, lr 1e-5, no guard and no bound on domains, since the paper has neither;
- ``source-free``: the same objective at a somewhat larger rate, domains founded on enough images,
  at most 32 of them, of which the nearest two merge to make room, and a guard against collapse.
  The defaults, and what `adapt` takes without source statistics.

The guard rolls an expert whose predictions lose their diversity back to its last good snapshot,
and the shared branch to its own; from then on that domain alone learns more slowly. A guard that
never fires changes no bit; `guard=False` takes it away.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ostinato.domains.discriminator import Evidence, make_discriminator
from ostinato.errors import InputError
from ostinato.experts.pool import ExpertPool
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.contract import Need
from ostinato.methods.dual_expert._guard import CollapseGuard
from ostinato.methods.dual_expert._settings import PRESETS, DualExpertConfig
from ostinato.ops.borrowed import Borrowed
from ostinato.ops.colours import three_colours
from ostinato.ops.features import FeatureTaps
from ostinato.ops.losses import confident_entropy, entropy_threshold, marginal
from ostinato.ops.optim import make_optimizer
from ostinato.registry import METHODS
from ostinato.types import Decision


@METHODS.register("dual_expert")
class DualExpert(Method):
    """Predict, recognise or discover the domain, and adapt the shared and that domain's expert.

    The paper anneals its learning rate along a cosine. That takes the length of the stream, which
    nobody but the caller knows: with `total_steps` the rate is annealed, without it constant, in
    every preset. The benchmark's tables give `total_steps` to their `paper` rows.

    >>> import ostinato
    >>> from ostinato.checks import small_batches, small_model
    >>> adapted = ostinato.adapt(small_model(), preset="paper")
    >>> logits = adapted(small_batches(1)[0])
    >>> adapted.last.domain, adapted.last.is_new
    (0, True)
    """

    Config = DualExpertConfig
    info = MethodInfo(
        title="Ostinato",
        paper="Zhao et al., AAAI 2026",
        trains="shared experts and the selected domain's experts",
        differences=(
            "distance is a mean over dimensions; kappa is relative to ln C; 'source-free' adds a "
            "sampling correction, domains founded on 25 images, a bound of 32 on them and a "
            "collapse guard"
        ),
        tasks=frozenset({"classification", "segmentation"}),
        own=True,
        annealed=frozenset({"paper"}),
        colours={"paper": 3, "source-free": 2},
        draws=frozenset({"attention"}),
    )
    presets = PRESETS
    default_preset = "source-free"

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """Domain labels for the oracle discriminator, nothing otherwise."""
        assert isinstance(config, DualExpertConfig)
        oracle = config.discriminator.kind == "oracle"
        return frozenset({"domain labels"}) if oracle else frozenset()

    def configure(self) -> None:
        """Put experts into every FFN, and set up discriminator and guard."""
        config = self.config
        self.taps = FeatureTaps(self.model.base)
        self.discriminator = self.track("discriminator", make_discriminator(config.discriminator))
        self.pool = self.track(
            "pool",
            ExpertPool(
                self.model.base,
                config.experts,
                optimizer=Borrowed(self._make_optimizer),
                targets=self.targets,
                seed=config.seed,
                max_domains=config.max_domains,
                retire=config.retire,
                offload=config.offload,
            ),
        )
        self.guard = self.track("guard", CollapseGuard(config.guard_window, config.guard_tolerance))

    evidence: Evidence  # what the last decision rested on, for records and figures
    decision: Decision

    def route(self, batch: Input) -> Decision:
        """Describe the images, decide, and select (or add) the domain's experts."""
        self.evidence = self._describe(batch)
        decision = self.decision = self.discriminator.decide(self.evidence)
        if decision.domain not in self.pool.domains:
            self._add(decision.domain)
        self.pool.select(decision.domain)
        return decision

    def objective(self, batch: Input) -> Objective:
        """Entropy of the confident predictions."""
        config = self.config
        logits = self.logits(batch)
        threshold = entropy_threshold(config.kappa, logits.shape[1], config.kappa_unit)
        entropy, confident = confident_entropy(logits, threshold)
        return Objective(logits, entropy, confident)

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step of the shared and of the selected domain's optimizer.

        A decision on thin evidence may be wrong, and then teaches the wrong expert: no step.
        """
        if not self.decision.settled:
            return False
        domain, config = self.decision.domain, self.config
        strikes = self.guard.strikes(domain) if config.guard else 0
        if strikes:
            self.pool.set_lr(config.lr * config.guard_backoff**strikes, domain)
        return self.descend(objective, self.pool.optimizers())

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Watch for collapse, then let the domain's Gaussian learn the batch."""
        assert decision is not None
        if self.config.guard and objective.loss is not None:
            self._watch(decision.domain, objective.logits)
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
        """Branch sizes, domains so far, and what they take."""
        total = sum(p.numel() for p in self._flags.parameters())
        shared, domain = self.pool.count("shared"), self.pool.count("domain")
        bound, each = self.config.max_domains, self.bytes_each() / 2**20
        most = f" of at most {bound}" if bound else ", without bound as in the paper"
        takes = f", at most {bound * each:.1f} MB in all" if bound else ""
        return [
            f"  shared branch    {shared / 1e6:.3f} M = {100 * shared / total:.2f} %",
            f"  each domain      {domain / 1e6:.3f} M = {100 * domain / total:.2f} %",
            f"  experts in       {len(self.pool.layers)} feed-forward layers",
            f"  domains so far   {len(self.pool.domains)}{most}",
            f"  memory           {each:.2f} MB for each domain's experts, with their optimizer"
            f"{' and a snapshot' if self.config.guard else ''}{takes}",
        ]

    def bytes_each(self) -> int:
        """Bytes that a domain's experts take at most: parameters, optimizer and snapshot."""
        gathered = {"adam": 2, "adamw": 2, "sgd": 1 if self.config.momentum else 0}
        copies = 1 + gathered[self.config.optimizer]
        size = 8 if self.model.dtype == torch.float64 else 4
        return self.pool.count("domain") * size * copies * (2 if self.config.guard else 1)

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
        if isinstance(batch.oracle, tuple):
            raise InputError(
                f"{self.name} takes a batch as one domain: name one, not one an image."
            )
        features = self._features(batch) if self.discriminator.needs_features else None
        return Evidence(
            descriptors=self.discriminator.describe(three_colours(batch.pixels), features),
            confidence=partial(Borrowed(self._confidence), batch),
            oracle=batch.oracle if isinstance(batch.oracle, str) else None,
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
        self.guard.forget(retired.domain)
        self.events.append(f"retired domain {retired.domain}")

    def _watch(self, domain: int, logits: Tensor) -> None:
        """Judge a domain by its batch, once, however many updates the batch had."""
        verdict = self.guard.observe(domain, marginal(logits), len(logits))
        if verdict == "bad":
            self.pool.rollback(domain)
            # Others rest on the shared branch: it neither starts anew nor slows down.
            self.pool.restore("shared")
            self.guard.strike(domain)
            self.events.append(f"rolled back domain {domain} and the shared branch")
        elif verdict == "good" and (self.guard.good(domain) - 1) % self.config.snapshot_every == 0:
            self.pool.snapshot(domain)
            self.pool.snapshot("shared")
