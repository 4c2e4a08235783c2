"""COME: entropy of an opinion that may say "I do not know", in place of softmax entropy."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.ops.optim import OptimizerName
from ostinato.ops.rates import scale_rate
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


class ComeConfig(MethodConfig):
    """Settings of COME."""

    optimizer: OptimizerName = Field("sgd", description="adam, adamw or sgd")
    lr: float = Field(1e-3, ge=0, description="learning rate for 64 images; follows the batch")
    predict: Literal["before", "after"] = Field("before", description="prediction's time")


@METHODS.register("come")
class Come(Method):
    """TENT with the entropy of a Dirichlet opinion, whose total evidence is held."""

    name = "come"
    Config = ComeConfig
    info = MethodInfo(
        title="COME (TENT)",
        paper="Zhang et al., ICLR 2025",
        trains="affine parameters of every normalisation layer",
        predicts="before",
        differences=(
            "on TENT alone (the release puts the same objective into EATA and SAR too); the mass "
            "of not knowing is as many units as there are classes in use"
        ),
    )
    presets = {"imagenet-c": {"lr": 1e-3}}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def objective(self, batch: Input) -> Objective:
        """Mean entropy of the opinions."""
        logits = self.logits(batch)
        return Objective(logits, opinion_entropy(logits).mean())

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step at the batch's own rate."""
        assert self.optimizer is not None
        scale_rate(self.optimizer, self.config.lr, len(batch))
        return super().update(batch, objective)


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy over C beliefs exp(x_c) / (Σ exp(x) + C) and the rest, C / (Σ exp(x) + C).

    The length of the logits carries no gradient: an opinion changes by its direction alone, so
    that no image is made surer by scaling.

    >>> round(float(opinion_entropy(torch.zeros(1, 4))), 4)  # half unknown, an eighth each
    1.3863
    """
    x = logits.float()
    length = x.norm(dim=1, keepdim=True).clamp_min(1e-12)
    x = x / length * length.detach()
    unknown = torch.full_like(x[:, :1], x.shape[1]).log()
    opinion = torch.cat([x, unknown], 1).softmax(1) + 1e-7
    return -(opinion * opinion.log()).sum(1)
