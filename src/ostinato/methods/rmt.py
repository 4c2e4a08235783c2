"""RMT: a robust mean teacher, symmetric cross-entropy and a pull towards class prototypes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import ConfigError
from ostinato.methods._settings import TeacherConfig
from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.contract import Need
from ostinato.models import VisionModel
from ostinato.ops.augment import cotta_view
from ostinato.ops.consistency import symmetric_cross_entropy
from ostinato.ops.heads import final_features, find_head, select_classes
from ostinato.ops.snapshot import State
from ostinato.ops.teacher import Teacher
from ostinato.registry import METHODS


@METHODS.register("rmt")
class Rmt(Method):
    """Agree with a slow teacher on the image and on a view of it, close to a class prototype.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("rmt").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="RMT",
        paper="Döbler et al., CVPR 2023",
        trains="all parameters",
        setting="ImageNet-C, ResNet-50",
        differences=(
            "predicts the sum of student's and teacher's logits, as the release does; source-free: "
            "no replay of labelled source images, no warm-up, and without warm-up no projector; "
            "prototypes are the classifier's rows unless prototypes='source'; every image has its "
            "own draw of the view"
        ),
    )

    class Config(TeacherConfig):
        """Settings of RMT.

        >>> Rmt.Config().prototypes
        'weights'
        """

        lr: float = Field(0.01, ge=0, description="learning rate")
        contrast: float = Field(1.0, ge=0, description="weight of the pull towards prototypes")
        temperature: float = Field(0.1, gt=0, description="of the contrastive loss")
        prototypes: Literal["weights", "source"] = Field(
            "weights", description="rows of the classifier (source-free), or prepared class means"
        )

    presets = {
        "imagenet-c": {"optimizer": "sgd", "lr": 0.01},
        "cifar100-c": {"optimizer": "adam", "lr": 3e-4},
    }

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """A prepared file for prototypes of source images."""
        wanted = getattr(config, "prototypes", "weights") == "source"
        return frozenset({"prepared file"}) if wanted else frozenset()

    @classmethod
    def prepare(
        cls, model: VisionModel, images: Tensor, labels: Tensor | None, config: Any
    ) -> State:
        """Mean feature of each class; labels are the model's own where none are given."""
        features, logits = [], []
        with torch.no_grad():
            for part in images.split(50):
                feature, scores = final_features(model, part)
                features.append(feature)
                logits.append(scores)
        every, scores = torch.cat(features), torch.cat(logits)
        chosen = scores.argmax(1) if labels is None else labels.to(scores.device).long()
        return State({"prototypes": _class_means(every, chosen, find_head(model).weight)})

    def configure(self) -> None:
        """The teacher, and prototypes that stay."""
        rows = find_head(self.model).weight.detach().float()
        prototypes = rows.clone()
        if self.config.prototypes == "source":
            assert self.resources.prepared is not None
            given = self.resources.prepared.tensors.get("prototypes")
            if given is None or given.shape != rows.shape:
                raise ConfigError(
                    f"The prepared file has no prototypes of shape {tuple(rows.shape)}; it is "
                    "another model's or another method's. Run 'ostinato prepare rmt' again."
                )
            prototypes = given.to(rows.device)
        self._prototypes = prototypes
        self.teacher = self.track("teacher", Teacher(self.model, self.trainable(), self.config.ema))

    def trainable(self) -> dict[str, nn.Parameter]:
        """Everything."""
        return dict(self.model.base.named_parameters())

    def objective(self, batch: Input) -> Objective:
        """Symmetric cross-entropy with the teacher, plus the contrastive pull."""
        view = cotta_view(batch.pixels, self.random.generator)
        features, student = self._forward(batch, batch.pixels)
        seen, augmented = self._forward(batch, view)
        teacher = select_classes(self.teacher.logits(batch.pixels), batch.classes).float()
        loss = (
            0.5
            * (
                symmetric_cross_entropy(student, teacher)
                + symmetric_cross_entropy(augmented, teacher)
            ).mean()
        )
        if self.config.contrast > 0:
            nearest = _nearest_prototypes(features, _select_rows(self._prototypes, batch.classes))
            pull = _contrastive_loss([nearest, features, seen], self.config.temperature)
            loss = loss + self.config.contrast * pull
        return Objective(student + teacher, loss)

    def update(self, batch: Input, objective: Objective) -> bool:
        """Step the student, then let the teacher follow."""
        moved = super().update(batch, objective)
        self.teacher.update()
        return moved

    def _forward(self, batch: Input, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = final_features(self.model, pixels)
        return features, select_classes(logits, batch.classes).float()


def _class_means(features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """(C, D) mean feature of every class; the classifier's row where a class has no image."""
    total = torch.zeros(rows.shape, device=features.device)
    total.index_add_(0, labels, features.float())
    counts = torch.bincount(labels, minlength=len(rows)).unsqueeze(1)
    return torch.where(counts > 0, total / counts.clamp_min(1), rows.detach().float())


def _select_rows(prototypes: Tensor, classes: Tensor | None) -> Tensor:
    """The prototypes of the label space in use."""
    return prototypes if classes is None else prototypes.index_select(0, classes)


def _nearest_prototypes(features: Tensor, prototypes: Tensor) -> Tensor:
    """For each feature the prototype of largest cosine."""
    with torch.no_grad():
        cosine = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T
        return prototypes[cosine.argmax(1)]


def _contrastive_loss(views: list[Tensor], temperature: float) -> Tensor:
    """Each item's views attract one another and repel those of all other items.

    The mean over anchors of −log of the softmaxed similarity, averaged over an anchor's own other
    views. With one image there is nothing to repel; the views still attract.
    """
    items, count = len(views[0]), len(views)
    with torch.autocast(views[0].device.type, enabled=False):
        unit = F.normalize(torch.cat(views).float(), dim=1)
        similarity = unit @ unit.T / temperature
    itself = torch.eye(items * count, dtype=torch.bool, device=unit.device)
    similarity = similarity.masked_fill(itself, float("-inf"))
    logp = similarity.log_softmax(1).masked_fill(itself, 0.0)
    friends = torch.eye(items, device=unit.device).repeat(count, count).bool() & ~itself
    return -(logp * friends).sum(1).div(count - 1).mean()
