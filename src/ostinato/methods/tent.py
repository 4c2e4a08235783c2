"""TENT, continual: entropy minimisation on the normalisation layers, never reset."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from ostinato.methods._settings import EntropyConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.consistency import pseudo_label_loss
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("tent")
class Tent(Method):
    """Minimise the mean entropy of all predictions over the affine norm parameters.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("tent").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="TENT (continual)",
        paper="Wang et al., ICLR 2021",
        trains="affine parameters of every normalisation layer",
        setting="ImageNet-C, ViT-B/16, from ViDA's release (its own: ResNet-50, lr 2.5e-4)",
        differences=(
            "LayerNorm in place of batch norm, as all ViT ports have it; not episodic; plain "
            "momentum, as its authors have it (ViDA's release sets Nesterov's: nesterov=True)"
        ),
        tasks=frozenset({"classification", "segmentation"}),
        colours={"": 1},
    )

    class Config(EntropyConfig):
        """Settings of TENT.

        >>> Tent.Config().predict
        'before'
        """

        lr: float = Field(1e-4, ge=0, description="learning rate")
        labels: Literal["soft", "hard"] = Field(
            "soft", description="entropy, or cross-entropy with the prediction's own hard labels"
        )

    presets = {
        "imagenet-c": {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9},
        "cifar100-c": {"optimizer": "adam", "lr": 3e-4},
        "acdc": {"optimizer": "adam", "lr": 7.5e-6, "labels": "hard"},
    }
    wide = True

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def objective(self, batch: Input) -> Objective:
        """Mean entropy over all images (or pixels); its hard-label form for segmentation."""
        logits = self.logits(batch)
        if self.config.labels == "hard":
            return Objective(logits, *pseudo_label_loss(logits))
        return Objective(logits, softmax_entropy(logits).mean())
