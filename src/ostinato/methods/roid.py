"""ROID: weighted soft likelihood ratio, consistency, weight ensembling and prior correction."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.methods._settings import SgdConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.augment import cotta_view
from ostinato.ops.classmean import ClassMean
from ostinato.ops.consistency import symmetric_cross_entropy
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("roid")
class Roid(Method):
    """Learn from certain and diverse samples, and drift back to the source a little each step.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("roid").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="ROID",
        paper="Marsden et al., WACV 2024",
        trains="affine parameters of every normalisation layer",
        setting="ImageNet-C, ResNet-50, Swin-B and ViT-B/16",
        differences=(
            "weights are one where a batch has no spread to normalise by (a single image); every "
            "image has its own draw of the view (the release draws once per batch); the prior "
            "multiplies the logits, as in the release"
        ),
    )

    class Config(SgdConfig):
        """Settings of ROID.

        >>> Roid.Config().prior_correction
        True
        """

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        nesterov: bool = Field(True, description="Nesterov's form of the momentum, for sgd")
        temperature: float = Field(1 / 3, gt=0, description="of the sample weights")
        ensemble: float = Field(0.99, ge=0, le=1, description="share of the adapted weights kept")
        mean_momentum: float = Field(0.9, ge=0, le=1, description="of the mean prediction")
        consistency: bool = Field(True, description="agree with an augmented view")
        prior_correction: bool = Field(True, description="correct predictions by the batch's prior")

    presets = {"imagenet-c": {"lr": 2.5e-4}}

    def configure(self) -> None:
        """The mean prediction, uniform at first."""
        mean = ClassMean(self.config.mean_momentum, uniform=True)
        self.mean = self.track("mean", mean)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def objective(self, batch: Input) -> Objective:
        """Weighted likelihood ratio plus weighted consistency, summed over batch size."""
        logits = self.logits(batch).float()
        probabilities = logits.detach().softmax(1)
        mean = self.mean.get(logits.shape[1], logits.device)
        assert mean is not None
        weights = _sample_weights(logits.detach(), mean, self.config.temperature)
        self.mean.update(probabilities)
        loss = (weights * _soft_likelihood_ratio(logits)).sum() / len(batch)
        if self.config.consistency:
            chosen = weights > 0
            view = _roid_view(batch.pixels, self.random.generator)[chosen]
            distance = symmetric_cross_entropy(self.logits(batch, view), logits[chosen])
            loss = loss + (weights[chosen] * distance).sum() / len(batch)
        corrected = correct_prior(logits.detach()) if self.config.prior_correction else logits
        return Objective(corrected, loss, (weights > 0).sum())

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step, then the weights' average with the source's."""
        assert self.weights is not None
        moved = super().update(batch, objective)
        with torch.no_grad():
            adapted = [parameter.data for parameter in self.weights.parameters.values()]
            source = [self.weights.source[name] for name in self.weights.parameters]
            torch._foreach_lerp_(adapted, source, 1 - self.config.ensemble)
        return moved


def _roid_view(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """The release's view: strong jitter, what moves in is mirrored, neither blur nor noise."""
    return cotta_view(pixels, generator, padding="reflect", grain=False)


def _soft_likelihood_ratio(logits: Tensor, clip: float = 0.99) -> Tensor:
    """−Σ p · log(p / (1 − p)): unlike entropy, its gradient does not vanish for sure samples."""
    p = logits.float().softmax(1).clamp(max=clip)
    return -(p * torch.log(p / (1 - p) + 1e-5)).sum(1)


def _sample_weights(logits: Tensor, mean: Tensor, temperature: float) -> Tensor:
    """exp(diversity · certainty / temperature), zero for the less diverse samples.

    Diversity is one minus the cosine with the mean prediction, certainty the negative entropy,
    both brought to [0, 1] within the batch.
    """
    diversity = _spread(1 - F.cosine_similarity(mean.unsqueeze(0), logits.float().softmax(1)))
    certainty = _spread(-softmax_entropy(logits))
    weights = torch.exp(diversity * certainty / temperature)
    return torch.where(diversity < diversity.mean(), 0.0, weights)


def _spread(values: Tensor) -> Tensor:
    """Brought to [0, 1] by the smallest and the largest; zeros where they are equal."""
    low, high = values.amin(), values.amax()
    return (values - low) / (high - low).clamp_min(1e-12)


def correct_prior(logits: Tensor) -> Tensor:
    """Logits times the batch's smoothed mean prediction."""
    prior = logits.softmax(1).mean(0)
    smooth = max(1 / logits.shape[0], 1 / logits.shape[1]) / prior.amax()
    return logits * (prior + smooth) / (1 + smooth * logits.shape[1])
