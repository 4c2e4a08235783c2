"""Coordinates in which what content alone changes has spread one in every direction.

Two clean photographs differ; so do two foggy ones, in much the same way. Seen in units of that
difference, a shift stands out in a single image. The coordinates come from clean images and are
refined by what arrives: deviations of images from their own domain's mean are content too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHRINK = 0.2
"""How far covariances of few images are drawn to their diagonal."""
FOLDS = 5


@dataclass(frozen=True)
class Content:
    """What descriptors of clean images are like.

    Attributes:
        mean: (d,) of clean images.
        scale: (d,) standard deviations, none vanishing.
        covariance: (d, d) of standardised descriptors.
        spread: mean of a clean image's squared whitened length over d, on images that the
            whitening did not see.
        images: how many there were.
    """

    mean: Tensor
    scale: Tensor
    covariance: Tensor
    spread: float
    images: int

    @classmethod
    def of(cls, descriptors: Tensor) -> Content:
        """From one descriptor a row; at least two rows."""
        values = descriptors.double()
        mean, scale = values.mean(0), values.std(0)
        scale = scale.clamp_min(max(0.05 * float(scale.median()), 1e-6))
        standard = (values - mean) / scale
        covariance = standard.T @ standard / len(standard)
        spread = held_out_spread(standard)
        return cls(mean.float(), scale.float(), covariance.float(), spread, len(values))

    def standard(self, descriptors: Tensor) -> Tensor:
        """(B, d) descriptors in units of clean deviations, on the CPU, in double precision."""
        return (descriptors.detach().cpu().double() - self.mean) / self.scale


def shrunk(covariance: Tensor) -> Tensor:
    """Drawn to its diagonal by `SHRINK`, and safely positive."""
    diagonal = covariance.diagonal().clamp_min(1e-4)
    return (
        (1 - SHRINK) * covariance
        + SHRINK * torch.diag(diagonal)
        + 1e-4 * torch.eye(len(covariance), dtype=covariance.dtype)
    )


def whitener(covariance: Tensor) -> Tensor:
    """A matrix L so that rows `z · L` have the identity as covariance.

    >>> l = whitener(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.double)))
    >>> [round(float(v), 2) for v in l.diagonal()]
    [0.5, 1.0]
    """
    lower = torch.linalg.cholesky(shrunk(covariance.double()))
    eye = torch.eye(len(covariance), dtype=torch.double)
    result: Tensor = torch.linalg.solve_triangular(lower, eye, upper=False).T
    return result


def held_out_spread(standard: Tensor) -> float:
    """Mean squared whitened length over d of rows that the whitening did not see."""
    count, width = standard.shape
    if count < 2 * FOLDS:
        return 1.0
    found = []
    for fold in range(FOLDS):
        rest = torch.arange(count) % FOLDS != fold
        seen = standard[rest]
        seen = seen - seen.mean(0)
        unseen = standard[~rest] @ whitener(seen.T @ seen / len(seen))
        found.append(float(unseen.square().sum(1).mean()) / width)
    return sum(found) / len(found)
