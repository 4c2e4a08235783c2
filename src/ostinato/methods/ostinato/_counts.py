"""What the method counts of itself: parameters, memory, distances of domains to the source."""

from __future__ import annotations

from typing import Any

from ostinato.experts.maps import map_rank
from ostinato.experts.routed import EVERY
from ostinato.experts.stack import START
from ostinato.methods.ostinato._answers import Answers
from ostinato.methods.ostinato._distances import domain_distances


class Counted(Answers):
    """The part of the method that tells its size and its state."""

    def trained(self) -> int:
        """Shared branch and one domain's, where it learns."""
        if not self.config.learn:
            return 0
        ranks = self.config.shared_rank + self.config.domain_rank
        return sum(2 * width * ranks for _, width in self.hooks.widths)

    def added(self, domains: int = 1) -> int:
        """Maps and branches of so many domains, and the shared branch."""
        maps, own, shared = self._sizes()
        return shared + domains * (maps + own)

    def _sizes(self) -> tuple[int, int, int]:
        """Numbers in a domain's maps, in its branches and in the shared ones."""
        config = self.config
        mapped = self.statistics.tokens[::EVERY]
        maps = sum(map_size(block.mean.numel()) + block.prefix.numel() for block in mapped)
        if not config.learn:
            return maps, 0, 0
        own = sum(2 * width * config.domain_rank for _, width in self.hooks.widths)
        return maps, own, sum(2 * width * config.shared_rank for _, width in self.hooks.widths)

    def bytes_held(self) -> int:
        """Bytes that all experts take at most, with everything that is kept for them.

        Branches are kept with two moments and as published; of those on the device, maps and
        branches lie once more in the rows that answer, of which there may be twice as many.
        """
        maps, own, shared = self._sizes()
        rows = 2 * min(self.config.max_domains, self.config.resident) + START
        kept = self.config.max_domains * (maps + 4 * own) + 5 * shared
        return 4 * (kept + rows * (maps + own))

    def details(self) -> list[str]:
        """Domains so far with their trust, and what they take."""
        count = len(self.bank.domains)
        bound = self.bytes_held() / 2**20
        return [
            f"  domains so far   {count} of at most {self.config.max_domains}",
            f"  memory           at most {bound:.0f} MB of experts and "
            f"{self.config.buffer_mb:.0f} MB of latest images",
            *(f"  statistics       {doubt}" for doubt in self.statistics.doubts()),
        ]

    def diagnose(self) -> dict[str, Any]:
        """How far each domain's blocks lie from the source's, before and after its expert."""
        return {"blocks": domain_distances(self)} if self.bank.domains else {}

    @classmethod
    def scaled(cls, config: Any, factor: float) -> dict[str, Any]:
        """Nothing to scale where nothing is learned."""
        return super().scaled(config, factor) if config.learn else {}


def map_size(width: int) -> int:
    """Numbers in the map of a block: matrix or its two factors, scale and shift.

    >>> map_size(128), map_size(768)
    (16640, 99840)
    """
    rank = map_rank(width)
    return (2 if rank < width else 1) * width * rank + 2 * width
