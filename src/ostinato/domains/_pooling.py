"""One domain for a batch, whatever its size: the paper's rule, on enough evidence.

A batch of at least `evidence` images decides for itself: nearest domain, or a new one where that is
farther than the threshold. Smaller batches decide in two ways at once:

- *which known domain* follows from the latest images, half the evidence, with hysteresis, so that a
  change shows after a few images;
- *what domains are* follows from consecutive images pooled until there is enough evidence. All of
  them are pooled, not only those that fit badly: a pool of outliers would look like a domain.

Evidence that mixes two domains, as it does just after a change, can lie far from both and look new.
If the mean of a blend lies beyond τ from both of its parts, then its two halves differ by more than
4τ, so evidence whose halves differ by more than `agreement`·τ (2τ) founds no domain. Of a pool, the
older half is then dropped; a batch is not learnt from. A pool also starts anew when the latest
images have just ceased to fit, so that a new domain is not founded on stragglers of the one before.
After three refusals in a row the evidence counts as it is, for a stream may be so by nature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.domains._gaussian import difference
from ostinato.domains._store import DomainStore
from ostinato.domains.settings import DiscriminatorConfig, Evidence
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State
from ostinato.types import Decision

_PATIENCE = 3


class BatchRouter:
    """Routes whole batches; keeps the images that wait for a decision.

    The first domain has to exist at once, so it is provisional: founded anew with every batch until
    it rests on enough images.
    """

    def __init__(self, config: DiscriminatorConfig) -> None:
        self.config = config
        self.pending: Tensor | None = None
        self.recent: Tensor | None = None
        self.current: int | None = None
        self.provisional: int | None = None
        self.refused = 0
        self.calm = False

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """The domain of this batch; changes nothing."""
        z = evidence.descriptors
        pool, whole = self._pool(z), self._whole(z)
        full = len(pool) >= self.config.evidence
        if not domains.ids:
            return self._decision(domains, (), domains.next_id, len(pool), full, is_new=True)
        if self.provisional is not None and not whole:
            distances = domains.distances(pool).tolist()
            return self._decision(domains, distances, self.provisional, len(pool), full)
        if full:
            distances = domains.distances(pool).tolist()
            nearest = _argmin(distances)
            far = distances[nearest] > self.config.threshold
            if (whole and not far) or self._agrees(domains, pool, nearest):
                chosen = domains.next_id if far else domains.ids[nearest]
                return self._decision(domains, distances, chosen, len(pool), True, is_new=far)
            if whole:
                chosen = domains.ids[nearest]
                return self._decision(domains, distances, chosen, len(pool), False)
        return self._follow(domains, self._latest(z))

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """Learn from the batch as decided."""
        z = evidence.descriptors
        pool, whole = self._pool(z), self._whole(z)
        full = len(pool) >= self.config.evidence
        if not decision.is_new:
            domains.row(decision.domain)  # raises where it was removed, before anything changes
        if decision.is_new:
            domains.open(decision.domain, pool)
            self.provisional = None if full else decision.domain
            self._keep(None if full else pool)
        elif self.provisional is not None and not whole:
            self._found(domains, pool, full)
        elif self._turns(decision, whole):
            self._keep(z)
            self.refused += 1
        elif not full:
            self._keep(pool)
        elif decision.settled if whole else self._settles(domains, pool):
            domains.absorb(decision.domain, pool)
            self._keep(None)
            self.refused = 0
        else:
            self._keep(None if whole else pool[len(pool) // 2 :])
            self.refused += 1
        if whole:
            self.provisional = None
        self.calm = decision.settled
        self.recent, self.current = self._latest(z), decision.domain

    def forget(self, domain: int, into: int | None = None) -> None:
        """A domain was removed, or merged into another."""
        if self.current == domain:
            self.current = into
        if self.provisional == domain:
            self.provisional = None
            self._keep(None)

    # -- evidence ----------------------------------------------------------------------------

    def _whole(self, z: Tensor) -> bool:
        return len(z) >= self.config.evidence

    def _pool(self, z: Tensor) -> Tensor:
        if self.pending is None or self._whole(z):
            return z
        return torch.cat([self.pending.to(z.device), z])

    def _latest(self, z: Tensor) -> Tensor:
        if self.recent is None:
            return z
        wanted = max(self.config.evidence // 2, len(z))
        return torch.cat([self.recent.to(z.device), z])[-wanted:]

    def _keep(self, pool: Tensor | None) -> None:
        self.pending = pool

    def _agrees(self, domains: DomainStore, pool: Tensor, nearest: int) -> bool:
        """Whether the evidence is of one piece, by its older and newer half."""
        if self.config.evidence == 1 or self.refused >= _PATIENCE or len(pool) < 2:
            return True
        half = len(pool) // 2
        apart = difference(pool[:half], pool[half:], domains.scale[nearest])
        return float(apart) <= self.config.agreement * self.config.threshold

    def _turns(self, decision: Decision, whole: bool) -> bool:
        """Whether the latest images have just ceased to fit: what waited belongs to the past."""
        return self.calm and not decision.settled and not whole and self.refused < _PATIENCE

    def _settles(self, domains: DomainStore, pool: Tensor) -> bool:
        return self._agrees(domains, pool, _argmin(domains.distances(pool).tolist()))

    def _found(self, domains: DomainStore, pool: Tensor, full: bool) -> None:
        """Found the provisional first domain anew; for good, once its evidence is enough."""
        assert self.provisional is not None
        if full and not self._agrees(domains, pool, domains.row(self.provisional)):
            self.refused += 1
            pool, full = pool[len(pool) // 2 :], False
        domains.restart(self.provisional, pool)
        self._keep(None if full else pool)
        if full:
            self.provisional, self.refused = None, 0

    # -- decisions ---------------------------------------------------------------------------

    def _follow(self, domains: DomainStore, latest: Tensor) -> Decision:
        """Among known domains: stay, unless another is clearly nearer to the latest images."""
        distances = domains.distances(latest).tolist()
        k = _argmin(distances)
        if self.current in domains.ids:
            stay = domains.ids.index(self.current)
            k = stay if distances[stay] <= distances[k] + self.config.hysteresis else k
        settled = distances[k] <= self.config.threshold
        return self._decision(domains, distances, domains.ids[k], len(latest), settled)

    def _decision(
        self,
        domains: DomainStore,
        distances: list[float] | tuple[()],
        domain: int,
        images: int,
        settled: bool,
        is_new: bool = False,
    ) -> Decision:
        return Decision(
            domain=domain,
            is_new=is_new,
            distance=min(distances, default=float("inf")),
            threshold=self.config.threshold,
            distances=tuple(zip(domains.ids, distances, strict=True)),
            evidence=images,
            settled=settled,
        )

    # -- state -------------------------------------------------------------------------------

    def export_state(self) -> State:
        """The waiting images and where the stream is."""
        buffers = {"pending": self.pending, "recent": self.recent}
        tensors = {name: kept for name, kept in buffers.items() if kept is not None}
        values = {
            "current": self.current,
            "provisional": self.provisional,
            "refused": self.refused,
            "calm": self.calm,
        }
        return State(tensors, values)

    def expected(self, state: State) -> Expected:
        """Descriptors that wait, all of one width, and counts."""
        waiting = Like(("pending", "width"), optional=True)
        latest = Like(("recent", "width"), optional=True)
        domain = Kind.optional(Kind.count())
        values = {
            "current": domain,
            "provisional": domain,
            "refused": Kind.count(),
            "calm": Kind.flag(),
        }
        return Expected({"pending": waiting, "recent": latest}, values)

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        self.pending, self.recent = (
            state.tensors[name].clone() if name in state.tensors else None
            for name in ("pending", "recent")
        )
        self.current, self.provisional = state.values["current"], state.values["provisional"]
        self.refused, self.calm = int(state.values["refused"]), bool(state.values["calm"])


def _argmin(values: list[float]) -> int:
    return values.index(min(values))
