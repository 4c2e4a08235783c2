"""What methods share that compare the classifier's input with the source's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ostinato.methods._anchor import collect_anchor, read_anchor
from ostinato.methods.base import Method
from ostinato.models import VisionModel
from ostinato.ops.heads import find_head
from ostinato.ops.snapshot import State


class Anchored(Method):
    """A method that is prepared with the moments of the source's final features.

    Its settings may have `source_kappa`: the entropy, in ln C, below which source images count.

    Attributes:
        width: of the classifier's input.
        source: the moments.
    """

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Moments of the source's final features; labels are not used."""
        return collect_anchor(model, images, kappa=getattr(config, "source_kappa", None))

    def configure(self) -> None:
        """Read the moments."""
        assert self.resources.prepared is not None
        self.width = find_head(self.model.base).in_features
        self.source = read_anchor(self.resources.prepared, self.width, self.model.device)
