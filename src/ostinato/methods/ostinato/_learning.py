"""Learning on top of maps: low-rank branches, alignment and confident entropy, a falling rate.

When maps are made it is noted how sure they make answers. Where later answers are clearly less
sure, the images are no longer those that the maps were made from: domains merge, and what is taken
for one domain may be two. Then maps are made anew from the latest images.

An expert's rate falls with its updates, so a later update moves little and costs as much as the
first. How many micro-batches are passed over between two updates grows as the rate falls, up to a
limit; an expert that no longer fits learns at once again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ostinato.domains.verdict import Change
from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import Acting, Branch, Expert, Pass, leaves
from ostinato.methods.base import Input
from ostinato.methods.ostinato._bank import Domain, Version
from ostinato.methods.ostinato._timing import MARGIN
from ostinato.methods.ostinato.maps import MapMaker
from ostinato.ops.losses import Seen, alignment, facts, seen, sharp_entropy, unsureness
from ostinato.types import StepOutput


class Differentiated(NamedTuple):
    """What an update is made from.

    Attributes:
        logits: of its images, from before it.
        loss: the loss; None where nothing is learned.
        grads: flat gradients of the shared branches and the domain's.
        facts: what the host has to know of them, where that was found on the way.
    """

    logits: Tensor
    loss: Tensor | None = None
    grads: tuple[Tensor, ...] = ()
    facts: Tensor | None = None


REACH = 50
"""Images that the picture of the latest answers reaches back."""


def summed_rate(rate: float, updates: int, settle: float, times: int = 1) -> float:
    """The rates of the next so many updates, each shorter than the one before, together.

    >>> summed_rate(1.0, updates=10, settle=10)
    0.5
    >>> round(summed_rate(1.0, updates=0, settle=10, times=2), 4)  # 1 and 1 / 1.1
    1.9091
    """
    return sum(rate / (1 + (updates + later) / settle) for later in range(times))


def passed_over(updates: int, settle: float, limit: int) -> int:
    """Micro-batches between two updates that an expert with so many updates does not learn from.

    >>> [passed_over(updates, settle=10, limit=3) for updates in (0, 9, 10, 25, 90)]
    [0, 0, 1, 2, 3]
    """
    return min(limit, int(updates / settle))


class Learner(MapMaker):
    """The part of the method that learns from a domain's micro-batches."""

    capturing: bool
    """Whether whole answers and updates may be captured here, as far as one process goes."""
    kind: torch.dtype
    """The precision that branches are differentiated in."""

    @abstractmethod
    def _captured_gradients(self, batch: Input, domain: Domain) -> Differentiated | None:
        """What `_gradients` gives, by a capture where there is one."""

    @abstractmethod
    def _output(
        self,
        logits: Tensor,
        version: Version,
        owners: Sequence[int],
        distance: float,
        change: Change | None,
    ) -> StepOutput:
        """What a batch is answered."""

    def _republish(self) -> None:
        """Make what is known now the version that answers."""
        self.version = self.bank.version(self.version.number + 1, self.router.view())

    def _ready(self, owners: Sequence[int]) -> Domain | None:
        """The domain that a part of a batch may teach at once: all its images are that domain's."""
        if len(set(owners)) != 1 or len(owners) < self.config.micro // 2:
            return None
        domain = self.bank.domains.get(owners[0])
        if domain is None or not self._may_learn(domain) or not self._pays(domain):
            return None
        return domain

    def _answer_and_learn(
        self, batch: Input, change: Change, domain: Domain, found: Differentiated | None
    ) -> StepOutput:
        """The answer of what a domain knew before a batch, which it then learns from."""
        version = self.version
        logits, known, updated = self._step(batch, domain, found)
        domain.learned_from(len(change.owners))
        # Routing is what it was when the batch was taken in.
        self.version = self.bank.version_after(version, domain)
        if domain.branches is None:  # forgotten: its maps answered
            version = replace(version, temperatures={})
        output = self._output(logits, version, change.owners, change.distance, change)
        output.loss, output.updated = known and known.loss, updated
        if updated and known is not None:
            most = math.log(max(logits.shape[1], 2))
            self._note(domain, known.entropy / most, len(change.owners), most)
        else:
            self._watch(change.owners, output.logits)
        return output

    def _may_learn(self, domain: Domain) -> bool:
        return self.config.learn and bool(domain.maps) and domain.images > 2 * self.config.micro

    def _pays(self, domain: Domain) -> bool:
        """Whether the next micro-batch is one to learn from; see `passed_over`."""
        updates = 0 if domain.branches is None else domain.branches.updates
        wait = passed_over(updates, self.config.settle, self.config.spare)
        return domain.excess > MARGIN or domain.skipped >= wait

    def _watch(self, owners: Sequence[int], logits: Tensor) -> None:
        """Take note of how sure domains' answers are; maps that no longer fit are due at once."""
        known = {number: self.bank.domains.get(number) for number in dict.fromkeys(owners)}
        if not any(domain is not None and domain.maps for domain in known.values()):
            return
        found, most = unsureness(logits), math.log(max(logits.shape[1], 2))
        for number, domain in known.items():
            if domain is None or not domain.maps:
                continue
            mine = [value for value, owner in zip(found, owners, strict=True) if owner == number]
            self._note(domain, sum(mine) / len(mine), len(mine), most)

    def _note(self, domain: Domain, unsure: float, count: int, most: float) -> None:
        """Take note of so many answers of a domain, as unsure in the mean; `most` is ln C."""
        weight = min(1.0, count / REACH)
        off = unsure - domain.unsure / most
        domain.excess = (1 - weight) * domain.excess + weight * off
        since = domain.images - domain.made_at
        if domain.excess > MARGIN and since >= domain.patience:
            domain.due = min(domain.due, domain.images)

    def _learn_waiting(self, classes: Tensor | None) -> bool:
        """Steps of every domain that has a micro-batch of images it has not learned from."""
        moved = False
        for domain in self.bank.domains.values():
            count = min(self.config.micro, self.config.buffer)
            if domain.waiting >= count and self._may_learn(domain):
                if not self._pays(domain):
                    domain.learned_from(count)
                    domain.skipped += 1
                    continue
                pixels = torch.stack(domain.recent[-count:]).float() / 255
                domain.learned_from(count)
                self.bank.bring(self.bank.number(domain))
                moved |= self._step(Input(pixels, classes), domain)[2]
        if moved:
            self._republish()
        return moved

    def _step(
        self, batch: Input, domain: Domain, found: Differentiated | None = None
    ) -> tuple[Tensor, Seen | None, bool]:
        """One update of the domain's branches and the shared ones: logits from before it, what was
        seen of it, and whether it was made.

        Args:
            batch: images of the domain.
            domain: the domain, whose expert is where the model is.
            found: what `_gradients` gives for both, where that was asked before.
        """
        if domain.branches is None:
            domain.branches = self._new_branches(self.bank.number(domain))
        times = domain.skipped + max(1, round(len(batch.pixels) / self.config.micro))
        domain.skipped = 0
        groups = [self.bank.shared, domain.branches]
        logits, loss, grads, looked = found or self._gradients(batch, domain)
        if loss is None:
            return logits, None, False
        known = seen(facts(logits, loss, grads, domain.temperature) if looked is None else looked)
        if known.variety < self.config.keep * domain.variety:
            self._forget(domain)
            return self._mapped(batch, domain), known, False
        if not known.finite:
            return logits, None, False
        lr, settle = self.config.lr, self.config.settle
        rates = [summed_rate(lr, group.updates, settle, times) for group in groups]
        for group, grad, rate in zip(groups, grads, rates, strict=True):
            group.step(grad, lr=rate, times=times)
        if self.config.temper:
            domain.warm(known.entropy, times)
        return logits, known, True

    def _gradients(self, batch: Input, domain: Domain) -> Differentiated:
        """Logits, loss and flat gradients of the shared branches and the domain's."""
        if self.capturing and (captured := self._captured_gradients(batch, domain)) is not None:
            return captured
        return self._differentiate(batch, domain)

    def _differentiate(
        self, batch: Input, by: Domain | Acting, groups: tuple[tuple[Branch, ...], ...] = ()
    ) -> Differentiated:
        """The loss: alignment of features with the source's, and entropy of sure predictions.

        Args:
            batch: images of one domain.
            by: the domain whose expert acts, or what acts in a forward.
            groups: the branches of the latter, the shared ones first.
        """
        alone, count = self.processes.alone, len(batch.pixels)
        with torch.enable_grad():
            if isinstance(by, Domain):
                assert by.branches is not None
                both = (self.bank.shared, by.branches)
                groups = tuple(
                    leaves(group.latest or group.published(), self.kind) for group in both
                )
                rows = [0] * (count if alone else self.processes.taken(count))
                expert = Expert(by.maps, groups[1])
                by = Pass(rows, [expert], groups[0], keep=self.hooks.pooled)
            with self.hooks.open(by), self.autocast():
                logits = self.logits(batch)
            features = by.features
            if logits.ndim > 2:
                return Differentiated(logits.detach())  # entropy per pixel undoes what maps gain
            if not alone:
                features = [self.processes.gathered(one, count) for one in features]
            sharp = sharp_entropy(logits, self.config.kappa)
            near = alignment(features, self.statistics.means, self.statistics.stds)
            loss = self.config.alignment * near + self.config.entropy * sharp
        parts = [[part for one in group for part in one] for group in groups]
        grads = iter(torch.autograd.grad(loss, [part for group in parts for part in group]))
        flat = tuple(torch.cat([next(grads).flatten() for _ in group]) for group in parts)
        mean = flat if alone else self.processes.average(flat)
        return Differentiated(logits.detach(), loss.detach(), tuple(grad.float() for grad in mean))

    def _forget(self, domain: Domain) -> None:
        """Forget what was learned where answers are less varied than the maps' alone.

        Entropy is what learning lowers, so it cannot tell when that goes wrong. A model that says
        the same of everything is sure of it, but its mean answer is not that of its maps. The
        domain's own branches are dropped first; where these had learned nothing, it is the shared
        ones that start anew.
        """
        own = domain.branches is not None and domain.branches.updates > 0
        domain.forget_learned()
        if own:
            self.events.append(f"rolled back domain {self.bank.number(domain)}")
        else:
            self.bank.shared.import_state(self._new_branches("shared").export_state())
            self.events.append("rolled back the shared branches")

    def _mapped(self, batch: Input, domain: Domain) -> Tensor:
        """Logits of a domain's maps alone."""
        now = Pass([0] * self.processes.taken(len(batch)), [Expert(domain.maps)])
        with torch.no_grad(), self.autocast(), self.hooks.open(now):
            return self.logits(batch).detach()

    def _new_branches(self, label: object) -> FlatBranches:
        rank = self.config.shared_rank if label == "shared" else self.config.domain_rank
        return FlatBranches(self.hooks.widths, rank, self.config.seed, label, self.model.device)
