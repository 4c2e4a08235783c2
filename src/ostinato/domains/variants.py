"""The discriminator's ablations, selected by `kind`. The other two of the paper, no covariance and
a plain moving average, are settings of the discriminator itself (`covariance="none"`,
`update="ema"`).

Every variant keeps the Gaussians of what it routed, so that scores, posteriors and reports work.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ostinato.domains._pooling import BatchRouter
from ostinato.domains._store import DomainStore
from ostinato.domains.discriminator import Discriminator, Router
from ostinato.domains.settings import DiscriminatorConfig, Evidence
from ostinato.errors import InputError
from ostinato.ops.expect import Expected, Kind
from ostinato.ops.snapshot import State
from ostinato.registry import DISCRIMINATORS
from ostinato.types import Decision

_FADE = 0.9
"""How much of the past a running mean of confidence keeps."""


class _Plain:
    """A router that always knows: open the chosen domain, or let it learn the batch."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        self.config = config

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """Learn the batch into the chosen domain."""
        if decision.is_new:
            domains.open(decision.domain, evidence.descriptors)
        else:
            domains.absorb(decision.domain, evidence.descriptors)

    def forget(self, domain: int, into: int | None = None) -> None:
        """Nothing is kept of a domain."""

    def export_state(self) -> State:
        """Nothing changes."""
        return State()

    def expected(self, state: State) -> Expected:
        """Nothing."""
        return Expected()

    def import_state(self, state: State) -> None:
        """Nothing to take over."""

    def _decision(self, domains: DomainStore, evidence: Evidence, domain: int | None) -> Decision:
        """The named domain, or a new one for None."""
        z = evidence.descriptors
        distances = domains.distances(z).tolist() if domains.ids else []
        return Decision(
            domain=domains.next_id if domain is None else domain,
            is_new=domain is None,
            distance=min(distances, default=float("inf")),
            threshold=self.config.threshold,
            distances=tuple(zip(domains.ids, distances, strict=True)),
            evidence=len(z),
        )


class _SingleRouter(_Plain):
    """Everything is one domain."""

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """The one domain."""
        return self._decision(domains, evidence, domains.ids[0] if domains.ids else None)


class _OracleRouter(_Plain):
    """The true domain's name decides."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        super().__init__(config)
        self.names: dict[str, int] = {}

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """The domain that carries the given name."""
        if evidence.oracle is None:
            raise InputError("The oracle discriminator needs the domain's name with every batch.")
        return self._decision(domains, evidence, self.names.get(evidence.oracle))

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """Learn the batch, and the name."""
        super().update(domains, evidence, decision)
        if evidence.oracle is not None:
            self.names.setdefault(evidence.oracle, decision.domain)

    def forget(self, domain: int, into: int | None = None) -> None:
        """Names of a merged domain lead to the other; of a removed one, nowhere."""
        moved = {n: into if d == domain else d for n, d in self.names.items()}
        self.names = {n: d for n, d in moved.items() if d is not None}

    def export_state(self) -> State:
        """The names."""
        return State({}, {"names": dict(self.names)})

    def expected(self, state: State) -> Expected:
        """A domain for every name."""
        names = state.values["names"]
        return Expected(values={"names": Kind.mapped(Kind.count(), set(names))})

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        self.names = dict(state.values["names"])


class _ConfidenceRouter(_Plain):
    """A new domain whenever the model's confidence jumps; none is ever recognised again."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        super().__init__(config)
        self.current: int | None = None
        self.usual: float | None = None
        # The model moves between decision and update, so a confidence is measured once.
        self._measured: tuple[Evidence, float] | None = None

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """Stay in the current domain, unless confidence is far from what it was there."""
        confidence = self._confidence(evidence)
        jumped = self.usual is not None and abs(confidence - self.usual) > self.config.jump
        stay = self.current in domains.ids and not jumped
        return self._decision(domains, evidence, self.current if stay else None)

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """Learn the batch, and how confident the model is on it."""
        confidence = self._confidence(evidence)
        super().update(domains, evidence, decision)
        known = confidence if decision.is_new or self.usual is None else self.usual
        self.usual = _FADE * known + (1 - _FADE) * confidence
        self.current, self._measured = decision.domain, None

    def forget(self, domain: int, into: int | None = None) -> None:
        """The current domain may be gone."""
        self.current = into if self.current == domain else self.current

    def export_state(self) -> State:
        """The current domain and its usual confidence."""
        return State({}, {"current": self.current, "usual": self.usual})

    def expected(self, state: State) -> Expected:
        """None of both, or a domain and a share."""
        return Expected(
            values={
                "current": Kind.optional(Kind.count()),
                "usual": Kind.optional(Kind.number(0, 1.001)),
            }
        )

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        self.current, self.usual = state.values["current"], state.values["usual"]

    def _confidence(self, evidence: Evidence) -> float:
        if evidence.confidence is None:
            raise InputError("The confidence-jump discriminator needs the model's confidence.")
        if self._measured is None or self._measured[0] is not evidence:
            self._measured = (evidence, float(evidence.confidence()))
        return self._measured[1]


