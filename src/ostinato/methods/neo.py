"""NEO: the classifier's input, re-centred at the origin."""

from __future__ import annotations

import torch
from pydantic import Field

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.ops.heads import final_features, find_head
from ostinato.ops.recentre import RunningMean, shifted_logits
from ostinato.registry import METHODS


@METHODS.register("neo")
class Neo(Method):
    """Subtract the running mean of the features from what the classifier sees.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("neo").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="NEO",
        paper="Murphy et al., ICLR 2026",
        trains="nothing",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "none known; the default is its authors' continual form (rate 0.1, from the origin), "
            "rate=None their form for a single domain"
        ),
        published="44.0 % error, ImageNet-C, ViT-B, raw input",
        measured=(
            "beats Source on a real ViT-Tiny under returning corruptions: 76.6 against 78.3 % error"
        ),
    )

    class Config(MethodConfig):
        """Settings of NEO.

        >>> Neo.Config().rate
        0.1
        """

        rate: float | None = Field(
            0.1,
            gt=0,
            le=1,
            description="share of a batch in the centre; None: the mean of all images",
        )

    presets = {"imagenet-c": {"rate": 0.1}, "single-domain": {"rate": None}}
    rates = ()

    def configure(self) -> None:
        """The centre; refuses a model without a linear classifier."""
        width = find_head(self.model).in_features
        centre = RunningMean(self.config.rate, zero=True, width=width)
        self.centre = self.track("centre", centre)

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """One forward: the batch moves the centre first, and is then seen from it."""
        features, logits = final_features(self.model, batch.pixels)
        self.centre.update(features)
        assert self.centre.value is not None
        return Objective(shifted_logits(self.model, logits, -self.centre.value, batch.classes))
