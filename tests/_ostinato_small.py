"""A small model on which the method founds a domain, trusts its maps and learns."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, collect_statistics
from ostinato.checks import SIZE, small_batches, small_model
from ostinato.methods.base import Method
from ostinato.ops.snapshot import State
from ostinato.ops.statistics import SourceStatistics

SETTINGS: dict[str, Any] = {"micro": 8, "enough": 8, "shared_rank": 4, "domain_rank": 2}


@cache
def clean_statistics() -> SourceStatistics:
    """Of clean images."""
    return collect_statistics(small_model(), torch.cat(clean(4, size=50, seed=9)))


def clean(count: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Smooth images that differ in contrast, brightness and grain, as photographs do."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        coarse = torch.rand(size, 3, 5, 5, generator=generator)
        smooth = nn.functional.interpolate(coarse, SIZE, mode="bilinear")
        light, contrast, grain = torch.rand(3, size, 1, 1, 1, generator=generator)
        noise = torch.randn(size, 3, SIZE, SIZE, generator=generator)
        images = 0.2 + 0.3 * light + (0.2 + 0.3 * contrast) * smooth + 0.1 * grain * noise
        batches.append(images.clamp(0, 1))
    return batches


def shifted(count: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Images of one domain that is not clean: the suite's bright and smooth ones."""
    batches = small_batches(2 * count + 3, size, seed)
    return [one for at, one in enumerate(batches) if (at // 3) % 2 == 0][:count]


def build(statistics: SourceStatistics, **settings: Any) -> Method:
    """The method on the small model."""
    return adapt(small_model(), "ostinato", statistics=statistics, **SETTINGS | settings)


def same_state(a: State, b: State) -> bool:
    """Equal to the bit."""
    return (
        a.values == b.values
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(tensor, b.tensors[name]) for name, tensor in a.tensors.items())
    )
