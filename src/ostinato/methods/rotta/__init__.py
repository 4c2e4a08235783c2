"""RoTTA: a slow teacher and a balanced memory bank, for streams whose labels are correlated."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.rotta._bank import BalancedBank
from ostinato.ops.augment import cotta_view
from ostinato.ops.batchnorm import FollowingStatistics, batch_norms
from ostinato.ops.consistency import soft_cross_entropy
from ostinato.ops.heads import select_classes
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.snapshot import Scalars
from ostinato.ops.teacher import Teacher
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("rotta")
class Rotta(Method):
    """Learn from a bank of fresh, certain images of all classes, taught by a slow teacher.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("rotta").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="RoTTA",
        paper="Yuan et al., CVPR 2023",
        trains="affine parameters of every normalisation layer",
        setting="CIFAR-C, WideResNet and ResNeXt",
        differences=(
            "its robust batch norm works where a model has batch norms; other norms are trained "
            "likewise; images of other sizes are resized to the bank's first; every image has its "
            "own draw of the view"
        ),
        predicts="teacher",
    )

    class Config(MethodConfig):
        """Settings of RoTTA.

        >>> Rotta.Config().uncertainty_weight
        1.0
        """

        capacity: int = Field(64, ge=1, description="images in the bank")
        every: int = Field(64, ge=1, description="images between updates")
        rate: float = Field(0.001, ge=0, le=1, description="share of the student in the teacher")
        norm_rate: float = Field(
            0.05, ge=0, le=1, description="share of a bank in batch statistics"
        )
        age_weight: float = Field(1.0, ge=0, description="weight of age in the bank's score")
        uncertainty_weight: float = Field(1.0, ge=0, description="weight of entropy in the score")

    presets = {"imagenet-c": {"optimizer": "adam", "lr": 1e-3, "capacity": 64}}
    batch_statistics = False  # they follow the bank slowly

    def configure(self) -> None:
        """Teacher, bank, and a count of the images seen; the bank's classes are known later."""
        momentum = 1 - self.config.rate
        self.teacher = self.track("teacher", Teacher(self.model, self.trainable(), momentum))
        config = self.config
        # The number of classes is the model's own; the first forward tells it.
        self.bank = self.track(
            "bank",
            BalancedBank(config.capacity, 0, config.age_weight, config.uncertainty_weight),
        )
        self.seen = self.track("seen", Scalars(images=0))
        self.following: FollowingStatistics | None = None
        if batch_norms(self.model.base):
            who = ("teacher", "student")
            norms = FollowingStatistics(self.model.base, config.norm_rate, who)
            self._norms = self.following = self.track("batch_norms", norms)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases."""
        return norm_parameters(self.model.base)

    def steps(self, batch: Input) -> int:
        """The bank decides when to learn; a batch passes once."""
        return 1

    def objective(self, batch: Input) -> Objective:
        """The teacher's prediction; what is learned comes from the bank."""
        whole = self.teacher.logits(batch.pixels).float()
        self.bank.classes = whole.shape[1]
        return Objective(select_classes(whole, batch.classes), used=0)

    def update(self, batch: Input, objective: Objective) -> bool:
        """Offer every image to the bank; learn from it each time enough have passed."""
        taught = objective.logits
        labels = taught.argmax(1)
        if batch.classes is not None:
            labels = batch.classes[labels]
        offers = zip(labels.tolist(), softmax_entropy(taught).tolist(), strict=True)
        moved = False
        for image, (label, entropy) in zip(batch.pixels, offers, strict=True):
            self.bank.add(image, label, entropy)
            self.seen["images"] += 1
            if self.seen["images"] % self.config.every == 0:
                moved |= self._learn(batch, objective)
        return moved

    def _learn(self, batch: Input, objective: Objective) -> bool:
        assert self.optimizer is not None
        with self.autocast():
            lesson = self._lesson(batch, self.bank.images())
        self._turn("teacher", following=False)
        moved = self.descend(lesson, [self.optimizer])
        objective.extra |= lesson.extra
        self.teacher.update()
        return moved

    def _lesson(self, batch: Input, images: Tensor) -> Objective:
        """Cross-entropy of the student on a view with the teacher on the image, by timeliness."""
        view = cotta_view(images, self.random.generator)
        self._turn("teacher", following=True)
        with torch.no_grad():
            target = select_classes(self.teacher.logits(images), batch.classes)
        self._turn("student", following=True)
        student = self.logits(batch, view)
        weights = self.bank.timeliness().to(images.device)
        return Objective(student, (weights * soft_cross_entropy(student, target)).mean())

    def _turn(self, who: str, following: bool) -> None:
        """Whose statistics batch norms use from now on, and whether they follow what comes."""
        if self.following is not None:
            self.following.who, self.following.following = who, following
