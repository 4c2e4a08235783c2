"""Holding the edge between two objectives: one is let go only while the other does not suffer.

Entropy sharpens features until it breaks them, and broken features no longer look like the
source's. So the alignment that a domain has reached is the measure: as long as it stays near its
best, entropy acts in full; as it gets worse, entropy fades, and alignment alone pulls back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.ops.snapshot import State


class Leash:
    """Per group: how much of the second objective is allowed, from the first one's value.

    Args:
        slack: share above the best value (a moving average's) at which nothing is allowed.
        rate: of the moving average.

    >>> leash = Leash(slack=0.5, rate=1.0)
    >>> [round(float(leash.allow(0, torch.tensor(v))), 2) for v in (2.0, 1.0, 1.25, 2.0)]
    [1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, slack: float, rate: float = 0.2) -> None:
        self.slack = slack
        self.rate = rate
        self._average: dict[int, Tensor] = {}
        self._best: dict[int, Tensor] = {}

    def allow(self, group: int, value: Tensor) -> Tensor:
        """Take in the first objective's value; a factor in [0, 1] for the second one."""
        value = value.detach().float()
        # Loaded values may still be on another device.
        known = self._average.get(group, value).to(value.device)
        average = known + self.rate * (value - known)
        best = torch.minimum(average, self._best.get(group, average).to(value.device))
        self._average[group], self._best[group] = average, best
        # Both stay on the device: no number has to be waited for.
        return (1 - (average / best - 1) / self.slack).clamp(0, 1)

    def forget(self, group: int) -> None:
        """Drop a group that no longer exists, or that starts anew."""
        self._average.pop(group, None)
        self._best.pop(group, None)

    def export_state(self) -> State:
        """Averages and best values."""
        tensors = {f"average.{group}": value for group, value in self._average.items()}
        return State(tensors | {f"best.{group}": value for group, value in self._best.items()})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        self._average, self._best = (
            {
                int(name.split(".")[1]): value.detach().clone()
                for name, value in state.tensors.items()
                if name.startswith(kind)
            }
            for kind in ("average.", "best.")
        )
