"""ZOA: two forwards a batch estimate a gradient for the norms; past domains' vectors are mixed."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._levelled import Levelled
from ostinato.methods._settings import VectorsConfig
from ostinato.methods._shifts import ShiftDetector
from ostinato.methods._vectors import DomainVectors, assign, flat, parts
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.ops.heads import select_classes
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS
from ostinato.types import Decision


@METHODS.register("zoa")
class Zoa(Levelled):
    """One forward as it is, one a random step away; their losses tell which way to go.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("zoa").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="ZOA",
        paper="Deng et al., ACM MM 2025",
        trains="affine parameters of the norms in blocks 1 to 8, without gradients",
        setting="ImageNet-C, ViT-B/16 of 8 bits",
        differences=(
            "for models that are not quantised, with the settings of its 8-bit ViT-B; batches of "
            "32 images are judged (the release: 64), and followed once (the release: with each of "
            "its two forwards); a single image is given the source's spread"
        ),
        published="5.0 points of accuracy above FOA, ImageNet-C, ViT-B quantised to 6 bits",
        measured=(
            "does not beat Source on a real ViT-Tiny at its authors' rate (92.9 against 78.3 % "
            "error), which is for a ViT-B; at a hundredth of it it does, by little (77.2)"
        ),
        needs=frozenset({"prepared file"}),
    )

    class Config(VectorsConfig):
        """Settings of ZOA.

        >>> Zoa.Config().margin
        0.01
        """

        lr: float = Field(5e-4, ge=0, description="learning rate of what is beside the mix")
        probe: float = Field(0.02, gt=0, description="length of a trial step")
        mix_lr: float = Field(0.01, ge=0, description="learning rate of the mix")
        mix_probe: float = Field(0.05, gt=0, description="length of a trial step of the mix")
        mix_scale: float = Field(10.0, gt=0, description="steepness of the mix")
        weight: float = Field(30.0, ge=0, description="lambda of the gap to the source's features")
        rate: float = Field(0.1, gt=0, le=1, description="share of a batch in the target's mean")
        vectors: int = Field(
            32, ge=1, description="domain vectors kept; one of two alike is let go"
        )

    presets = {"imagenet-c": {"lr": 5e-4}}
    rates = ("lr",)

    def configure(self) -> None:
        """An empty bank and the detector, beside what is known of the source."""
        super().configure()
        config = self.config
        self.moving = self.trainable()
        self.source = flat(self.moving)
        self.sizes = [parameter.numel() for parameter in self.moving.values()]
        first = float(torch.randn(1, generator=self.random.generator))
        bank = DomainVectors(len(self.source), config.vectors, config.mix_scale, first)
        self.bank = self.track("bank", bank.to(self.source.device))
        self.detector = self.track("detector", ShiftDetector(config.threshold, config.least))

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms of blocks 1 to 8: neither the first, nor the last, nor the final norm."""
        return norm_parameters(self.model.base, blocks=range(1, 9))

    def route(self, batch: Input) -> Decision:
        """Keep the weights of a domain that has ended."""
        distance, self.is_new = self.detector.judge(self.model, batch.pixels, self._keep)
        limit = self.config.threshold
        return Decision(len(self.bank) - 1, self.is_new, distance, limit, evidence=len(batch))

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """Predict, try a step, and go as far against it as it made things worse."""
        known = self.target.value
        loss, final, logits = self._try(batch)
        answer = self.recentred(batch, logits, known)
        self.moved = False
        for _ in range(self.config.steps):
            self.moved |= self._descend_along(batch, loss)
            if self.config.steps > 1:
                loss = self._try(batch)[0]
        if self.is_new:
            self.target.forget()
        self.target.update(final)
        return Objective(answer, extra={"loss": loss, "used": len(batch)})

    def steps(self, batch: Input) -> int:
        """The objective repeats them itself."""
        return 1

    def update(self, batch: Input, objective: Objective) -> bool:
        """It has been done already."""
        return self.moved

    def added(self, domains: int = 1) -> int:
        """A vector for every domain that has ended, and its share."""
        return min(domains - 1, int(self.config.vectors)) * (self.trained() + 1)

    def details(self) -> list[str]:
        """How many vectors there are."""
        return [f"  domain vectors   {len(self.bank) - 1}"]

    def _descend_along(self, batch: Input, loss: float) -> bool:
        """One estimate from a second forward, and one step of the rest and of the mix."""
        config, bank = self.config, self.bank
        weights, mix = flat(self.moving), bank.mix()
        rest = weights - self.source - mix
        tried = _two_sided(len(weights), self.random.generator).to(weights.device)
        tried_mix = _two_sided(len(bank), self.random.generator).to(weights.device)
        alphas = bank.alphas.clone()
        try:
            bank.alphas[: len(bank)] += config.mix_probe * tried_mix
            assign(self.moving, self.source + bank.mix() + rest + config.probe * tried)
            change = self._try(batch)[0] - loss
        finally:
            bank.alphas = alphas
            assign(self.moving, weights)
        if not abs(change) < float("inf"):
            self.events.append("left out a non-finite update")
            return False
        bank.move(change / (config.mix_probe * tried_mix), config.mix_lr, config.mix_decay)
        slope = change / (config.probe * tried) + config.rest_decay * rest
        assign(self.moving, self.source + bank.mix() + rest - config.lr * slope)
        return True

    def _try(self, batch: Input) -> tuple[float, Tensor, Tensor]:
        """Mean entropy plus the weighted mean gap of all levels' moments."""
        with self.autocast():
            levels, final, logits = self.levels.read(batch.pixels)
        gaps = 2 * self.moments.gaps(levels).mean()  # of means, and of deviations
        entropy = softmax_entropy(select_classes(logits, batch.classes)).mean()
        return float(entropy + self.config.weight * gaps), final, logits

    def _keep(self) -> None:
        if len(self.bank) > self.config.vectors:
            self.bank.remove(self.bank.twin(self.sizes) if len(self.bank) > 2 else 1)
        now = flat(self.moving) - self.source
        rest = parts(now - self.bank.mix(), self.moving)
        size = max(float(part.abs().mean()) for part in rest.values())
        self.bank.add(now, size, self.config.margin)
        self.events.append("kept the weights of a domain")


def _two_sided(size: int, generator: torch.Generator) -> Tensor:
    """Numbers drawn evenly from [−1, −½] and [½, 1], so that none is near zero."""
    far = (1 + torch.rand(size, generator=generator)) / 2
    return far * (2 * torch.randint(2, (size,), generator=generator) - 1)
