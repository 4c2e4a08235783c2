"""A batch in parts of about a micro-batch, and their outputs as one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from ostinato.methods.base import Input
from ostinato.types import StepOutput


def first_part(batch: Input, size: int) -> tuple[Input, Input | None]:
    """About `size` images of a batch, and the rest; none of such parts is much smaller than others.

    >>> batch = Input(torch.zeros(130, 3, 4, 4), None)
    >>> part, rest = first_part(batch, 50)
    >>> len(part), len(rest), [len(one) for one in first_part(rest, 50)]
    (44, 86, [43, 43])
    """
    count = max(1, round(len(batch) / size))
    if count == 1:
        return batch, None
    taken = -(-len(batch) // count)
    told = batch.oracle
    apart = (told[:taken], told[taken:]) if isinstance(told, tuple) else (told, told)
    part = replace(batch, pixels=batch.pixels[:taken], oracle=apart[0])
    return part, replace(batch, pixels=batch.pixels[taken:], oracle=apart[1])


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
