"""Moving the classifier's input: a running mean of features, and logits after a shift."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.heads import find_head, select_classes
from ostinato.ops.snapshot import State


class RunningMean:
    """A mean of the features seen, over all of them or over the recent past.

    Args:
        rate: share of the newest batch; None weighs every image alike.
        zero: start at the origin; otherwise the first batch is the start.
        width: of the features, where it is known before the first of them.

    >>> mean = RunningMean(rate=None)
    >>> mean.update(torch.tensor([[1.0]]))
    >>> mean.update(torch.tensor([[4.0], [4.0]]))
    >>> mean.value.tolist()
    [3.0]
    """

    def __init__(self, rate: float | None, *, zero: bool = False, width: int | None = None) -> None:
        self.rate = rate
        self.width = width
        self.zero = zero
        self.value: Tensor | None = None
        self.images = 0

    def update(self, features: Tensor) -> None:
        """Take in (B, D)."""
        new = features.detach().float().mean(0)
        self.images += len(features)
        share = len(features) / self.images if self.rate is None else self.rate
        if self.value is None and not self.zero:
            self.value = new
        else:
            past = torch.zeros_like(new) if self.value is None else self.value
            self.value = (1 - share) * past + share * new

    def forget(self) -> None:
        """Start over."""
        self.value, self.images = None, 0

    def export_state(self) -> State:
        """The mean, where there is one, and what it rests on."""
        return State({} if self.value is None else {"mean": self.value}, {"images": self.images})

    def expected(self, state: State) -> Expected:
        """A mean as wide as the features, once there are images."""
        width = ("width",) if self.width is None else (self.width,)
        begun = state.values["images"] != 0
        return Expected({"mean": Like(width)} if begun else {}, {"images": Kind.count()})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        given = state.tensors.get("mean")
        self.value = None if given is None else given.detach().clone()
        self.images = state.values["images"]


def shifted_logits(
    model: nn.Module, logits: Tensor, shift: Tensor, classes: Tensor | None
) -> Tensor:
    """Logits as they would be had `shift` (D,) been added to the input of the last linear map.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 3))
    >>> x, shift = torch.rand(1, 2), torch.tensor([0.5, -1.0])
    >>> bool(torch.allclose(shifted_logits(net, net(x), shift, None), net(x + shift), atol=1e-6))
    True
    """
    with torch.autocast(logits.device.type, enabled=False):
        change = find_head(model).weight.float() @ shift.float()
        return select_classes(logits.float() + change, classes)
