"""BN statistics: batch norms see the batch's own mean and variance."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ostinato.errors import ConfigError
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.registry import METHODS


class BnConfig(MethodConfig):
    """Settings of BN statistics."""

    prior: int = Field(0, ge=0, description="source images that the source's statistics count as")


@METHODS.register("bn")
class Bn(Method):
    """Replace the running statistics of every batch norm by those of the batch."""

    name = "bn"
    rates = ()
    Config = BnConfig
    info = MethodInfo(
        title="BN statistics",
        paper="Nado et al., 2020; Schneider et al., NeurIPS 2020",
        trains="nothing",
        predicts="before",
        tasks=frozenset({"classification", "segmentation"}),
        setting="ImageNet-C, ResNet-50",
        differences=(
            "prior=0 is the batch alone, prior=16 and the like the second paper's mix for small "
            "batches; a channel with a single value keeps the source's statistics"
        ),
        norms="batch",
        measured=(
            "has no row: it is for models with batch norm, and the tables' real model has none"
        ),
    )
    presets = {"imagenet-c": {"prior": 0}, "small-batch": {"prior": 16}}

    def configure(self) -> None:
        """A hook on every batch norm; refuses a model without any."""
        self.images = 1
        found = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        norms = [m for m in found if m.running_mean is not None]
        if not norms:
            raise ConfigError(
                "bn replaces the running statistics of batch norms, and this model has none: use "
                "a convolutional network with BatchNorm, or for a transformer 'neo' or 'tent'."
            )
        self._handles = [norm.register_forward_hook(self._renormed) for norm in norms]

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """One forward."""
        self.images = len(batch)
        return Objective(self.logits(batch))

    def release(self) -> None:
        """Take the hooks out."""
        for handle in getattr(self, "_handles", ()):
            handle.remove()

    def _renormed(self, norm: _BatchNorm, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        x = inputs[0]
        if x.numel() // x.shape[1] < 2:
            return output
        mean, variance = mixed_statistics(x.float(), norm, self.images, self.config.prior)
        scaled = F.batch_norm(x.float(), mean, variance, norm.weight, norm.bias, eps=norm.eps)
        return scaled.to(output.dtype)


def mixed_statistics(x: Tensor, norm: nn.Module, images: int, prior: int) -> tuple[Tensor, Tensor]:
    """The batch's mean and variance by channel, and the source's with the weight of `prior` images.

    >>> norm = nn.BatchNorm1d(1)
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> [float(v) for v in mixed_statistics(x, norm, 2, 2)]  # the source has 0 and 1
    [1.0, 1.0]
    """
    others = [dim for dim in range(x.ndim) if dim != 1]
    variance, mean = torch.var_mean(x, others, correction=0)
    share = images / (images + prior)
    known: Any = norm
    return (
        torch.lerp(known.running_mean.float(), mean, share),
        torch.lerp(known.running_var.float(), variance, share),
    )
