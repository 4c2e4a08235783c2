"""CoTTA: a weight-averaged teacher over augmented views, and stochastic restoration."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.methods._settings import TeacherConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.augment import cotta_view
from ostinato.ops.consistency import soft_cross_entropy, symmetric_cross_entropy
from ostinato.ops.heads import select_classes
from ostinato.ops.teacher import Substitute, Teacher, restore_
from ostinato.ops.views import mean_probabilities
from ostinato.registry import METHODS


@METHODS.register("cotta")
class Cotta(Method):
    """Learn from a slow teacher, averaged over views where the source model is unsure.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("cotta").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="CoTTA",
        paper="Wang et al., CVPR 2022",
        trains="all parameters",
        setting="ImageNet-C, ViT-B/16, from ViDA's release (its own: ResNet-50, lr 0.01)",
        differences=(
            "every image has its own draw of the augmentation (the release draws once per batch); "
            "class token and position embeddings move too; restoration draws the same Bernoulli "
            "process by its gaps; segmentation learns at the model's own output resolution"
        ),
        predicts="teacher",
        tasks=frozenset({"classification", "segmentation"}),
        colours={"": 4},
    )

    class Config(TeacherConfig):
        """Settings of CoTTA.

        >>> Cotta.Config().loss
        'symmetric'
        """

        lr: float = Field(1e-4, ge=0, description="learning rate")
        restore: float = Field(0.001, ge=0, le=1, description="chance of a weight's restoration")
        views: int = Field(32, ge=1, description="augmented views the teacher averages")
        threshold: float = Field(
            0.1, ge=0, le=1, description="source confidence below which views are used"
        )
        scales: tuple[float, ...] = Field(
            (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0),
            description="segmentation's views: these scales, plain and flipped",
        )
        loss: Literal["symmetric", "plain", "hard"] = Field(
            "symmetric", description="cross-entropy both ways, one way, or with hard labels"
        )

    presets = {
        "imagenet-c": {"optimizer": "sgd", "lr": 1e-4, "restore": 0.001, "threshold": 0.1},
        "cifar100-c": {
            "optimizer": "adam",
            "lr": 3e-4,
            "restore": 0.01,
            "threshold": 0.92,
            "loss": "plain",
        },
        "acdc": {
            "optimizer": "adam",
            "lr": 7.5e-6,
            "restore": 0.01,
            "threshold": 0.69,
            "loss": "hard",
        },
    }

    def configure(self) -> None:
        """The teacher starts as the source model; the anchor stays it."""
        self.teacher = self.track("teacher", Teacher(self.model, self.trainable(), self.config.ema))
        self._anchor = Substitute(self.model, self.trainable())

    def trainable(self) -> dict[str, nn.Parameter]:
        """Everything."""
        return dict(self.model.base.named_parameters())

    def objective(self, batch: Input) -> Objective:
        """Consistency of the student with the teacher, whose logits are the prediction."""
        student = self.logits(batch)
        with torch.no_grad():
            taught = self._teach_pixels(batch) if student.ndim > 2 else self._teach_images(batch)
        if self.config.loss == "hard":
            return Objective(taught, F.cross_entropy(student.float(), taught.argmax(1)))
        symmetric = self.config.loss == "symmetric"
        distance = symmetric_cross_entropy if symmetric else soft_cross_entropy
        return Objective(taught, distance(student, taught).mean())

    def update(self, batch: Input, objective: Objective) -> bool:
        """Step the student, let the teacher follow, restore a few weights."""
        assert self.weights is not None
        moved = super().update(batch, objective)
        self.teacher.update()
        chance, generator = self.config.restore, self.random.generator
        restore_(self.weights.parameters, self.weights.source, chance, generator)
        return moved

    def _teach_images(self, batch: Input) -> Tensor:
        """The teacher's logits; averaged over views where the batch is unsure on average."""
        confidence = self._source_logits(batch).float().softmax(1).amax(1).mean()
        if float(confidence) >= self.config.threshold:
            return self._teacher_logits(batch, batch.pixels)
        views = (cotta_view(batch.pixels, self.random.generator) for _ in range(self.config.views))
        return torch.stack([self._teacher_logits(batch, view) for view in views]).mean(0)

    def _teach_pixels(self, batch: Input) -> Tensor:
        """Log-probabilities; averaged over scales and flips where the source pixel is unsure."""
        taught = self._teacher_logits(batch, batch.pixels)
        plain = taught.log_softmax(1)
        confidence = self._source_logits(batch).float().softmax(1).amax(1, keepdim=True)
        sure = confidence > self.config.threshold
        if bool(sure.all()):
            return plain
        averaged = mean_probabilities(
            lambda pixels: self._teacher_logits(batch, pixels),
            batch.pixels,
            self.config.scales,
            together=True,
            plain=taught,
        )
        return torch.where(sure, plain, averaged.clamp_min(1e-12).log())

    def _teacher_logits(self, batch: Input, pixels: Tensor) -> Tensor:
        return select_classes(self.teacher.logits(pixels).float(), batch.classes)

    def _source_logits(self, batch: Input) -> Tensor:
        assert self.weights is not None
        return select_classes(self._anchor(self.weights.source, batch.pixels), batch.classes)
