"""What is known of domains at one moment, and what is decided of a batch by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ostinato.domains.distances import squared

SOURCE = 0
FAR = 5.0
"""Times a domain's usual squared distance beyond which an image belongs to none."""
DEGREES = 48.0
"""Independent numbers a descriptor counts as; its 369 depend on one another."""
POWER = 0.25
"""How far a domain's own spread counts where domains are compared: 0 is not at all, 1 fully."""
LOCAL = 16.0
"""Images that the picture of the present traffic reaches back."""
DRIFT = 0.02
"""Share of the prior that the present traffic does not decide."""


@dataclass(frozen=True)
class View:
    """What deciding needs, frozen: a published version holds one.

    Attributes:
        ids: domains, the source first.
        means: (K, d) where they lie, in content's deviations.
        spreads: (K,) each domain's usual squared distance, 1 on average.
        counts: (K,) images behind each.
        mix: (K,) what the latest traffic was made of.

    >>> means, even = torch.tensor([[0.0], [9.0]]), torch.ones(2)
    >>> known = View((0, 1), means, even, counts=50 * even, mix=0.5 * even)
    >>> known.decide(torch.tensor([[0.5], [8.0], [60.0]])).owners()  # the last one is far from both
    [0, 1, 0]
    """

    ids: tuple[int, ...]
    means: Tensor
    spreads: Tensor
    counts: Tensor
    mix: Tensor

    @cached_property
    def numbers(self) -> Tensor:
        """The domains as a tensor, where the means are."""
        return torch.tensor(self.ids, device=self.means.device)

    def distances(self, placed: Tensor) -> Tensor:
        """(B, K): mean squared distance to every domain, 1 for a usual image of it."""
        apart = squared(placed, self.means) / placed.shape[1]
        return apart / (self.spreads * (1 + 1 / self.counts))

    def decide(self, placed: Tensor) -> Verdict:
        """Each image's domain, its posterior and its distance; changes nothing.

        Args:
            placed: (B, d) what `Content.place` gave.
        """
        apart = self.distances(placed)
        own = self.spreads**POWER
        fit = -0.5 * DEGREES * (own.log() + 2 * torch.log1p(apart * (self.spreads / own) / 2))
        mix = self.mix
        for _ in range(2):  # the batch tells what is coming, which tells more of the batch
            posterior = (fit + self._prior(mix).log()).softmax(1)
            mix = blended(self.mix, posterior)
        best = posterior.argmax(1)
        distance = apart.gather(1, best[:, None])[:, 0]
        ids = self.numbers[best]
        return Verdict(ids, distance, posterior, distance > FAR)

    def _prior(self, mix: Tensor) -> Tensor:
        often = self.counts.clone()
        often[0].clamp_(min=1.0)
        return (1 - DRIFT) * mix + DRIFT * often / often.sum()


@dataclass(frozen=True)
class Verdict:
    """What was decided of a batch.

    Attributes:
        ids: (B,) domain of each image; 0 is the source.
        distance: (B,) squared distance to it, 1 is usual.
        posterior: (B, K) over the view's domains.
        far: (B,) images that no known domain explains; the source answers them.

    >>> one = torch.ones(1)
    >>> Verdict(torch.tensor([3]), 9 * one, one[:, None], torch.tensor([True])).owners()
    [0]
    """

    ids: Tensor
    distance: Tensor
    posterior: Tensor
    far: Tensor

    def owners(self) -> list[int]:
        """The domain whose expert answers each image."""
        return torch.where(self.far, torch.full_like(self.ids, SOURCE), self.ids).tolist()


@dataclass(frozen=True)
class Change:
    """What an observation did to the domains.

    Attributes:
        owners: (B,) where the observed images belong now.
        known: (B,) False for images seen before, which count once.
        founded: new domains, each with the one that it was split off.
        merged: (gone, into) pairs.
        distance: mean squared distance of the images to their likeliest domains, 1 is usual; 0
            where domains were told.

    >>> Change(owners=[2], known=[True], founded={2: 0}).merged
    ()
    """

    owners: list[int]
    known: list[bool]
    founded: Mapping[int, int] = field(default_factory=dict)
    merged: tuple[tuple[int, int], ...] = ()
    distance: float = 0.0


def blended(mix: Tensor, posterior: Tensor) -> Tensor:
    """The picture of the traffic after a batch: each image fades the past by 1 / `LOCAL`."""
    kept = (1 - 1 / LOCAL) ** len(posterior)
    return kept * mix + (1 - kept) * posterior.mean(0)
