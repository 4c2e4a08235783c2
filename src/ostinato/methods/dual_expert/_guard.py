"""Noticing collapse without labels: predictions that lose their diversity.

A collapsing model predicts fewer and fewer classes, so the entropy of its mean prediction falls.
The guard keeps that mean as a moving average per group (a domain's expert), compares its entropy
with the best it has been, and calls a group bad when too much of it is lost.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.losses import distribution_entropy
from ostinato.ops.snapshot import State

Verdict = Literal["learning", "good", "unsure", "bad"]


class CollapseGuard:
    """Per group: moving mean prediction, its best entropy so far, good batches and bad ones.

    Args:
        window: images over which the mean prediction is averaged.
        tolerance: share of the best diversity (entropy of the mean prediction) below which a
            group is bad. Diversity is unknown until `window` images were seen.

    >>> import torch
    >>> guard = CollapseGuard(window=4, tolerance=0.7)
    >>> even = torch.full((4,), 0.25)
    >>> guard.observe(0, even, images=4), guard.observe(0, even, images=4)
    ('learning', 'good')
    >>> guard.observe(0, torch.tensor([1.0, 0, 0, 0]), images=4)
    'bad'
    """

    def __init__(self, window: int = 256, tolerance: float = 0.85) -> None:
        self.window = window
        self.tolerance = tolerance
        self._means: dict[int, Tensor] = {}
        self._seen: dict[int, int] = {}
        self._best: dict[int, float] = {}
        self._good: dict[int, int] = {}
        self._strikes: dict[int, int] = {}

    def observe(self, group: int, marginal: Tensor, images: int) -> Verdict:
        """Take in a batch's mean prediction and judge the group."""
        marginal = marginal.detach()
        known = self._means.get(group)
        known = known if known is None else known.to(marginal.device)  # a loaded one is elsewhere
        if known is not None and known.shape != marginal.shape:
            known = None  # another label space starts afresh, its yardstick too
            self._best.pop(group, None)
        if known is None:
            self._means[group], self._seen[group] = marginal, images
            return "learning"
        # A plain mean until the window is full, a moving one afterwards.
        rate = images / min(self._seen[group] + images, max(self.window, images))
        self._means[group] = known + min(rate, 1.0) * (marginal - known)
        self._seen[group] += images
        if self._seen[group] < self.window:
            return "learning"
        diversity = float(distribution_entropy(self._means[group]))
        self._best[group] = max(diversity, self._best.get(group, 0.0))
        share = diversity / max(self._best[group], 1e-12)
        if share < self.tolerance:
            return "bad"
        # Half-way down is no state to come back to.
        if share < (1 + self.tolerance) / 2:
            return "unsure"
        self._good[group] = self.good(group) + 1
        return "good"

    def good(self, group: int) -> int:
        """How many batches of this group were good since its last strike."""
        return self._good.get(group, 0)

    def strike(self, group: int) -> int:
        """Count a rollback and start averaging anew; returns how many there were.

        The best diversity stays the yardstick: a group that collapses again while its mean is
        still being gathered would otherwise be measured by its own collapse, and be kept as good.
        """
        self._strikes[group] = self.strikes(group) + 1
        for known in (self._means, self._seen, self._good):
            known.pop(group, None)
        return self._strikes[group]

    def strikes(self, group: int) -> int:
        """How often this group went bad."""
        return self._strikes.get(group, 0)

    def forget(self, group: int) -> None:
        """Drop a group that no longer exists."""
        for known in (self._means, self._seen, self._best, self._good, self._strikes):
            known.pop(group, None)

    def export_state(self) -> State:
        """Everything above."""
        text = lambda known: {str(k): v for k, v in known.items()}  # noqa: E731
        values = {"seen": self._seen, "best": self._best}
        values |= {"good": self._good, "strikes": self._strikes}
        values |= {"forms": {group: Like.form(mean) for group, mean in self._means.items()}}
        return State(
            {str(k): v for k, v in self._means.items()},
            {name: text(known) for name, known in values.items()},
        )

    def expected(self, state: State) -> Expected:
        """A distribution and a count for each group that is watched, and what is known of it."""
        forms = state.values["forms"]
        means = {str(name): Like.told(one, 0, 1.001) for name, one in forms.items()}
        if any(len(mean.shape) != 1 for mean in means.values()):
            raise ValueError("a mean prediction has one number a class")
        values = {
            "seen": Kind.mapped(Kind.count(1), set(means)),
            "best": Kind.mapped(Kind.number(low=0)),
        }
        values |= {"forms": Kind.mapped(Kind.form())}
        return Expected(
            means,
            values | {"good": Kind.mapped(Kind.count()), "strikes": Kind.mapped(Kind.count(1))},
        )

    def import_state(self, state: State) -> None:
        """Continue from there."""
        numbers = lambda name: {int(k): v for k, v in state.values.get(name, {}).items()}  # noqa: E731
        self._means = {int(k): v.detach().clone() for k, v in state.tensors.items()}
        self._seen, self._best = numbers("seen"), numbers("best")
        self._good, self._strikes = numbers("good"), numbers("strikes")
