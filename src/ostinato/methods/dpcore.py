"""DPCore: a coreset of prompts, each with the feature statistics it was learned for."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._anchor import Moments, prompted_features
from ostinato.methods._anchored import Anchored
from ostinato.methods._pools import PromptPool
from ostinato.methods._settings import PromptsConfig
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.ops.heads import select_classes
from ostinato.ops.prompts import fresh_prompt
from ostinato.registry import METHODS
from ostinato.types import Decision


def _coreset_weights(pool: PromptPool, moments: Moments, temperature: float) -> Tensor:
    """softmax(−gap / τ) over the coreset's stored statistics."""
    means, stds = pool.both()[0].chunk(2, 1)
    gaps = (moments.mean - means).norm(dim=1) + (moments.std - stds).norm(dim=1)
    shares: Tensor = (-gaps / temperature).softmax(0)
    return shares


@METHODS.register("dpcore")
class DPCore(Anchored):
    """Align a batch's features with the source's by prompt tokens, and keep what was learned.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("dpcore").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="DPCore",
        paper="Zhang et al., ICML 2025",
        trains="prompt tokens",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "a known domain's statistics follow the batch's without prompts and in both "
            "directions, as in the paper (the release stores those with prompts, and lets a spread "
            "grow only); a single image has the source's spread; source moments are those of the "
            "classifier's input, over images with an entropy below 0.355 ln C (for 1,000 classes "
            "the release's bound), or over all where fewer than two are; the coreset is bounded "
            "(the release's is not); in bf16 the many steps on a new domain stay in fp32, since "
            "they would amplify rounding"
        ),
        predicts="last",
        needs=frozenset({"prepared file"}),
    )

    class Config(PromptsConfig):
        """Settings of DPCore.

        >>> DPCore.Config().source_kappa
        0.355235172698916
        """

        ratio: float = Field(
            0.8, gt=0, description="rho: known if prompts cut the gap to this share"
        )
        temperature: float = Field(3.0, gt=0, description="tau of the coreset's weights")
        rate: float = Field(0.999, gt=0, le=1, description="alpha: how far a known domain follows")
        max_prompts: int = Field(
            100, ge=1, description="pairs kept; the two nearest are fused above"
        )
        source_kappa: float = Field(
            0.5 - 1 / math.log(1000),
            gt=0,
            description="entropy of source images that count, in ln C",
        )

    presets = {"imagenet-c": {"lr": 0.1, "new_steps": 50}, "cifar100-c": {"lr": 0.1}}
    example = {"new_steps": 3}

    def configure(self) -> None:
        """The source's moments, a fresh prompt and an empty coreset."""
        super().configure()
        self.start = fresh_prompt(
            self.model.base, self.config.prompts, generator=self.random.generator
        )
        self.prompt = nn.Parameter(self.start.clone())
        self.coreset = self.track("coreset", PromptPool())
        self.is_new = False

    def trainable(self) -> dict[str, nn.Parameter]:
        """The prompt in use."""
        return {"prompt": self.prompt}

    @torch.no_grad()
    def route(self, batch: Input) -> Decision:
        """Known where the coreset's blend of prompts brings the batch close enough."""
        self.is_new = False
        self.plain, _ = self._forward(batch, None)
        self.blend: Tensor | None = None
        before = float(self.plain.gap(self.source))
        share, nearest = float("inf"), len(self.coreset)
        if len(self.coreset):
            self.blend = _coreset_weights(self.coreset, self.plain, self.config.temperature)
            blended = self.coreset.blend(self.blend)
            share = float(self._forward(batch, blended)[0].gap(self.source)) / max(before, 1e-12)
            nearest = int(self.blend.argmax())
        self.is_new = not share < self.config.ratio
        start = self.start if self.is_new or self.blend is None else blended
        self.prompt.copy_(start)
        assert self.optimizer is not None
        self.optimizer.state.clear()  # every batch starts its prompt, and so its optimizer, anew
        domain = len(self.coreset) if self.is_new else nearest
        return Decision(domain, self.is_new, share, self.config.ratio, evidence=len(batch))

    def steps(self, batch: Input) -> int:
        """Many on a new domain."""
        return int(self.config.new_steps if self.is_new else self.config.steps)

    def objective(self, batch: Input) -> Objective:
        """The gap between the prompted batch and the source."""
        moments, logits = self._forward(batch, self.prompt)
        return Objective(logits, moments.gap(self.source))

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """A new pair, or all pairs pulled by their weights."""
        if self.is_new:
            self.coreset.add(self.plain.key, self.prompt)
            self.coreset.shrink(self.config.max_prompts)
        else:
            assert self.blend is not None
            rate = self.config.rate
            self.coreset.pull(self.blend, self.plain.key, self.prompt, keys=rate, prompts=rate)

    def autocast(self) -> AbstractContextManager[Any]:
        """As configured, except for the many steps on a new domain."""
        return nullcontext() if self.is_new else super().autocast()

    def added(self, domains: int = 1) -> int:
        """A prompt for every domain, as far as the coreset holds them."""
        return min(domains, int(self.config.max_prompts)) * self.prompt.numel()

    def details(self) -> list[str]:
        """How many pairs there are."""
        return [f"  coreset          {len(self.coreset)} prompts"]

    def _forward(self, batch: Input, prompt: Tensor | None) -> tuple[Moments, Tensor]:
        with self.autocast():
            features, logits = prompted_features(self.model, batch.pixels, prompt)
        moments = Moments.of(features, self.source.std)
        return moments, select_classes(logits, batch.classes)
