"""Routing on the model's own device: the decision of a `View` without a word to the host.

Everything that changes from version to version is one vector of fixed length, so that a captured
forward can be given another version by copying that vector. Rows beyond the domains there are have
no prior, and so no image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostinato.domains.verdict import SOURCE, View

_START = 16


def capacity(domains: int) -> int:
    """Rows for so many domains: doubled from 16.

    >>> capacity(3), capacity(17)
    (16, 32)
    """
    return max(_START, 1 << (domains - 1).bit_length())


def packed(view: View, rows: Sequence[int]) -> Tensor:
    """Means, spreads, counts, mix, ids and expert rows of a view, as one vector on the host.

    Args:
        view: what is known of domains.
        rows: for each of its domains, the row of its expert.
    """
    room, count = capacity(len(view.ids)), len(view.ids)
    width = view.means.shape[1]
    whole = torch.zeros(room * (width + 5), dtype=torch.double)
    means, rest = whole[: room * width].view(room, width), whole[room * width :].view(5, room)
    means[:count] = view.means
    rest[0] = 1.0
    facts = (view.spreads, view.counts, view.mix, view.ids, rows)
    for row, values in zip(rest, facts, strict=True):
        row[:count] = torch.as_tensor(values, dtype=torch.double)
    return whole


@dataclass(frozen=True)
class Routed:
    """What was decided of a batch, on the device.

    Attributes:
        owners: (B,) domain whose expert answers.
        rows: (B,) the row of that expert.
        distance: (B,) squared distance to the likeliest domain, 1 is usual.

    >>> import torch
    >>> owners = torch.tensor([0, 2])
    >>> Routed(owners, rows=torch.tensor([0, 1]), distance=torch.ones(2)).owners.tolist()
    [0, 2]
    """

    owners: Tensor
    rows: Tensor
    distance: Tensor


@dataclass(frozen=True)
class Routes:
    """A view on the device.

    Attributes:
        facts: what `packed` gave.
        width: numbers of a placed descriptor.
    """

    facts: Tensor
    width: int
    view: View = field(init=False, repr=False)

    def __post_init__(self) -> None:
        room = len(self.facts) // (self.width + 5)
        rest = self.facts[room * self.width :].view(5, room)
        view = View(
            tuple(range(room)),
            self.facts[: room * self.width].view(room, self.width),
            rest[0],
            rest[1],
            rest[2],
        )
        object.__setattr__(self, "view", view)

    @property
    def room(self) -> int:
        """Domains that it has rows for."""
        return len(self.view.ids)

    def __call__(self, placed: Tensor) -> Routed:
        """Decide of (B, d) descriptors in content's deviations."""
        verdict = self.view.decide(placed.to(self.facts.device))
        known = self.facts[self.width * self.room :].view(5, self.room)[3:]
        owners, rows = known[:, verdict.ids].long()
        none = torch.full_like(owners, SOURCE)
        owners, rows = (torch.where(verdict.far, none, value) for value in (owners, rows))
        return Routed(owners, rows, verdict.distance)
