"""Source: the frozen model, as every table's first row."""

from __future__ import annotations

import torch

from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.registry import METHODS


@METHODS.register("source")
class Source(Method):
    """The model as it was deployed; nothing adapts.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("source").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="Source",
        paper="-",
        trains="nothing",
        tasks=frozenset({"classification", "segmentation"}),
        colours={"": -1},
    )
    rates = ()
    wide = True

    def objective(self, batch: Input) -> Objective:
        """One forward, no loss."""
        with torch.no_grad():
            return Objective(self.logits(batch))