class _RandomRouter:
    """Domains as the discriminator finds them, but batches go to any of them by lot."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        self.config = config
        self.inner = BatchRouter(config)
        self.steps = 0

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """A new domain where one is found; otherwise any known one."""
        found = self.inner.decide(domains, evidence)
        if found.is_new:
            return found
        # Seeded by the step, so that asking twice gives the same answer and no state is needed.
        lot = torch.Generator().manual_seed(self.config.seed * 1_000_003 + self.steps)
        k = int(torch.randint(len(domains), (1,), generator=lot))
        return replace(found, domain=domains.ids[k])

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """The domains learn as if nothing had been drawn."""
        self.inner.update(domains, evidence, self.inner.decide(domains, evidence))
        self.steps += 1

    def forget(self, domain: int, into: int | None = None) -> None:
        """A domain was removed, or merged into another."""
        self.inner.forget(domain, into)

    def export_state(self) -> State:
        """The discriminator's own, and the step."""
        return State.join({"inner": self.inner.export_state(), "lot": State({}, {"s": self.steps})})

    def expected(self, state: State) -> Expected:
        """The discriminator's own, and the step."""
        lot = Expected(values={"s": Kind.count()})
        return Expected(parts={"inner": self.inner.expected(state.part("inner")), "lot": lot})

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        self.inner.import_state(state.part("inner"))
        self.steps = int(state.values["lot"]["s"])


@DISCRIMINATORS.register("single")
class Single(Discriminator):
    """One domain for everything: what adaptation does without a discriminator.

    >>> single = Single(DiscriminatorConfig(kind="single"))
    >>> for far in (0.0, 9.0):
    ...     seen = Evidence(torch.rand(50, 4) + far)
    ...     single.update(seen, single.decide(seen))
    >>> single.domains
    (0,)
    """

    def make_router(self) -> Router:
        """See `_SingleRouter`."""
        return _SingleRouter(self.config)


@DISCRIMINATORS.register("oracle")
class Oracle(Discriminator):
    """Told the true domain of every batch: the upper bound, not a method.

    >>> oracle = Oracle(DiscriminatorConfig(kind="oracle"))
    >>> for name in ("fog", "snow", "fog"):
    ...     evidence = Evidence(torch.zeros(2, 3), oracle=name)
    ...     oracle.update(evidence, oracle.decide(evidence))
    >>> oracle.domains, oracle.count(0), sorted(oracle.needs)
    ((0, 1), 4, ['domain labels'])
    """

    needs = frozenset({"domain labels"})

    def make_router(self) -> Router:
        """See `_OracleRouter`."""
        return _OracleRouter(self.config)


@DISCRIMINATORS.register("confidence-jump")
class ConfidenceJump(Discriminator):
    """Opens a domain when the model's confidence changes abruptly."""

    def make_router(self) -> Router:
        """See `_ConfidenceRouter`."""
        return _ConfidenceRouter(self.config)


@DISCRIMINATORS.register("random")
class RandomRouting(Discriminator):
    """Finds domains as usual and then ignores which one a batch belongs to."""

    def make_router(self) -> Router:
        """See `_RandomRouter`."""
        return _RandomRouter(self.config)
