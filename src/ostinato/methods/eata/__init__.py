"""EATA: entropy of reliable, non-redundant samples, held near the source by Fisher information."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import ConfigError
from ostinato.methods._settings import EntropyConfig
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.contract import Need
from ostinato.methods.eata._fisher import anchor_penalty, fisher_diagonal
from ostinato.models import VisionModel
from ostinato.ops.classmean import ClassMean
from ostinato.ops.consistency import masked_mean
from ostinato.ops.losses import entropy_threshold, softmax_entropy
from ostinato.ops.snapshot import State
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("eata")
class Eata(Method):
    """Adapt on samples that are reliable and tell something new; forget little.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("eata").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="EATA",
        paper="Niu et al., ICML 2022",
        trains="affine parameters of every normalisation layer",
        setting="ImageNet-C, ResNet-50",
        differences="LayerNorm in place of batch norm; fisher_alpha=0 gives ETA, without the file",
        needs=frozenset({"prepared file"}),
    )

    class Config(EntropyConfig):
        """Settings of EATA.

        >>> Eata.Config().predict
        'before'
        """

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        kappa: float = Field(0.4, gt=0, description="entropy bound, times ln C")
        redundancy: float = Field(
            0.05, ge=0, description="cosine with the mean prediction below which a sample is new"
        )
        fisher_alpha: float = Field(2000.0, ge=0, description="weight of the Fisher term; 0 is ETA")
        fisher_images: int = Field(2000, ge=1, description="source images the Fisher term rests on")
        fisher_batch: int = Field(64, ge=1, description="images per squared gradient")

    presets = {"imagenet-c": {"lr": 2.5e-4, "redundancy": 0.05, "fisher_alpha": 2000.0}}
    wide = True

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """A prepared file, where the Fisher term has a weight."""
        weight = getattr(config, "fisher_alpha", 0.0)
        return frozenset({"prepared file"}) if weight > 0 else frozenset()

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """The Fisher diagonal of source images under the model's own labels."""
        parameters = norm_parameters(model.base)
        batches = images[: config.fisher_images].split(config.fisher_batch)
        return State(fisher_diagonal(model, parameters, batches))

    def configure(self) -> None:
        """The mean prediction, and the Fisher diagonal where it is used."""
        self.mean = self.track("mean", ClassMean(momentum=0.9))
        self._fisher: dict[str, Tensor] | None = None
        if self.config.fisher_alpha > 0:
            assert self.resources.prepared is not None
            self._fisher = _fitting_fisher(self.resources.prepared, self.trainable(), self.name)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def objective(self, batch: Input) -> Objective:
        """Weighted entropy of the samples that pass both filters, plus the Fisher term."""
        logits = self.logits(batch)
        entropy = softmax_entropy(logits)
        bound = entropy_threshold(self.config.kappa, logits.shape[1])
        probabilities = logits.detach().float().softmax(1)
        mean = self.mean.get(logits.shape[1], logits.device)
        keep = (entropy.detach() < bound) & is_new(probabilities, mean, self.config.redundancy)
        self.mean.update(probabilities[keep])
        loss = masked_mean(reliability(entropy, bound) * entropy, keep)
        if self._fisher is not None and self.weights is not None:
            weights = self.weights
            penalty = anchor_penalty(weights.parameters, weights.source, self._fisher)
            loss = loss + self.config.fisher_alpha * penalty
        return Objective(logits, loss, keep.sum())


def is_new(probabilities: Tensor, mean: Tensor | None, bound: float) -> Tensor:
    """Which predictions differ from the mean prediction; all of them before there is one."""
    if mean is None:
        return torch.ones(len(probabilities), dtype=torch.bool, device=probabilities.device)
    return F.cosine_similarity(probabilities, mean.unsqueeze(0)).abs() < bound


def reliability(entropy: Tensor, bound: float) -> Tensor:
    """exp(bound − entropy): surer samples count more. Carries no gradient."""
    return torch.exp(bound - entropy.detach())


def _fitting_fisher(
    prepared: State, parameters: dict[str, nn.Parameter], name: str
) -> dict[str, Tensor]:
    """The Fisher diagonal by name, or an error that says which file is wanted."""
    fisher = {}
    for key, parameter in parameters.items():
        given = prepared.tensors.get(key)
        if given is None or given.shape != parameter.shape:
            raise ConfigError(
                f"The prepared file has no Fisher values for {key!r} of shape "
                f"{tuple(parameter.shape)}; it is another model's or another method's. Run "
                f"'ostinato prepare {name}' again."
            )
        fisher[key] = given.to(parameter.device)
    return fisher
