"""Learning on top of maps: low-rank branches, alignment and confident entropy, a falling rate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import Acting, Branch, Expert, Pass
from ostinato.methods.base import Input
from ostinato.methods.ostinato.maps import MapMaker
from ostinato.methods.ostinato.pace import MARGIN, followed, passed_over, summed_rate, unsureness
from ostinato.methods.ostinato.parts import Domain
from ostinato.methods.ostinato.temperature import warmed
from ostinato.ops.features import pool_tokens
from ostinato.ops.losses import distribution_entropy, entropy_threshold, softmax_entropy
from ostinato.ops.statistics import alignment

Differentiated = tuple[Tensor, Tensor | None, tuple[Tensor, ...]]


class _Seen(NamedTuple):
    """What the host has to know of a step before it is taken.

    Attributes:
        loss: the loss.
        variety: entropy of the mean answer.
        entropy: mean entropy of the answers, at their temperature.
        finite: whether every gradient is a number, 1 or 0.
    """

    loss: float
    variety: float
    entropy: float
    finite: float


def _seen(logits: Tensor, loss: Tensor, grads: Sequence[Tensor], temperature: float) -> _Seen:
    """All of it by one look at the device, which the host waits for."""
    answers = logits.float()
    variety = distribution_entropy(answers.softmax(1).mean(0))
    entropy = softmax_entropy(answers / temperature).mean()
    finite = torch.stack([grad.isfinite().all() for grad in grads]).all()
    facts = [one.double() for one in (loss, variety, entropy, finite)]
    return _Seen(*torch.stack(facts).tolist())


class Learner(MapMaker):
    """The part of the method that learns from a domain's micro-batches."""

    @abstractmethod
    def _republish(self) -> None:
        """Make what is known now the version that answers."""

    def _may_learn(self, domain: Domain) -> bool:
        return self.config.learn and bool(domain.maps) and domain.images > 2 * self.config.micro

    def _pays(self, domain: Domain) -> bool:
        """Whether the next micro-batch is one to learn from; see `pace`."""
        updates = 0 if domain.branches is None else domain.branches.updates
        wait = passed_over(updates, self.config.settle, self.config.spare)
        return domain.excess > MARGIN or domain.skipped >= wait

    def _watch(self, owners: Sequence[int], logits: Tensor) -> None:
        """Take note of how sure domains' answers are; maps that no longer fit are due at once."""
        known = {number: self.bank.domains.get(number) for number in dict.fromkeys(owners)}
        if not any(domain is not None and domain.maps for domain in known.values()):
            return
        found = unsureness(logits)
        for number, domain in known.items():
            if domain is None or not domain.maps:
                continue
            mine = [value for value, owner in zip(found, owners, strict=True) if owner == number]
            usual = domain.unsure / math.log(max(logits.shape[1], 2))
            domain.excess = followed(domain.excess, mine, usual)
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
                moved |= self._step(Input(pixels, classes), domain)[2]
        if moved:
            self._republish()
        return moved

    def _step(
        self, batch: Input, domain: Domain, found: Differentiated | None = None
    ) -> tuple[Tensor, float | None, bool]:
        """One update of the domain's branches and the shared ones; logits from before it.

        Args:
            batch: images of the domain.
            domain: the domain.
            found: what `_gradients` gives for both, where that was asked before.
        """
        if domain.branches is None:
            domain.branches = self._new_branches(self.bank.number(domain))
        times = domain.skipped + max(1, round(len(batch) / self.config.micro))
        domain.skipped = 0
        self.bank.bring(self.bank.number(domain))
        groups = [self.bank.shared, domain.branches]
        logits, loss, grads = found or self._gradients(batch, domain)
        if loss is None:
            return logits, None, False
        seen = _seen(logits, loss, grads, domain.temperature)
        if not self._sound(seen.variety, domain):
            return self._mapped(batch, domain), seen.loss, False
        if not seen.finite:
            return logits, None, False
        if self.config.temper:
            domain.temperature = warmed(domain.temperature, seen.entropy, domain.unsure)
        for group, grad in zip(groups, grads, strict=True):
            rate = summed_rate(self.config.lr, group.updates, self.config.settle, times)
            group.step(grad, lr=rate, times=times)
        return logits, seen.loss, True

    def _gradients(self, batch: Input, domain: Domain) -> Differentiated:
        """Logits, loss and flat gradients of the shared branches and the domain's."""
        assert domain.branches is not None
        kind = torch.promote_types(torch.float, self.model.dtype)
        both = (self.bank.shared, domain.branches)
        shared, own = (group.leaves(group.value.to(kind)) for group in both)
        pool = partial(pool_tokens, class_token=self.hooks.prefix > 0)
        rows = self.processes.taken(len(batch))
        now = Pass([0] * rows, [Expert(domain.maps, own)], shared, keep=pool)
        return self._differentiate(batch, now, (shared, own))

    def _differentiate(
        self, batch: Input, now: Acting, groups: tuple[tuple[Branch, ...], ...]
    ) -> Differentiated:
        with torch.enable_grad(), self.autocast(), self.hooks.open(now):
            logits = self.logits(batch)
            if logits.ndim > 2:
                return logits.detach(), None, ()  # per pixel, entropy undoes what maps gained
            features = [self.processes.gathered(one, len(batch)) for one in now.features]
            loss = self._loss(logits, features)
        leaves = [[part for one in group for part in (one.down, one.up)] for group in groups]
        grads = iter(torch.autograd.grad(loss, [part for group in leaves for part in group]))
        flat = tuple(torch.cat([next(grads).flatten() for _ in group]) for group in leaves)
        mean = tuple(grad.float() for grad in self.processes.average(flat))
        return logits.detach(), loss.detach(), mean

    def _loss(self, logits: Tensor, features: list[Tensor]) -> Tensor:
        """Alignment of features with the source's, and entropy of confident predictions."""
        entropy = softmax_entropy(logits)
        threshold = entropy_threshold(self.config.kappa, logits.shape[1])
        weight = (entropy.detach() < threshold) * torch.exp(threshold - entropy.detach())
        sharp = (entropy * weight).sum() / len(entropy)
        near = alignment(features, self.statistics)
        return self.config.alignment * near + self.config.entropy * sharp

    def _sound(self, variety: float, domain: Domain) -> bool:
        """Whether learned answers are as varied as the maps' alone; if not, forget the cause.

        Entropy is what learning lowers, so it cannot tell when that goes wrong. A model that says
        the same of everything is sure of it, but its mean answer is not that of its maps. The
        domain's own branches are dropped first; where these had learned nothing, it is the shared
        ones that start anew.
        """
        if variety >= self.config.keep * domain.variety:
            return True
        own = domain.branches is not None and domain.branches.updates > 0
        domain.forget_learned()
        if own:
            self.events.append(f"rolled back domain {self.bank.number(domain)}")
        else:
            self.bank.shared.import_state(self._new_branches("shared").export_state())
            self.events.append("rolled back the shared branches")
        return False

    def _mapped(self, batch: Input, domain: Domain) -> Tensor:
        """Logits of a domain's maps alone."""
        now = Pass([0] * self.processes.taken(len(batch)), [Expert(domain.maps)])
        with torch.no_grad(), self.autocast(), self.hooks.open(now):
            return self.logits(batch).detach()

    def _new_branches(self, label: object) -> FlatBranches:
        rank = self.config.shared_rank if label == "shared" else self.config.domain_rank
        return FlatBranches(self.hooks.widths, rank, self.config.seed, label, self.model.device)
