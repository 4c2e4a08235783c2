"""KFF: a pool of domain prompts and one of class prompts, split off and fused again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._anchor import Moments, prompted_features
from ostinato.methods._anchored import Anchored
from ostinato.methods._pools import PromptPool, class_weights, domain_weights
from ostinato.methods._settings import PromptsConfig
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.ops.heads import find_head, select_classes, spread_classes
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.optim import make_optimizer
from ostinato.ops.prompts import fresh_prompt
from ostinato.registry import METHODS
from ostinato.types import Decision


@METHODS.register("kff")
class Kff(Anchored):
    """Align with the source and lower the entropy by a domain's and each image's class prompt.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("kff").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="KFF",
        paper="Zhou et al., NeurIPS 2025",
        trains="domain prompt tokens and one class prompt token per image",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "class prompts are grouped by cosine similarity, as in the paper (the release takes a "
            "dot product, and a greedy grouping that is no spanning tree); source moments are over "
            "all given images (the release leaves out uncertain ones); a single image has the "
            "source's spread; in bf16 the many steps on a new domain stay in fp32, since they "
            "would amplify rounding"
        ),
        predicts="last",
        needs=frozenset({"prepared file"}),
    )

    class Config(PromptsConfig):
        """Settings of KFF.

        >>> Kff.Config(prompts=4).lr
        0.1
        """

        class_lr: float = Field(1e-3, ge=0, description="learning rate of the class prompts")
        entropy: float = Field(3.0, ge=0, description="a: weight of the entropy")
        domain_radius: float = Field(25.0, gt=0, description="gamma_d: beyond it a domain is new")
        class_similarity: float = Field(0.005, ge=0, description="gamma_c: below it a class is new")
        max_entropy: float = Field(2.0, gt=0, description="gamma_h, nats: above it nothing is kept")
        domain_temperature: float = Field(3.0, gt=0, description="tau_d of the domain weights")
        class_temperature: float = Field(1.0, gt=0, description="tau_c of the class weights")
        key_rate: float = Field(0.1, gt=0, le=1, description="alpha: how far stored keys follow")
        max_domains: int = Field(20, ge=1, description="domain prompts kept")
        max_classes: int = Field(100, ge=1, description="class prompts kept")

    presets = {"imagenet-c": {"lr": 0.1, "class_lr": 1e-3}, "cifar100-c": {"lr": 0.1}}
    rates = ("lr", "class_lr")
    example = {"new_steps": 3}

    def configure(self) -> None:
        """The source's moments, a fresh domain prompt and two empty pools."""
        super().configure()
        self.head = find_head(self.model.base)
        generator = self.random.generator
        self.start = fresh_prompt(self.model.base, self.config.prompts, generator=generator)
        self.prompt = nn.Parameter(self.start.clone())
        self.domains = self.track("domains", PromptPool())
        self.classes = self.track("classes", PromptPool())
        self.is_new = False

    def trainable(self) -> dict[str, nn.Parameter]:
        """The domain prompt; class prompts come and go with their images."""
        return {"prompt": self.prompt}

    @torch.no_grad()
    def route(self, batch: Input) -> Decision:
        """Fission: blend what is near, or start new prompts."""
        config = self.config
        self.is_new = False
        features, logits = self._forward(batch, None)
        self.key = Moments.of(features, self.source.std).key
        self.blend: Tensor | None = None
        distance = float("inf")
        if len(self.domains):
            keys = self.domains.both()[0]
            distance = float((keys - self.key).norm(dim=1).min())
            self.blend = domain_weights(
                keys, self.key, config.domain_radius, config.domain_temperature
            )
        self.is_new = self.blend is None
        self.prompt.copy_(self.start if self.blend is None else self.domains.blend(self.blend))
        self._choose_class_prompts(self._predictions(logits, batch))
        assert self.optimizer is not None
        self.optimizer.state.clear()  # every batch starts its prompts, and so its optimizer, anew
        self.left = self.steps(batch)
        domain = len(self.domains) if self.blend is None else int(self.blend.argmax())
        return Decision(domain, self.is_new, distance, config.domain_radius, evidence=len(batch))

    def steps(self, batch: Input) -> int:
        """Many on a new domain."""
        return int(self.config.new_steps if self.is_new else self.config.steps)

    def objective(self, batch: Input) -> Objective:
        """Distance to the source's moments, and entropy."""
        both = torch.cat([self.prompt.expand(len(batch), -1, -1), self.class_prompts], 1)
        features, logits = self._forward(batch, both)
        gap = Moments.of(features, self.source.std).gap(self.source)
        loss = gap + self.config.entropy * softmax_entropy(logits).mean()
        return Objective(logits, loss)

    def update(self, batch: Input, objective: Objective) -> bool:
        """The domain prompt at every step, the class prompts at the last one."""
        assert self.optimizer is not None
        self.left -= 1
        self.class_prompts.grad = None
        last = [self.class_optimizer] if self.left == 0 else []
        return self.descend(objective, [self.optimizer, *last])

    @torch.no_grad()
    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Fusion: pull what was blended, add what is new, merge where a pool is full."""
        config = self.config
        if self.blend is not None:
            self.domains.pull(self.blend, self.key, self.prompt, keys=config.key_rate, prompts=1.0)
        else:
            self.domains.add(self.key, self.prompt)
            self.domains.shrink(config.max_domains)
        predictions = self._predictions(objective.logits, batch)
        kept = softmax_entropy(objective.logits) <= config.max_entropy
        prompts, shares = self.class_prompts[kept], self.shares[kept]
        self.classes.take_in(predictions[kept], prompts, shares, config.key_rate)
        self.classes.shrink(config.max_classes, cosine=True)

    def autocast(self) -> AbstractContextManager[Any]:
        """As configured, except for the many steps on a new domain."""
        return nullcontext() if self.is_new else super().autocast()

    def trained(self) -> int:
        """The domain prompt and the latest batch's class prompts; one image's before any batch."""
        each = getattr(self, "class_prompts", self.prompt[0])
        return self.prompt.numel() + each.numel()

    def added(self, domains: int = 1) -> int:
        """A prompt for every domain and one token for every class, as far as pools hold them."""
        classes = min(self.head.out_features, self.config.max_classes)
        kept = min(domains, self.config.max_domains)
        return int(kept * self.prompt.numel() + classes * self.prompt.shape[-1])

    def details(self) -> list[str]:
        """How full the pools are."""
        return [f"  pools            {len(self.domains)} domains, {len(self.classes)} classes"]

    def _choose_class_prompts(self, predictions: Tensor) -> None:
        """One prompt per image: a blend of alike classes', or a fresh one."""
        config, generator = self.config, self.random.generator
        prompts = fresh_prompt(self.model.base, len(predictions), 1, generator=generator)
        self.shares = predictions.new_zeros(len(predictions), 0)
        if len(self.classes):
            keys, alike = self.classes.both()[0], config.class_similarity
            self.shares, known = class_weights(keys, predictions, alike, config.class_temperature)
            blended = self.classes.blend(self.shares)
            prompts = torch.where(known[:, None, None], blended, prompts)
        self.class_prompts = nn.Parameter(prompts)
        self.class_optimizer = make_optimizer(
            config.optimizer,
            [self.class_prompts],
            lr=config.class_lr,
            weight_decay=config.weight_decay,
        )

    def _predictions(self, logits: Tensor, batch: Input) -> Tensor:
        """Probabilities over all of the model's classes, zero outside the label space in use."""
        probabilities = logits.detach().float().softmax(1)
        return spread_classes(probabilities, batch.classes, self.head.out_features)

    def _forward(self, batch: Input, prompt: Tensor | None) -> tuple[Tensor, Tensor]:
        with self.autocast():
            features, logits = prompted_features(self.model, batch.pixels, prompt)
        return features, select_classes(logits, batch.classes)
