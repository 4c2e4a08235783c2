"""A moving average of predicted class probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State


class ClassMean:
    """The mean prediction of the recent past, in the label space in use.

    Args:
        momentum: share of the past in an update.
        uniform: start from the uniform distribution; otherwise the first update is the start.

    >>> mean = ClassMean(momentum=0.9)
    >>> mean.get(2) is None
    True
    >>> mean.update(torch.tensor([[1.0, 0.0]]))
    >>> mean.update(torch.tensor([[0.0, 1.0]]))
    >>> [round(p, 2) for p in mean.get(2).tolist()]
    [0.9, 0.1]
    """

    def __init__(self, momentum: float = 0.9, *, uniform: bool = False) -> None:
        self.momentum = momentum
        self.uniform = uniform
        self._value: Tensor | None = None

    def get(self, classes: int, device: torch.device | None = None) -> Tensor | None:
        """The mean over so many classes; another label space starts afresh."""
        if self._value is not None and len(self._value) == classes:
            return self._value.to(device)
        return torch.full((classes,), 1 / classes, device=device) if self.uniform else None

    def update(self, probabilities: Tensor) -> None:
        """Take in (n, C) predictions; none of them change nothing."""
        if len(probabilities) == 0:
            return
        new = probabilities.detach().float().mean(0)
        past = self.get(len(new), new.device)
        keep = self.momentum
        self._value = new if past is None else keep * past + (1 - keep) * new

    def export_state(self) -> State:
        """The mean, where there is one, and over how many classes it is."""
        if self._value is None:
            return State({}, {"classes": 0})
        return State({"mean": self._value}, {"classes": len(self._value)})

    def expected(self, state: State) -> Expected:
        """A mean of probabilities over as many classes as it says; none where it says none."""
        classes = int(state.values["classes"])
        mean = {"mean": Like((classes,), low=0, high=1 + 1e-3)} if classes else {}
        return Expected(mean, {"classes": Kind.count()})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        given = state.tensors.get("mean")
        self._value = None if given is None else given.detach().clone()
