"""IMSE: singular values of the linear maps, learned for each domain and recalled by its look."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._settings import ShiftConfig
from ostinato.methods._shifts import Look, ShiftDetector
from ostinato.methods._vectors import assign, flat
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.methods.imse._spectra import (
    CodeBank,
    Spectrum,
    block_linears,
    collect_look,
    inputs_of,
    read_look,
    spread_of_use,
)
from ostinato.models import VisionModel
from ostinato.ops.blocks import find_blocks
from ostinato.ops.consistency import masked_mean
from ostinato.ops.heads import select_classes
from ostinato.ops.losses import entropy_threshold, softmax_entropy
from ostinato.ops.sam import climbed
from ostinato.ops.snapshot import State
from ostinato.ops.teacher import Substitute
from ostinato.registry import METHODS
from ostinato.types import Decision


@METHODS.register("imse")
class Imse(Method):
    """Minimise entropy over singular values while the last blocks' directions stay in use.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("imse").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="IMSE",
        paper="Baek et al., ICLR 2026",
        trains="singular values of the linear maps in blocks 0 to 8",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "batches of 32 images are judged (the release: its batch size, 64); at most 100 "
            "domains are kept; the source's look is that of all source images (the release lets "
            "a running mean go through them); a batch without a reliable image moves nothing; "
            "its authors take lr=3e-3 for recurring streams"
        ),
        published=(
            "31.0 % error, ImageNet-C, ViT-B, started afresh for each corruption; continual 3.4 "
            "points better than ViDA"
        ),
        measured=(
            "beats Source on a real ViT-Tiny under returning corruptions: 74.6 against 78.3 % error"
        ),
        needs=frozenset({"prepared file"}),
    )

    class Config(ShiftConfig):
        """Settings of IMSE.

        >>> Imse.Config().codes
        100
        """

        lr: float = Field(7e-3, ge=0, description="learning rate")
        first_blocks: int = Field(9, ge=1, description="first blocks, whose singular values move")
        watched: int = Field(3, ge=1, description="last blocks, whose use is spread")
        spread: float = Field(50.0, ge=0, description="weight of that spread")
        kappa: float = Field(0.4, gt=0, description="entropy bound, times ln C")
        radius: float = Field(0.05, ge=0, description="how far the climb goes")
        threshold: float = Field(
            0.05, gt=0, description="distance from which a batch is a new domain"
        )
        recall: Literal["nearest", "mix"] = Field(
            "nearest", description="what a new domain starts as"
        )
        temperature: float = Field(1.0, gt=0, description="of the mix")
        codes: int = Field(100, ge=1, description="domains kept; the oldest is let go")

    presets = {"imagenet-c": {"lr": 7e-3}, "recurring": {"lr": 3e-3}}

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """The look of source images; labels are not used."""
        return collect_look(model, images)

    def configure(self) -> None:
        """Decompose the linear maps; the bank holds the source's values first."""
        assert self.resources.prepared is not None
        linears = block_linears(self.model.base, range(self.config.first_blocks))
        self.spectra = {name: Spectrum(linear.weight) for name, linear in linears.items()}
        self.values = {n: nn.Parameter(s.values.clone()) for n, s in self.spectra.items()}
        weights: dict[str, Any] = {name: linear.weight for name, linear in linears.items()}
        self._substitute = Substitute(self.model, weights)
        depth = len(find_blocks(self.model.base))
        last = range(max(0, depth - self.config.watched), depth)
        self.ends = list(block_linears(self.model.base, last).values())
        self.directions = [Spectrum(linear.weight).right for linear in self.ends]
        look = read_look(self.resources.prepared.tensors, self.model.device)
        self.bank = self.track("bank", CodeBank(self.config.codes, flat(self.values), look))
        detector = ShiftDetector(self.config.threshold, self.config.least)
        self.detector = self.track("detector", detector)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The singular values."""
        return self.values

    @torch.no_grad()
    def route(self, batch: Input) -> Decision:
        """Keep an ended domain's values, and start the new one from those of the nearest."""
        now = Look.of(self.model, batch.pixels)
        distance = self.detector.distance(now, len(batch))
        is_new = distance > self.config.threshold
        if is_new:
            assert self.detector.look is not None
            assert self.optimizer is not None
            self.bank.add(flat(self.values), self.detector.look)
            self.detector.forget()
            mixed = self.config.temperature if self.config.recall == "mix" else None
            assign(self.values, self.bank.recall(self.bank.distances(now), mixed))
            self.optimizer.state.clear()
        self.detector.follow(now, len(batch))
        limit = self.config.threshold
        return Decision(len(self.bank) - 1, is_new, distance, limit, evidence=len(batch))

    def objective(self, batch: Input) -> Objective:
        """Entropy of the reliable images, less the weighted spread of use."""
        return self._look_with(batch, self.values, None)

    def update(self, batch: Input, objective: Objective) -> bool:
        """Climb, take the gradient up there, step from where the climb began."""
        assert self.optimizer is not None
        assert objective.loss is not None
        keep = objective.extra.pop("keep")
        if not bool(keep.any()):
            return False
        values = climbed(self.values, objective.loss, self.config.radius)
        if values is None:
            self.events.append("left out a non-finite update")
            return False
        with self.autocast():
            second = self._look_with(batch, values, keep)
        second.extra.pop("keep")
        moved = self.descend(second, [self.optimizer])
        objective.extra |= second.extra
        return moved

    def added(self, domains: int = 1) -> int:
        """A set of singular values for every domain that has ended."""
        return min(domains - 1, int(self.config.codes)) * self.trained()

    def _look_with(self, batch: Input, values: Any, reliable: Tensor | None) -> Objective:
        weights = {name: spectrum.weight(values[name]) for name, spectrum in self.spectra.items()}
        with inputs_of(self.ends) as found:
            logits = select_classes(self._substitute(weights, batch.pixels), batch.classes)
        pairs = zip(found, self.directions, strict=True)
        used = torch.stack([spread_of_use(tokens, right) for tokens, right in pairs]).sum()
        entropy = softmax_entropy(logits)
        keep = entropy.detach() < entropy_threshold(self.config.kappa, logits.shape[1])
        keep = keep if reliable is None else keep & reliable
        loss = masked_mean(entropy, keep) - self.config.spread * used / self.config.watched
        return Objective(logits, loss, keep.sum(), {"keep": keep})
