"""SPA: weaker views of an image learn from the image itself, through a predictor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.methods._settings import SgdConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.methods.spa._weakened import PatchNoise, drop_low_frequencies, surer_divergence
from ostinato.ops.heads import find_head
from ostinato.ops.optim import OptimizerState, make_optimizer
from ostinato.ops.tokens import find_patches
from ostinato.ops.trainable import Weights, norm_parameters
from ostinato.registry import METHODS


@METHODS.register("spa")
class Spa(Method):
    """Bring predictions of two weak views to the clean one's, where that is surer.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("spa").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="SPA",
        paper="Niu et al., ICML 2025",
        trains="affine parameters of every normalisation layer, and a predictor",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "views are made in pixels of [-1, 1] whatever the model's own normalisation; noise "
            "has the model's patches; a batch where no image is surer moves nothing; not combined "
            "with TENT, ETA or EATA, as the release can"
        ),
        published="35.4 % error, ImageNet-C, ViT-B, normalised input, never reset",
        measured=(
            "does not beat Source on a real ViT-Tiny at its authors' rate for a ViT-B (81.9 "
            "against 78.3 % error); at a hundredth of it it does, by little (77.9)"
        ),
    )

    class Config(SgdConfig):
        """Settings of SPA.

        >>> Spa.Config().noise_lr
        1.0
        """

        lr: float = Field(0.01, ge=0, description="learning rate of the norms")
        predictor_lr: float = Field(0.05, ge=0, description="learning rate of the predictor")
        dropped: float = Field(0.2, ge=0, lt=1, description="share of low frequencies dropped")
        noise: float = Field(0.4, gt=0, le=1, description="mean share of noise in a patch")
        noise_lr: float = Field(1.0, ge=0, description="learning rate of where the noise goes")

    presets = {"imagenet-c": {"lr": 0.01}}
    rates = ("lr", "predictor_lr")

    def configure(self) -> None:
        """The predictor, the identity at first, and the noise."""
        self.head = find_head(self.model)
        eye = torch.eye(self.head.in_features, device=self.model.device)
        self.predictor = nn.Parameter(eye)
        self.track("predictor", Weights({"predictor": self.predictor}))
        self.second = make_optimizer(
            self.config.optimizer,
            [self.predictor],
            lr=self.config.predictor_lr,
            weight_decay=self.config.weight_decay,
            momentum=self.config.momentum,
        )
        self.track("second", OptimizerState(self.second))
        size = find_patches(self.model).size
        noise = PatchNoise(size, self.config.noise, self.config.noise_lr)
        self.noise = self.track("noise", noise)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def objective(self, batch: Input) -> Objective:
        """The divergence of both weak views."""
        clean = self.logits(batch)
        draws = self.random.generator
        views = (
            drop_low_frequencies(batch.pixels, self.config.dropped, draws),
            self.noise.view(batch.pixels, draws),
        )
        loss, used = clean.new_zeros(()), clean.new_zeros((), dtype=torch.long)
        for view in views:
            with self._predicting():
                weak = self.logits(batch, view)
            part, surer = surer_divergence(weak, clean)
            loss, used = loss + part, torch.maximum(used, surer)
        return Objective(clean, loss, used)

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step of the norms and the predictor down, one of the noise up."""
        assert self.optimizer is not None
        moved = self.descend(objective, [self.optimizer, self.second])
        if moved:
            self.noise.ascend()
        return moved

    def trained(self) -> int:
        """The norms and the predictor; not where the noise goes, a number a patch."""
        return super().trained() + self.predictor.numel()

    def added(self, domains: int = 1) -> int:
        """The predictor."""
        return self.predictor.numel()

    @contextmanager
    def _predicting(self) -> Iterator[None]:
        """Features go through the predictor on their way into the classifier."""

        def through(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
            return (F.linear(inputs[0], self.predictor), *inputs[1:])

        handle = self.head.register_forward_pre_hook(through)
        try:
            yield
        finally:
            handle.remove()
