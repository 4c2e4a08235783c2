"""How far each block's tokens of each domain lie from the source's, without and with its expert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostinato.experts.routed import Expert, Pass
from ostinato.methods.base import Input
from ostinato.ops.moments import BlockMoments, token_moments

if TYPE_CHECKING:
    from ostinato.methods.ostinato._learning import Learner

IMAGES = 32
"""Latest images of a domain that distances are measured on."""


def block_distance(source: BlockMoments, other: BlockMoments) -> float:
    """How far tokens have moved and spread, in units of the source tokens' own spread.

    The distance between two Gaussians with the tokens' means and standard deviations, feature by
    feature, divided by the source's standard deviation: 0 for equal ones, 1 where means lie one
    such spread apart.

    >>> one = torch.eye(2, dtype=torch.double)
    >>> near = BlockMoments(torch.zeros(2), one, torch.zeros(0, 2))
    >>> far = BlockMoments(torch.tensor([2.0, 0.0]).double(), one, torch.zeros(0, 2))
    >>> block_distance(near, near), round(block_distance(near, far), 3)
    (0.0, 1.414)
    """
    spread, theirs = (m.covariance.diagonal().double().clamp_min(0).sqrt() for m in (source, other))
    moved = (other.mean.double() - source.mean.double().to(other.mean.device)).square().sum()
    changed = (theirs - spread.to(theirs.device)).square().sum()
    return float(((moved + changed) / spread.square().sum().clamp_min(1e-12)).sqrt())


def domain_distances(method: Learner) -> dict[str, Any]:
    """Per domain: its trust, and per block the distance to the source before and after its expert.

    Nothing of the method changes. Domains whose latest images were dropped are left out.
    """
    found = {}
    for number, domain in method.bank.domains.items():
        recent = domain.recent[-IMAGES:]
        if not recent:
            continue
        batch = Input(torch.stack(recent).float() / 255)
        shared = method.version.shared if domain.share > 0 else ()
        expert = domain.expert().to(method.model.device) if domain.share > 0 else Expert()
        found[str(number)] = {
            "images": domain.images,
            "trust": domain.share,
            "before": _distances(method, batch, Expert(), ()),
            "after": _distances(method, batch, expert, shared),
        }
    return found


def _distances(method: Learner, batch: Input, expert: Expert, shared: Any) -> list[float]:
    moments: list[BlockMoments] = []

    def keep(tokens: Tensor) -> Tensor:
        own = method.processes.own(tokens, len(batch))
        moments.append(token_moments(own, method.hooks.prefix, method.processes.total))
        return tokens[:0]

    rows = [0] * method.processes.taken(len(batch))
    now = Pass(rows, [expert], shared, keep=keep, whole=True)
    with torch.no_grad(), method.autocast(), method.hooks.open(now):
        method.logits(batch)
    pairs = zip(method.statistics.tokens, moments, strict=True)
    return [round(block_distance(source, other), 4) for source, other in pairs]
