"""What methods without gradients share: moments of every block, and the classifier's input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ostinato.methods._levels import Levels, collect_levels, read_levels
from ostinato.methods.base import Input, Method
from ostinato.models import VisionModel
from ostinato.ops.heads import find_head, select_classes
from ostinato.ops.recentre import RunningMean, shifted_logits
from ostinato.ops.snapshot import State


class Levelled(Method):
    """A method that compares class features of all blocks with the source's.

    Attributes:
        levels: reads the features.
        moments: the source's.
        target: the running mean of the classifier's input.
    """

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Moments of the class features after every block; labels are not used."""
        return collect_levels(model, images.split(50))

    def configure(self) -> None:
        """The source's moments, and the target's mean, of which nothing is known yet."""
        assert self.resources.prepared is not None
        self.levels = Levels(self.model)
        self.moments = read_levels(self.resources.prepared, self.model, self.model.device)
        self.width = find_head(self.model).in_features
        self.target = self.track("target", RunningMean(self.config.rate, width=self.width))

    def recentred(self, batch: Input, logits: Tensor, known: Tensor | None) -> Tensor:
        """Logits as they would be with the target's mean, as it was known, on the source's."""
        if known is None:
            return select_classes(logits, batch.classes)
        shift = self.moments.mean[-self.width :] - known
        return shifted_logits(self.model, logits, shift, batch.classes)
