"""FOA: input prompts found by an evolution strategy, and the classifier's input shifted back."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.models import VisionModel
from ostinato.ops.evolution import Evolution
from ostinato.ops.expect import Expected, Like
from ostinato.ops.heads import find_head, select_classes
from ostinato.ops.levels import Levels, collect_levels, read_levels
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.prompts import fresh_prompt, inserted
from ostinato.ops.recentre import RunningMean, shifted_logits
from ostinato.ops.snapshot import State
from ostinato.registry import METHODS


class FoaConfig(MethodConfig):
    """Settings of FOA."""

    prompts: int = Field(3, ge=1, description="prompt tokens")
    population: int = Field(27, ge=4, description="prompts tried on each batch, beside the best")
    weight: float = Field(0.4, ge=0, description="lambda of the gap to the source's features")
    sigma: float = Field(1.0, gt=0, description="spread of the first prompts")
    rate: float = Field(0.1, gt=0, le=1, description="share of a batch in the target's mean")


class Best:
    """The prompt that did best on the last batch."""

    def __init__(self, prompt: Tensor) -> None:
        self.prompt = prompt

    def export_state(self) -> State:
        """The prompt."""
        return State({"prompt": self.prompt})

    def expected(self, state: State) -> Expected:
        """A prompt of the same size."""
        return Expected({"prompt": Like.of(self.prompt)})

    def import_state(self, state: State) -> None:
        """Take one over."""
        self.prompt = state.tensors["prompt"].detach().clone()


@METHODS.register("foa")
class Foa(Method):
    """Try prompts, keep those with sure predictions and source-like features; no gradient."""

    name = "foa"
    rates = ("sigma",)
    Config = FoaConfig
    info = MethodInfo(
        title="FOA",
        paper="Niu et al., ICML 2024",
        trains="prompt tokens, without gradients",
        predicts="before",
        needs=frozenset({"prepared file"}),
        differences=(
            "an evolution strategy of our own with its author's recommended constants, in place "
            "of the cma package; a single image is given the source's spread"
        ),
        published=(
            "33.9 % error, ImageNet-C, ViT-B, normalised input, never reset, 28 forwards a batch"
        ),
    )
    presets = {"imagenet-c": {"weight": 0.4}, "imagenet-r": {"weight": 0.2}}

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Moments of the class features after every block (its authors take 32 images)."""
        return collect_levels(model, images.split(50))

    def configure(self) -> None:
        """The source's moments, the distribution of prompts, the best one, the target's mean."""
        assert self.resources.prepared is not None
        self.levels = Levels(self.model)
        self.source = read_levels(self.resources.prepared, self.model, self.model.device)
        self.width = find_head(self.model).in_features
        config = self.config
        first = fresh_prompt(self.model.base, config.prompts, generator=self.random.generator)
        self.best = self.track("best", Best(first))
        search = Evolution(first.numel(), config.population, config.sigma, first.device)
        self.search = self.track("search", search)
        self.target = self.track("target", RunningMean(config.rate, width=self.width))

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """Try every prompt on the batch; answer with the best, shifted by what is known."""
        known = self.target.value
        shift = None if known is None else self.source.mean[-self.width :] - known
        before = self.best.prompt
        samples = self.search.ask(self.random.generator)
        samples = torch.cat([samples, before.flatten()[None].double()])
        scores, means, chosen = [], [], None
        for sample in samples:
            prompt = sample.view_as(before).to(before.dtype)
            score, final, logits = self._try(batch, prompt)
            if chosen is None or score < min(scores):
                self.best.prompt, chosen = prompt, logits
            scores.append(score)
            means.append(final.mean(0))
        self.search.tell(samples, scores)
        self.target.update(torch.stack(means))
        assert chosen is not None
        extra = {"loss": min(scores), "used": len(batch)}
        if shift is None:
            return Objective(select_classes(chosen, batch.classes), extra=extra)
        return Objective(shifted_logits(self.model, chosen, shift, batch.classes), extra=extra)

    def trained(self) -> int:
        """The prompt's numbers."""
        return self.best.prompt.numel()

    def added(self, domains: int = 1) -> int:
        """The prompt, whatever the domains."""
        return self.best.prompt.numel()

    def _try(self, batch: Input, prompt: Tensor) -> tuple[float, Tensor, Tensor]:
        """Summed entropy plus the weighted gap of all levels' moments, for 64 images."""
        with inserted(self.model.base, prompt):
            levels, final, logits = self.levels.read(batch.pixels)
        gap = self.source.gaps(levels).sum() * len(batch) / 64
        entropy = softmax_entropy(select_classes(logits, batch.classes)).sum()
        return float(entropy + self.config.weight * gap), final, logits
