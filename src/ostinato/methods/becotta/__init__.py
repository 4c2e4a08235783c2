"""BECoTTA: low-rank experts after every block, routed by the image's domain."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.methods._adapters import Adapted
from ostinato.methods._settings import WarmedConfig
from ostinato.methods._style import image_moments, style_of
from ostinato.methods._warmed import Warmed
from ostinato.methods._warmup import predictions, warm_up
from ostinato.methods.base import Input, MethodInfo, Objective
from ostinato.methods.becotta._blended import after_blocks, domain_information, route_to
from ostinato.models import VisionModel
from ostinato.ops.augment import gaussian_blur
from ostinato.ops.heads import select_classes
from ostinato.ops.snapshot import State
from ostinato.ops.teacher import Substitute, restore_
from ostinato.ops.views import blend_labels, mean_probabilities
from ostinato.registry import METHODS
from ostinato.types import Decision

_DOMAINS = ("source", "dark", "haze", "blur")


def _as_domain(pixels: Tensor, domain: int) -> Tensor:
    """A source image as it might look in one of the warm-up's domains."""
    if _DOMAINS[domain] == "dark":
        return 0.35 * pixels**1.5
    if _DOMAINS[domain] == "haze":
        return 0.45 * pixels + 0.5
    if _DOMAINS[domain] == "blur":
        return gaussian_blur(pixels, torch.full((len(pixels),), 1.5, device=pixels.device))
    return pixels


def _look(moments: Tensor) -> Tensor:
    """What a domain is recognised by: style, and brightness, which style alone leaves out."""
    brightness = moments[:, 0, ::9].mean(0) / 3  # the constant filters' responses
    return torch.cat([style_of(moments), 10 * brightness])


@METHODS.register("becotta")
class Becotta(Warmed):
    """Self-training of routed experts, with labels that views and the warmed start agree on.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("becotta").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="BECoTTA",
        paper="Lee et al., ICML 2024",
        trains="low-rank experts after every block, and their routers",
        setting="Cityscapes to ACDC, SegFormer-B5",
        differences=(
            "the K experts of largest gate run, and gates are learned (the release always runs "
            "the first K, with gates cut from the gradient); routing uses the mean token, with "
            "noise while warming alone; the warm-up's domains are darkened, hazed and blurred "
            "source images, recognised by the nearest style and brightness in place of a trained "
            "discriminator; warmed=False routes all to one domain and needs no file"
        ),
        tasks=frozenset({"classification", "segmentation"}),
        needs=frozenset({"prepared file"}),
    )

    class Config(WarmedConfig):
        """Settings of BECoTTA.

        >>> Becotta.Config(rank=4).experts
        6
        """

        lr: float = Field(6e-7, ge=0, description="learning rate")
        experts: int = Field(6, ge=1, description="experts after a block")
        chosen: int = Field(3, ge=1, description="K: experts that run for an image")
        rank: int = Field(6, ge=1, description="width of an expert's bottleneck")
        confidence: float = Field(
            0.69, ge=0, lt=1, description="from which a single view is trusted"
        )
        scales: tuple[float, ...] = Field(
            (0.5, 0.75, 1.0, 1.25), description="of the views, flipped too"
        )
        restore: float = Field(
            0.01, ge=0, le=1, description="probability to restore a warmed value"
        )
        information: float = Field(
            5e-4, ge=0, description="weight of the mutual information, warming"
        )
        warm_lr: float = Field(6e-5, gt=0, description="learning rate of the preparation")
        warm_batch: int = Field(8, ge=1, description="images per update of the preparation")

    presets = {"acdc": {"lr": 6e-7, "restore": 0.01}}

    @classmethod
    def beside(cls, model: VisionModel, config: Any, generator: torch.Generator) -> Adapted:
        """Experts after every block, with a router for each of the domains."""
        domains = len(_DOMAINS)
        return after_blocks(model, config.experts, config.chosen, config.rank, domains, generator)

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Warm experts and routers on source images in four guises, and keep their styles."""
        seed = torch.Generator().manual_seed(config.seed)
        if labels is None:
            labels = predictions(model, images, config.warm_batch)
        adapted = cls.beside(model, config, seed)
        for part in adapted.parts():
            part.noise = seed

        def disguised(pixels: Tensor) -> Tensor:
            domains = torch.randint(len(_DOMAINS), (len(pixels),), generator=seed)
            seen = [_as_domain(p[None], int(d)) for p, d in zip(pixels, domains, strict=True)]
            route_to(adapted, domains.to(pixels.device))
            logits: Tensor = adapted(torch.cat(seen))
            return logits

        def information() -> Tensor:
            parts = adapted.parts()
            found = [domain_information(p.gates, torch.as_tensor(p.domains)) for p in parts]
            total: Tensor = -config.information * torch.stack(found).sum()
            return total

        try:
            state = warm_up(
                disguised,
                adapted.added(),
                images,
                labels,
                steps=config.warm_steps,
                lr=config.warm_lr,
                batch=config.warm_batch,
                generator=seed,
                extra=information,
            )
        finally:
            adapted.detach()
        guises = [
            torch.cat([image_moments(_as_domain(p, d)) for p in images.split(8)]) for d in range(4)
        ]
        state.tensors["styles"] = torch.stack([_look(moments) for moments in guises])
        return state

    def configure(self) -> None:
        """Experts in place, and the styles that domains are recognised by."""
        super().configure()
        self.styles: Tensor | None = None
        if self.config.warmed:
            assert self.resources.prepared is not None
            self.styles = self.resources.prepared.tensors["styles"].to(self.model.device)
        self.untouched = Substitute(self.adapted, self.adapted.added())
        self.start = {name: p.detach().clone() for name, p in self.trainable().items()}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Experts and routers."""
        return self.adapted.added()

    def route(self, batch: Input) -> Decision | None:
        """Each image to the router of the nearest style."""
        if self.styles is None:
            return None
        found = torch.stack([_look(image_moments(p[None])) for p in batch.pixels])
        distances = torch.cdist(found, self.styles)
        self.domains = distances.argmin(1)
        route_to(self.adapted, self.domains)
        nearest = int(self.domains.mode().values)
        return Decision(nearest, False, float(distances.amin(1).mean()), float("inf"))

    def objective(self, batch: Input) -> Objective:
        """Cross-entropy on the labels of a single view where it is sure, else of all views."""
        logits = self.logits(batch).float()
        with torch.no_grad():
            single = logits.detach().softmax(1)
            averaged = mean_probabilities(
                lambda pixels: self.logits(batch, pixels),
                batch.pixels,
                self.config.scales,
                plain=logits.detach(),
            )
            source = select_classes(self.untouched(self.start, batch.pixels), batch.classes)
            before = source.float().softmax(1)
            sure = (single.amax(1) > self.config.confidence) & (single.amax(1) >= before.amax(1))
            labels = blend_labels(sure, single, averaged)
        loss = F.cross_entropy(logits, labels.argmax(1))
        return Objective(labels.clamp_min(1e-12).log(), loss)

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Some values go back to the warmed start's."""
        if self.config.restore > 0:
            restore_(self.trainable(), self.start, self.config.restore, self.random.generator)
