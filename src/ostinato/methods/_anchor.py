"""Source statistics of the final features, and how far a batch's are from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, StateError
from ostinato.ops.heads import final_features
from ostinato.ops.losses import entropy_threshold, softmax_entropy
from ostinato.ops.prompts import inserted
from ostinato.ops.snapshot import State


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of features, each (D,)."""

    mean: Tensor
    std: Tensor

    @property
    def key(self) -> Tensor:
        """Both in one vector, (2·D,)."""
        return torch.cat([self.mean, self.std])

    @classmethod
    def of(cls, features: Tensor, single: Tensor) -> Moments:
        """Of a batch (B, D); one image has no spread, so it is given `single`."""
        if len(features) < 2:
            return cls(features[0], single)
        # The floor keeps the root's gradient finite where there is no spread at all.
        return cls(features.mean(0), features.var(0).clamp_min(1e-12).sqrt())

    def gap(self, other: Moments) -> Tensor:
        """‖difference of means‖ + ‖difference of standard deviations‖.

        >>> one = Moments(torch.zeros(2), torch.ones(2))
        >>> float(one.gap(Moments(torch.tensor([3.0, 4.0]), torch.ones(2))))
        5.0
        """
        apart = self.mean - other.mean, self.std - other.std
        return torch.stack([torch.linalg.vector_norm(a) for a in apart]).sum()

    def gaps(self, features: Tensor) -> Tensor:
        """Squared differences (2·D,) of a batch's (B, D) moments: means, then deviations.

        One image has no spread, so it is given this one's.
        """
        std = features.std(0) if len(features) > 1 else self.std
        return torch.cat([features.mean(0) - self.mean, std - self.std]).square()

    def to(self, device: torch.device) -> Moments:
        """The same numbers on another device."""
        return Moments(self.mean.to(device), self.std.to(device))


@torch.no_grad()
def collect_anchor(
    model: nn.Module, images: Tensor, batch: int = 50, kappa: float | None = None
) -> State:
    """Moments of the final features over source images (300 are enough).

    With `kappa`, only images count whose prediction has an entropy below kappa · ln C; all of them
    where fewer than two do.
    """
    if len(images) < 2:
        raise ConfigError(
            f"Source moments need at least 2 images (300 are good), not {len(images)}."
        )
    parts = [final_features(model, part) for part in images.split(batch)]
    found, logits = (torch.cat(some) for some in zip(*parts, strict=True))
    if kappa is not None:
        sure = softmax_entropy(logits) < entropy_threshold(kappa, logits.shape[1])
        found = found[sure] if int(sure.sum()) > 1 else found
    return State({"mean": found.mean(0), "std": found.std(0)}, {"images": len(found)})


def read_anchor(state: State, width: int, device: torch.device) -> Moments:
    """The source's moments from a prepared file, checked against the model's width."""
    if set(state.tensors) != {"mean", "std"} or len(state.tensors["mean"]) != width:
        raise StateError(
            f"The prepared file does not hold final-feature moments of width {width}: it is of "
            "another method or model. Prepare again with this one."
        )
    return Moments(state.tensors["mean"], state.tensors["std"]).to(device)


def prompted_features(
    model: nn.Module, pixels: Tensor, prompt: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Final features (B, D) in fp32 and logits, with prompt tokens where there are any."""
    if prompt is None:
        return final_features(model, pixels)
    with inserted(model, prompt):
        return final_features(model, pixels)
