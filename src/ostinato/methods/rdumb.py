"""RDumb: ETA that starts over from the source model every thousand steps."""

from __future__ import annotations

from pydantic import Field

from ostinato.methods._restart import restart
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.methods.eata import Eata
from ostinato.registry import METHODS
from ostinato.types import Decision


@METHODS.register("rdumb")
class RDumb(Eata):
    """Adapt like ETA, and forget everything at fixed intervals.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("rdumb").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="RDumb",
        paper="Press et al., NeurIPS 2023",
        trains="affine parameters of every normalisation layer",
        setting="ImageNet-C and CCC, ResNet-50",
        differences="LayerNorm in place of batch norm",
    )

    class Config(Eata.Config):
        """Settings of RDumb.

        >>> RDumb.Config().reset_every
        1000
        """

        fisher_alpha: float = Field(0.0, ge=0, description="weight of the Fisher term; 0 is ETA")
        reset_every: int = Field(1000, ge=1, description="batches between resets")

    presets = {"imagenet-c": {"lr": 2.5e-4, "redundancy": 0.05, "reset_every": 1000}}

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Start over when the interval is full."""
        if (self.counters["steps"] + 1) % self.config.reset_every == 0:
            restart(self, "weights", "optimizer", "mean")
            self.events.append("reset to the source model")
