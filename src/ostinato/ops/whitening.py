"""Coordinates in which what content alone changes has spread one in every direction.

Two clean photographs differ; so do two foggy ones. Seen in units of that difference, a shift stands
out in a single image. How content varies is taken from clean images and from plain alterations of
them (`ops._altered`), each around its own mean. Far from the clean ones descriptors vary more, in
proportion, so distances are then taken on a scale that is even near the clean images and
logarithmic far away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_SHRINK = 0.2
"""How far covariances of few images are drawn to their diagonal."""
_FOLDS = 5
PLACING = ("mean", "scale", "turn", "centre", "whiten")
"""The tensors that descriptors are placed by."""
WIDE = ("turn", "whiten")
"""Those of them that files hold in half precision."""


@dataclass(frozen=True)
class Content:
    """What descriptors of clean images are like, and how content varies.

    Attributes:
        images: how many clean images there were.
        mean: (d,) of clean images.
        scale: (d,) standard deviations, none vanishing.
        turn: (d, d) from standardised descriptors to even coordinates.
        centre: (d,) where clean images lie once these are bent.
        whiten: (d, d) from bent coordinates to those in which content has spread one.

    >>> clean = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    >>> placed = Content.of(clean).place(torch.cat([clean[:1], clean[:1] + 30]))
    >>> bool(placed[1].norm() > 3 * placed[0].norm())
    True
    """

    images: int
    mean: Tensor
    scale: Tensor
    turn: Tensor
    centre: Tensor
    whiten: Tensor

    @classmethod
    def of(cls, clean: Tensor, altered: Sequence[Tensor] = ()) -> Content:
        """From one descriptor a row.

        Args:
            clean: of clean images, at least two.
            altered: of altered ones, a tensor for each alteration.
        """
        values = clean.double()
        mean, scale = values.mean(0), values.std(0)
        scale = scale.clamp_min(max(0.05 * float(scale.median()), 1e-6))
        rest = [group.double() for group in altered if len(group) > 1]
        groups = [(group - mean) / scale for group in (values, *rest)]
        turn = _even(_within(groups))
        bent = [_bend(group @ turn) for group in groups]
        whiten = _whitener(_within(bent))
        unit = _held_out(groups, whiten)
        parts = (mean, scale, turn.half(), bent[0].mean(0), (whiten / unit**0.5).half())
        return cls(len(values), *(part.float() for part in parts))  # files hold the wide ones so

    def to(self, device: torch.device | str) -> Content:
        """The same on another device, where descriptors can then be placed."""
        parts = (getattr(self, name).to(device) for name in PLACING)
        return Content(self.images, *parts)

    def place(self, descriptors: Tensor) -> Tensor:
        """(B, d) descriptors in units of content's deviations, in double precision."""
        turned, turn, whitened, whiten = self._exact
        even = torch.addmm(turned, descriptors.detach().double(), turn)
        return torch.addmm(whitened, _bend(even), whiten)

    @cached_property
    def _exact(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is added in each of the two products, and their matrices, in double precision.

        Mean and scale are part of the first, the centre of the second: `(z - mean) / scale · turn`
        is `z · (turn / scale) - mean / scale · turn`.
        """
        with torch.inference_mode(False):  # they are kept, so they must be usable anywhere
            mean, scale, turn, centre, whiten = (getattr(self, name).double() for name in PLACING)
            turned, whitened = -(mean / scale) @ turn, -centre @ whiten
            return turned, (turn / scale[:, None]).contiguous(), whitened, whiten.contiguous()


def _bend(values: Tensor) -> Tensor:
    """Even near 0, logarithmic far away: sign(v) · ln(1 + |v|).

    >>> [round(float(v), 2) for v in _bend(torch.tensor([0.01, -1.0, 100.0]))]
    [0.01, -0.69, 4.62]
    """
    return values.abs().log1p().copysign(values)


def _within(groups: Sequence[Tensor]) -> Tensor:
    """(d, d) covariance of rows around their own group's mean.

    >>> _within([torch.tensor([[0.0], [2.0]]), torch.tensor([[10.0], [12.0]])]).item()
    1.0
    """
    off = torch.cat([group - group.mean(0) for group in groups])
    return off.T @ off / len(off)


def _shrunk(covariance: Tensor) -> Tensor:
    """Drawn to its diagonal by `_SHRINK`, and safely positive."""
    diagonal = covariance.diagonal().clamp_min(1e-4)
    return (
        (1 - _SHRINK) * covariance
        + _SHRINK * torch.diag(diagonal)
        + 1e-4 * torch.eye(len(covariance), dtype=covariance.dtype)
    )


def _even(covariance: Tensor) -> Tensor:
    """The symmetric matrix that gives rows of this covariance spread one, moving them least.

    >>> l = _even(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.double)))
    >>> [round(float(v), 2) for v in l.diagonal()]
    [0.5, 1.0]
    """
    values, vectors = torch.linalg.eigh(_shrunk(covariance.double()))
    result: Tensor = (vectors * values.rsqrt()) @ vectors.T
    return result


def _whitener(covariance: Tensor) -> Tensor:
    """A matrix L so that rows `z · L` have the identity as covariance.

    >>> l = _whitener(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.double)))
    >>> [round(float(v), 2) for v in l.diagonal()]
    [0.5, 1.0]
    """
    lower = torch.linalg.cholesky(_shrunk(covariance.double()))
    eye = torch.eye(len(covariance), dtype=torch.double)
    result: Tensor = torch.linalg.solve_triangular(lower, eye, upper=False).T
    return result


def _held_out(groups: Sequence[Tensor], whiten: Tensor) -> float:
    """Mean squared length over d, in the final coordinates, of rows that `turn` did not see.

    Args:
        groups: standardised descriptors, clean and altered.
        whiten: what is applied after bending.
    """
    if min(len(group) for group in groups) < 2 * _FOLDS:
        return 1.0
    found = []
    for fold in range(_FOLDS):
        rest = [torch.arange(len(group)) % _FOLDS != fold for group in groups]
        turn = _even(_within([group[some] for group, some in zip(groups, rest, strict=True)]))
        for group, some in zip(groups, rest, strict=True):
            bent = _bend(group @ turn)
            off = (bent[~some] - bent[some].mean(0)) @ whiten
            found.append(off.square().sum(1))
    lengths = torch.cat(found)
    return float(lengths.mean()) / groups[0].shape[1]
