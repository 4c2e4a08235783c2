"""Learning less and less: fast while a group is new, slowly once it has learned what it can.

An objective without labels is right about the direction and knows no end: what first repairs
features keeps on moving them, and after some hundred steps undoes its own work. So the rate of a
group falls with the updates it has had. Rates that fall as 1 / n still add up without bound, so a
group never stops following its domain.
"""

from __future__ import annotations

from ostinato.ops.snapshot import State


class Pace:
    """Per group: how many updates it has had, and what share of the full rate is left.

    Args:
        settle: updates after which a group learns half as fast; None for the same rate forever.

    >>> pace = Pace(settle=10)
    >>> pace.share(0)
    1.0
    >>> for _ in range(10):
    ...     pace.count(0)
    >>> pace.share(0), pace.share(1)
    (0.5, 1.0)
    """

    def __init__(self, settle: float | None) -> None:
        self.settle = settle
        self._updates: dict[int, int] = {}

    def share(self, group: int) -> float:
        """The share of the full rate that the group's next update has."""
        if self.settle is None:
            return 1.0
        return 1.0 / (1.0 + self._updates.get(group, 0) / self.settle)

    def count(self, group: int) -> None:
        """The group has had an update."""
        self._updates[group] = self._updates.get(group, 0) + 1

    def forget(self, group: int) -> None:
        """Drop a group that no longer exists."""
        self._updates.pop(group, None)

    def export_state(self) -> State:
        """The counts."""
        return State({}, {"updates": {str(group): n for group, n in self._updates.items()}})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        stored = state.values.get("updates", {})
        self._updates = {int(group): int(count) for group, count in stored.items()}
