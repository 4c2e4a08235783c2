"""PEA: every block's tokens whitened and coloured to the source's, as far as they have moved."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.pea._colouring import (
    REGULAR,
    TokenMoments,
    collect_colours,
    power,
    read_colours,
    recolour,
    relative,
    visiting,
)
from ostinato.models import VisionModel
from ostinato.ops.blocks import find_blocks
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.features import FeatureTaps
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.snapshot import Scalars, State
from ostinato.registry import METHODS
from ostinato.types import Decision

_STILL = 1e-3
"""A block that has moved less than this share stays as it is."""


class _Drift:
    """The target's moments of each block, and how much they usually change from batch to batch."""

    def __init__(self, config: Pea.Config) -> None:
        self.config = config
        self.moments: dict[int, TokenMoments] = {}
        self.usual: dict[int, float] = {}

    def update(self, block: int, tokens: Tensor) -> TokenMoments:
        """Take in a block's tokens (T, D); a sudden change leaves nothing of the past."""
        new = TokenMoments.of(tokens)
        old = self.moments.get(block)
        if old is None:
            self.usual[block] = 0.0
        else:
            drift = float((new.mean - old.mean).abs().mean())
            share = self.config.smoothing
            self.usual[block] = usual = share * drift + (1 - share) * self.usual[block]
            if not (usual > 1e-6 and drift > self.config.jump * usual):
                new = TokenMoments.blend(new, old, self.config.rate)
        self.moments[block] = new
        return new

    def forget(self) -> None:
        """Start over."""
        self.moments, self.usual = {}, {}

    def export_state(self) -> State:
        """Moments and drifts by block."""
        tensors = {f"{block}.mean": m.mean for block, m in self.moments.items()}
        tensors |= {f"{block}.covariance": m.covariance for block, m in self.moments.items()}
        return State(tensors, {"usual": {str(block): d for block, d in self.usual.items()}})

    def expected(self, state: State) -> Expected:
        """A mean and a covariance for every block, and how much they usually change."""
        tensors = {}
        for block in state.values["usual"]:
            tensors[f"{block}.mean"] = Like((block,))
            tensors[f"{block}.covariance"] = Like((block, block))
        return Expected(tensors, {"usual": Kind.mapped(Kind.number(low=0))})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        self.usual = {int(block): drift for block, drift in state.values["usual"].items()}
        held = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
        pairs = {b: (held[f"{b}.mean"], held[f"{b}.covariance"]) for b in self.usual}
        self.moments = {block: TokenMoments(*pair) for block, pair in pairs.items()}


@METHODS.register("pea")
class Pea(Method):
    """Align blocks that have moved most: one forward to see how far, one to move them back.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("pea").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="PEA",
        paper="Ma et al., ICLR 2026",
        trains="nothing",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "the source's covariance is that of all tokens (the release centres each batch by "
            "itself)"
        ),
        published=(
            "33.5 % error, without views 35.5, ImageNet-C, ViT-B, normalised input, never reset, "
            "source moments of 50,000 images"
        ),
        measured=(
            "does not beat Source on a real ViT-Tiny whose corruption changes every four "
            "batches (81.3 against 78.3 % error): a batch counts 2 % in its moments, which need"
            " some fifty of one domain"
        ),
        needs=frozenset({"prepared file"}),
    )

    class Config(MethodConfig):
        """Settings of PEA.

        >>> Pea.Config(views=0).crop
        0.9
        """

        rate: float = Field(
            0.02, gt=0, le=1, description="share of a batch in the target's moments"
        )
        smoothing: float = Field(0.2, gt=0, le=1, description="of the drift and of the entropy")
        jump: float = Field(4.0, gt=0, description="times the usual drift: moments start afresh")
        entropy_jump: float = Field(
            1.0, gt=0, description="nats above the usual: all starts afresh"
        )
        views: int = Field(2, ge=0, le=3, description="of crop, mirror image and both, beside it")
        crop: float = Field(0.9, gt=0, le=1, description="side of the crop")

    presets = {"imagenet-c": {"rate": 0.02}, "cifar100-c": {"rate": 0.02}, "plain": {"views": 0}}
    rates = ()

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Moments of all tokens after every block; labels are not used."""
        return collect_colours(model, images.split(50))

    def configure(self) -> None:
        """The source's moments and roots, the target's moments and the usual entropy."""
        assert self.resources.prepared is not None
        self.blocks = list(find_blocks(self.model).values())
        device = self.model.device
        self.source = read_colours(self.resources.prepared, len(self.blocks), device)
        eye = [REGULAR * torch.eye(len(m.mean), device=device) for m in self.source]
        pairs = zip(self.source, eye, strict=True)
        self.roots = [power(m.covariance + small, 0.5, 0.0) for m, small in pairs]
        self.drift = self.track("drift", _Drift(self.config))
        self.usual = self.track("usual", Scalars(entropy=None))

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """How far each block has moved, over all views; then their mean logits, aligned."""
        views = _seen_views(batch.pixels, self.config.views, self.config.crop)
        self.shares = self._distances(views)
        with visiting(self.blocks, self._align):
            logits = [self.logits(batch, view).float() for view in views]
        return Objective(torch.stack(logits).mean(0))

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Forget the target where predictions have suddenly become unsure."""
        entropy = float(softmax_entropy(objective.logits).mean())
        usual = self.usual["entropy"]
        if usual is not None and entropy > usual + self.config.entropy_jump:
            self.drift.forget()
            self.events.append("forgot the target's moments")
            usual = None
        share = self.config.smoothing
        self.usual["entropy"] = entropy if usual is None else share * entropy + (1 - share) * usual

    def _distances(self, views: list[Tensor]) -> list[float]:
        """‖Δmean‖ + ‖Δvariance‖ of the class token to all source tokens, brought to [0, 1]."""
        found: list[list[Tensor]] = []
        for view in views:
            with FeatureTaps(self.model) as taps:
                self.model(view)
            found.append(taps.features)
        scores = []
        for source, parts in zip(self.source, zip(*found, strict=True), strict=True):
            tokens = torch.cat(parts)
            variance = tokens.var(0, correction=int(len(tokens) > 1))
            apart = (source.mean - tokens.mean(0), source.covariance.diagonal() - variance)
            scores.append(torch.stack([torch.linalg.vector_norm(a) for a in apart]).sum())
        found_shares: list[float] = relative(torch.stack(scores)).tolist()
        return found_shares

    def _align(self, block: int, tokens: Tensor) -> Tensor:
        share = self.shares[block]
        if share < _STILL:
            return tokens
        with torch.autocast(tokens.device.type, enabled=False):
            flat = tokens.reshape(-1, tokens.shape[-1]).float()
            target = self.drift.update(block, flat)
            aligned = recolour(flat, target, self.source[block].mean, self.roots[block])
            return torch.lerp(flat, aligned, share).view_as(tokens).to(tokens.dtype)


def _seen_views(pixels: Tensor, count: int, crop: float) -> list[Tensor]:
    """The images, and up to three views: the centre enlarged, the mirror image, both."""
    height, width = pixels.shape[-2:]
    rows, columns = max(1, round(crop * height)), max(1, round(crop * width))
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    centre = pixels[..., top : top + rows, left : left + columns]
    large = F.interpolate(centre, (height, width), mode="bilinear", align_corners=False)
    return [pixels, *[large, pixels.flip(-1), large.flip(-1)][:count]]
