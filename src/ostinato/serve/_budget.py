"""How much of the time may be spent learning while requests wait for answers."""

from __future__ import annotations

REACH = 10.0
"""Seconds of work and waiting that the share is taken over."""


class Budget:
    """Keeps a worker to its share, and no lower.

    It gives way to answers for as long as it has had its share of the latest seconds; when it has
    not, it works on beside them.

    Args:
        share: of the time, from 0 to 1.

    >>> budget = Budget(0.5)
    >>> budget.work(1.0)
    >>> budget.owes()
    True
    >>> budget.wait(1.5)
    >>> budget.owes()
    False
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.worked = self.waited = 0.0

    def work(self, seconds: float) -> None:
        """Note time spent working."""
        self._fade(seconds)
        self.worked += seconds

    def wait(self, seconds: float) -> None:
        """Note time spent giving way."""
        self._fade(seconds)
        self.waited += seconds

    def owes(self) -> bool:
        """Whether it has had its share, and others come first."""
        return self.worked > self.share * (self.worked + self.waited)

    def _fade(self, seconds: float) -> None:
        kept = max(0.0, 1 - seconds / REACH)
        self.worked *= kept
        self.waited *= kept
