"""When a domain's maps are made, of how many images, and which shares are tried."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.methods.ostinato.settings import OstinatoConfig

LASTING = 12
"""Times `enough`: images from which on a domain is no longer new, and its share is chosen."""
NEW = 64
"""Latest images that maps of a new domain are made from."""
PLENTY = 48
"""Images that make maps of a new domain as good as they get soon."""
MARGIN = 0.1
"""Entropy, in ln C, above that of the maps when they were made that means: they no longer fit."""
NEVER = 2**40
"""More images than come: maps of a domain that has lasted are due when they no longer fit."""


class Timed:
    """What `Domain` knows of the making of its maps.

    >>> from ostinato.methods.ostinato._bank import Domain
    >>> domain = Domain(due=20, images=20, share=0.4)
    >>> domain.made(enough=20)
    >>> domain.lasts(20), domain.due
    (False, 40)
    """

    due: int
    images: int
    share: float
    recent: list[Tensor]
    excess: float
    patience: int
    made_at: int
    place: Tensor
    place_of: int

    def lasts(self, enough: int) -> bool:
        """Whether it is no longer new."""
        return self.images >= LASTING * enough

    def window(self, enough: int) -> int:
        """How many of its latest images maps are made from: few while the domain is new."""
        return len(self.recent) if self.lasts(enough) else NEW

    def stands(self, placed: Tensor) -> None:
        """Note where the images lie that its maps were just made from: (n, d) descriptors."""
        self.made_at, self.place_of = self.images, len(placed)
        self.place = placed.mean(0) if len(placed) else torch.empty(0)

    def shares_to_try(self, config: OstinatoConfig) -> tuple[float, ...]:
        """All of them once the domain lasts, then the chosen one.

        While it is new, the middle one comes first, and lower ones are for where that is not
        trusted. A domain that the source answers for is given another chance with all of them.
        """
        if not self.lasts(config.enough):
            start = self.share or config.middle
            lower = (share for share in config.shares if share < start)
            return (start, *sorted(lower, reverse=True))
        chosen = self.due > LASTING * config.enough and self.share > 0
        return (self.share,) if chosen else tuple(sorted(config.shares))

    def made(self, enough: int) -> None:
        """The maps were made: when the next ones are due, in images, counted from the first one.

        Twice as many images make better maps as long as they are few, and may show what fewer did
        not: that maps are worth it. Else nothing is gained until the domain has lasted, and then
        no more. Maps that were made since answers had become less sure are given twice as long
        each time: where that does not help, it is not the maps that are wrong.
        """
        self.patience = max(2 * self.patience, NEW) if self.excess > MARGIN else 0
        self.due = NEVER if self.lasts(enough) and self.share else LASTING * enough
        if self.images < PLENTY or not self.share:
            self.due = min(self.due, 2 * self.images)
        while self.due <= self.images:
            self.due *= 4
        self.excess = 0.0
