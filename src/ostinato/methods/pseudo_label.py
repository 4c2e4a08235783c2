"""Pseudo-label: cross-entropy with the model's own confident hard labels."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from ostinato.methods._settings import EntropyConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.consistency import pseudo_label_loss
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("pseudo_label")
class PseudoLabel(Method):
    """Train on what the model already believes, where it believes it firmly.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("pseudo_label").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="Pseudo-label",
        paper="Lee, ICML workshop 2013",
        trains="affine parameters of every normalisation layer",
        setting="none by its authors: ours",
        differences=(
            "no release for test-time adaptation of ViTs exists; the setting here (LayerNorm, SGD "
            "1e-4, labels from probability 0.9 on) is this library's"
        ),
        tasks=frozenset({"classification", "segmentation"}),
    )

    class Config(EntropyConfig):
        """Settings of Pseudo-label.

        >>> PseudoLabel.Config().predict
        'before'
        """

        lr: float = Field(1e-4, ge=0, description="learning rate")
        threshold: float = Field(
            0.9, ge=0, le=1, description="smallest probability that makes a label; 0 takes all"
        )

    presets = {
        "imagenet-c": {"optimizer": "sgd", "lr": 1e-4},
        "cifar100-c": {"optimizer": "adam", "lr": 3e-4},
        "acdc": {"optimizer": "adam", "lr": 7.5e-6},
    }
    wide = True

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def objective(self, batch: Input) -> Objective:
        """Cross-entropy with hard labels over confident images (or pixels)."""
        logits = self.logits(batch)
        loss, used = pseudo_label_loss(logits, self.config.threshold)
        return Objective(logits, loss, used)
