"""ReservoirTTA: another method with a set of parameters for every style of image it has met."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ostinato.errors import MissingResource, StateError
from ostinato.methods._style import distance_quantile, image_moments, style_of
from ostinato.methods._wrapping import Wrapping
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.contract import Need
from ostinato.methods.reservoir._inner import ReservoirConfig, inner_method
from ostinato.methods.reservoir._store import Slots, Styles, assignments, prediction_information
from ostinato.methods.roid import Roid, correct_prior
from ostinato.models import VisionModel
from ostinato.ops.expect import Expected
from ostinato.ops.snapshot import State
from ostinato.registry import METHODS
from ostinato.types import Decision


@METHODS.register("reservoir")
class Reservoir(Wrapping):
    """Route every batch by its style to one of at most 16 copies of another method.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("reservoir").last.logits.shape
    torch.Size([8, 5])
    """

    Config = ReservoirConfig
    info = MethodInfo(
        title="ReservoirTTA",
        paper="Vray et al., NeurIPS 2025",
        trains="what the inner method trains, once per style",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "style is the log-variance of a fixed filter bank's responses, in place of VGG-19's "
            "early layers, so that nothing is downloaded; the quantile is that of the stream's own "
            "batch size (in the release only full batches open a slot); the sample of past styles "
            "has its full size from the start; centroids do not decay; a slot holds the inner "
            "method's whole state, of which the source parameters that move are ensembled; "
            "inner='roid' keeps its own loss (the release takes entropy for ViTs); ensemble=False "
            "predicts as the inner method does; threshold=... needs no file"
        ),
        tasks=frozenset({"classification", "segmentation"}),
        needs=frozenset({"prepared file"}),
    )
    presets = {"imagenet-c": {"inner": "tent"}, "cifar100-c": {"inner": "tent"}}

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """Source styles for the threshold, and what the inner method needs."""
        assert isinstance(config, ReservoirConfig)
        mine: set[Need] = {"prepared file"} if config.threshold is None else set()
        return frozenset(mine) | super().needs(config)

    @classmethod
    def choose(cls, config: Any) -> tuple[type[Method], MethodConfig]:
        """As the release has it."""
        return inner_method(config)

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """The source images' filter moments, and the inner method's preparation."""
        kind, inner = cls.choose(config)
        moments = torch.cat([image_moments(part) for part in images.split(50)])
        parts = {"style": State({"moments": moments})}
        if "prepared file" in kind.needs(inner):
            parts["inner"] = kind.prepare(model, images, labels, inner)
        return State.join(parts)

    def configure(self) -> None:
        """The inner method, one slot, and the source's style as the first centroid."""
        given = self.resources.prepared
        self.slots = self.track("slots", Slots(self.take_in()))
        moments = None if given is None else given.part("style").tensors.get("moments")
        if self.config.threshold is None and (moments is None or moments.ndim != 3):
            raise MissingResource("The prepared file has no source styles: prepare it anew.")
        self.moments = None if moments is None else moments.to(self.model.device)
        first = None if self.moments is None else style_of(self.moments)
        styles = Styles(self.config.memory, self.config.centroid_lr, first)
        self.styles = self.track("styles", styles)
        self._far: dict[int, float] = {}

    def expected(self, state: State) -> Expected:
        """As many slots as styles; before the first style there is a slot already."""
        slots = len(state.values["slots"]) - 1
        styles = len(state.tensors["styles/centroids"])
        if slots != max(styles, 1):
            raise StateError(f"The state does not fit: it has {slots} slots for {styles} styles.")
        return super().expected(state)

    def route(self, batch: Input) -> Decision:
        """Nearest style, or a new slot where all are far and there is room."""
        self.style = style_of(image_moments(batch.pixels))
        far = self._threshold(len(batch))
        distances = self.styles.distances(self.style)
        nearest = float(distances.min()) if len(distances) else float("inf")
        is_new = nearest > far and len(distances) < self.config.slots
        if is_new:
            if len(distances):
                self.slots.add(self._most_informative(batch))
            self.styles.add(self.style)
        self.shares = assignments(self.style, self.styles.centroids, self.config.temperature)
        self.styles.learn(self.style, self.config.temperature, self.random.generator)
        self.slots.select(int(self.shares.argmax()))
        return Decision(self.slots.active, is_new, nearest, far, evidence=len(batch))

    def objective(self, batch: Input) -> Objective:
        """Predict with all slots, then one whole step of the inner method on the selected one."""
        logits = self._ensemble(batch)
        output = self.advance_inner(batch)
        extra = {"loss": output.loss, "used": output.used}
        return Objective(output.logits if logits is None else logits, extra=extra)

    def added(self, domains: int = 1) -> int:
        """What the inner method adds, and its moving parameters anew for every further slot."""
        further = min(domains, int(self.config.slots)) - 1
        return self.inner.added() + further * self.inner.trained()

    def details(self) -> list[str]:
        """The inner method and its slots."""
        return [f"  inner method     {self.inner.info.title}, {len(self.slots)} slots"]

    def _threshold(self, images: int) -> float:
        config = self.config
        if config.threshold is not None:
            return float(config.threshold)
        if images not in self._far:
            assert self.moments is not None
            draws = torch.Generator().manual_seed(config.seed)
            self._far[images] = distance_quantile(self.moments, images, config.quantile, draws)
        return self._far[images]

    @torch.no_grad()
    def _most_informative(self, batch: Input) -> int:
        """The slot that is surest of each image and most diverse over all."""
        weights = self.inner.weights
        if weights is None:
            return self.slots.active
        return self.slots.best(weights, lambda: prediction_information(self._look(batch)))

    @torch.no_grad()
    def _ensemble(self, batch: Input) -> Tensor | None:
        """Logits of all slots' weighted mean; None where the inner method's own are the same."""
        weights = self.inner.weights
        alone = len(self.slots) == 1 and self.inner.predicts == "before"
        if not self.config.ensemble or weights is None or alone:
            return None
        with self.slots.lent(weights):
            weights.import_state(self.slots.mean(weights.parameters, self.shares))
            logits = self._look(batch)
        corrects = isinstance(self.inner, Roid) and self.inner.config.prior_correction
        return correct_prior(logits.float()) if corrects else logits

    def _look(self, batch: Input) -> Tensor:
        with self.inner.autocast():
            return self.inner.logits(batch)
