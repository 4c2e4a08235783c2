"""FOA-shift: the classifier's input, moved back to where source images have it."""

from __future__ import annotations

import torch
from pydantic import Field

from ostinato.methods._anchored import Anchored
from ostinato.methods.base import Input, MethodConfig, MethodInfo, Objective
from ostinato.ops.heads import final_features, select_classes
from ostinato.ops.recentre import RunningMean, shifted_logits
from ostinato.registry import METHODS


@METHODS.register("foa_shift")
class FoaShift(Anchored):
    """Add the difference of the source's and the target's mean feature.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("foa_shift").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="FOA-shift",
        paper="Niu et al., ICML 2024",
        trains="nothing",
        setting="ImageNet-C, ViT-B/16",
        differences="none known; a batch is moved by what earlier batches showed",
        published="none of its own known here: FOA's figure is with prompts as well",
        measured=(
            "does not beat Source on a real ViT-Tiny whose corruption changes every four "
            "batches (78.5 against 78.3 % error): its mean is then mostly of the corruption "
            "before"
        ),
        needs=frozenset({"prepared file"}),
    )

    class Config(MethodConfig):
        """Settings of FOA-shift.

        >>> FoaShift.Config().rate
        0.1
        """

        rate: float = Field(0.1, gt=0, le=1, description="share of a batch in the target's mean")

    presets = {"imagenet-c": {"rate": 0.1}}
    rates = ()

    def configure(self) -> None:
        """The source's mean, and the target's."""
        super().configure()
        self.target = self.track("target", RunningMean(self.config.rate, width=self.width))

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """One forward, shifted by what is known so far; then the batch is taken in."""
        features, logits = final_features(self.model, batch.pixels)
        known = self.target.value
        self.target.update(features)
        if known is None:
            return Objective(select_classes(logits, batch.classes))
        shift = self.source.mean - known
        return Objective(shifted_logits(self.model, logits, shift, batch.classes))
