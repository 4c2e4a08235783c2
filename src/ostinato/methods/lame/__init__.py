"""LAME: the frozen model's predictions, corrected to agree among near neighbours."""

from __future__ import annotations

import torch
from pydantic import Field

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.lame._laplacian import Affinity, affinity, laplacian_assignment
from ostinato.ops.heads import final_features, find_head, select_classes
from ostinato.registry import METHODS


@METHODS.register("lame")
class Lame(Method):
    """Adapt the output alone: nothing in the model moves.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("lame").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="LAME",
        paper="Boudiaf et al., CVPR 2022",
        trains="nothing",
        setting="ImageNet-C, ResNet-50",
        differences=(
            "returns log-probabilities; features are the classifier's input; a single image has "
            "itself as its neighbour (the release divides by zero)"
        ),
    )

    class Config(MethodConfig):
        """Settings of LAME.

        >>> Lame.Config().iterations
        100
        """

        affinity: Affinity = Field("rbf", description="knn, rbf or linear closeness of features")
        neighbours: int = Field(5, ge=1, description="neighbours of each image, or rbf's reach")
        symmetric: bool = Field(False, description="average the closeness of both directions")
        pull: float = Field(1.0, ge=0, description="weight of the neighbours")
        iterations: int = Field(100, ge=1, description="most iterations towards the fixed point")

    presets = {"imagenet-c": {"affinity": "rbf", "neighbours": 5}}
    rates = ()
    wide = True

    def configure(self) -> None:
        """Refuse a model without a linear classifier."""
        find_head(self.model)

    def objective(self, batch: Input) -> Objective:
        """One forward and the correction; no loss."""
        config = self.config
        with torch.no_grad():
            features, logits = final_features(self.model, batch.pixels)
            logits = select_classes(logits, batch.classes)
            with torch.autocast(logits.device.type, enabled=False):
                kernel = affinity(features, config.affinity, config.neighbours)
                if config.symmetric:
                    kernel = 0.5 * (kernel + kernel.T)
                corrected = laplacian_assignment(
                    logits, kernel, weight=config.pull, steps=config.iterations
                )
        return Objective(corrected)
