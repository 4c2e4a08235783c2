"""A batch in parts of about a micro-batch, and their outputs as one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from ostinato.methods.base import Input
from ostinato.types import StepOutput


def split(batch: Input, size: int) -> list[Input]:
    """The batch in parts of about `size` images, none much smaller than the others."""
    count = max(1, round(len(batch) / size))
    found, start = [], 0
    for pixels in batch.pixels.tensor_split(count):
        told = batch.oracle
        if isinstance(told, tuple):
            told = told[start : start + len(pixels)]
        found.append(replace(batch, pixels=pixels, oracle=told))
        start += len(pixels)
    return found


def joined(parts: list[StepOutput]) -> StepOutput:
    """What the parts of a batch gave, as one."""
    if len(parts) == 1:
        return parts[0]
    last, decisions = parts[-1], [part.decision for part in parts if part.decision is not None]
    owners = tuple(owner for one in decisions for owner in one.per_sample or ())
    usual = Counter(owners).most_common(1)[0][0]
    decision = replace(
        decisions[-1],
        domain=usual,
        is_new=any(one.is_new and one.domain == usual for one in decisions),
        evidence=len(owners),
        per_sample=owners,
    )
    return replace(
        last,
        logits=torch.cat([part.logits for part in parts]),
        decision=decision,
        used=len(owners),
        updated=any(part.updated for part in parts),
        events=tuple(event for part in parts for event in part.events),
        trust=tuple(value for part in parts for value in part.trust),
    )
