"""T3A: class templates from confident features take the classifier's place."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.ops.expect import Expected, Like
from ostinato.ops.heads import final_features, find_head, select_classes
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.snapshot import State
from ostinato.registry import METHODS


class _Supports:
    """Features with their labels and entropies, the surest few of each class."""

    def __init__(self, features: Tensor, labels: Tensor, entropies: Tensor, most: int) -> None:
        self.most = most
        self.features, self.labels, self.entropies = features, labels, entropies

    def add(self, features: Tensor, labels: Tensor, entropies: Tensor) -> None:
        """Take features in and let go of the least sure."""
        held = (self.features, self.labels, self.entropies)
        both = [torch.cat(pair) for pair in zip(held, (features, labels, entropies), strict=True)]
        keep = _surest(both[1], both[2], self.most)
        self.features, self.labels, self.entropies = (values[keep] for values in both)

    def templates(self, classes: int) -> Tensor:
        """(C, D): for each class the direction of the sum of its features' directions."""
        total = self.features.new_zeros(classes, self.features.shape[1])
        total.index_add_(0, self.labels, F.normalize(self.features, dim=1))
        return F.normalize(total, dim=1)

    def export_state(self) -> State:
        """All supports."""
        held = {"features": self.features, "labels": self.labels, "entropies": self.entropies}
        return State(held)

    def expected(self, state: State) -> Expected:
        """As many labels and entropies as features, each as wide as the classifier's rows."""
        classes = int(self.labels.max()) + 1  # every class starts with a row of its own
        entropies = Like(("supports",), self.entropies.dtype, low=0)
        return Expected(
            {
                "features": Like(("supports", self.features.shape[1]), self.features.dtype),
                "labels": Like(("supports",), torch.int64, 0, classes - 1),
                "entropies": entropies,
            }
        )

    def import_state(self, state: State) -> None:
        """Continue from there."""
        held = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
        self.features, self.labels = held["features"], held["labels"]
        self.entropies = held["entropies"]


@METHODS.register("t3a")
class T3a(Method):
    """Classify by the nearest template; templates start as the classifier's own rows.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("t3a").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="T3A",
        paper="Iwasawa and Matsuo, NeurIPS 2021",
        trains="nothing",
        setting="ImageNet-C, ViT-B/16, from later papers (its own: ResNet-50 on other data)",
        differences=(
            "20 supports a class, as ImageNet-C tables of later papers have it (its authors search "
            "1 to 100 by data set)"
        ),
        published="none on ImageNet-C: its authors adapt to unseen styles of other data sets",
        measured=(
            "beats Source on a real ViT-Tiny under returning corruptions: 77.4 against 78.3 % error"
        ),
    )

    class Config(MethodConfig):
        """Settings of T3A.

        >>> T3a.Config().supports
        20
        """

        supports: int = Field(20, ge=1, description="surest features kept for each class")

    presets = {"imagenet-c": {"supports": 20}}
    rates = ()

    @torch.no_grad()
    def configure(self) -> None:
        """The classifier's rows as the first supports, each labelled by the classifier itself."""
        head = find_head(self.model)
        self.classes = head.out_features
        rows = head.weight.detach().float().clone()
        scores = F.linear(rows, head.weight.float(), None if head.bias is None else head.bias)
        first = _Supports(rows, scores.argmax(1), softmax_entropy(scores), self.config.supports)
        self.supports = self.track("supports", first)

    @torch.no_grad()
    def objective(self, batch: Input) -> Objective:
        """One forward; the batch joins the supports before it is classified by them."""
        features, logits = final_features(self.model, batch.pixels)
        logits = select_classes(logits, batch.classes)
        labels = logits.argmax(1)
        if batch.classes is not None:
            labels = batch.classes[labels]
        self.supports.add(features, labels, softmax_entropy(logits))
        with torch.autocast(logits.device.type, enabled=False):
            scores = features @ self.supports.templates(self.classes).T
        return Objective(select_classes(scores, batch.classes))


def _surest(labels: Tensor, entropies: Tensor, most: int) -> Tensor:
    """Positions of the `most` lowest entropies of every label, in order of label.

    >>> _surest(torch.tensor([1, 0, 1, 1]), torch.tensor([0.3, 0.9, 0.1, 0.2]), 2).tolist()
    [1, 2, 3]
    """
    order = entropies.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(order), device=labels.device) - starts[labels[order]]
    return order[rank < most]
