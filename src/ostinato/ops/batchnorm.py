"""Batch norms with other statistics than the source's, without touching them.

A norm's input is moved so that the norm, which goes on using its running statistics, gives what it
would give under the others. Nothing in the norm changes, so that whatever a library's own batch
norm does besides (timm's holds the activation) stays, and taking the hooks off is all it takes to
have the source model back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ostinato.errors import StateError
from ostinato.ops.snapshot import State


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms that keep running statistics, by name.

    >>> list(batch_norms(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))))
    ['1']
    """
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def moves_batch_norms(model: nn.Module, parameters: Iterable[nn.Parameter]) -> bool:
    """Whether a scale or shift of a batch norm is among the parameters."""
    own = {id(p) for norm in batch_norms(model).values() for p in norm.parameters(recurse=False)}
    return any(id(parameter) in own for parameter in parameters)


def _batch_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of (B, C, ...) by channel.

    >>> [v.tolist() for v in _batch_moments(torch.tensor([[1.0], [3.0]]))]
    [[2.0], [1.0]]
    """
    variance, mean = torch.var_mean(x.float(), [0, *range(2, x.ndim)], correction=0)
    return mean, variance


def _renormed(x: Tensor, norm: _BatchNorm, mean: Tensor, variance: Tensor) -> Tensor:
    """What the norm has to get so that it gives `x` normalised by other statistics.

    >>> norm = nn.BatchNorm1d(1, affine=False).eval()
    >>> x = torch.tensor([[2.0], [6.0]])
    >>> [round(float(v), 3) for v in norm(_renormed(x, norm, *_batch_moments(x)))]
    [-1.0, 1.0]
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    scale = ((norm.running_var.float() + norm.eps) / (variance + norm.eps)).sqrt()
    moved = (x.float() - mean.view(shape)) * scale.view(shape)
    return (moved + norm.running_mean.float().view(shape)).to(x.dtype)


def _renormed_by_batch(x: Tensor, norm: _BatchNorm) -> Tensor:
    """`_renormed` by the batch's own moments in one operator, forwards and backwards.

    >>> norm = nn.BatchNorm1d(1, affine=False).eval()
    >>> x = torch.tensor([[2.0], [6.0]])
    >>> torch.allclose(_renormed_by_batch(x, norm), _renormed(x, norm, *_batch_moments(x)))
    True
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    spread = (norm.running_var.float() + norm.eps).sqrt()
    mean = norm.running_mean.float()
    moved = F.batch_norm(x.float(), None, None, spread, mean, training=True, eps=norm.eps)
    return moved.to(x.dtype)


class OtherStatistics(ABC):
    """A hook on every batch norm of a model, until it is removed.

    Attributes:
        on: False lets the source's statistics count.
    """

    def __init__(self, model: nn.Module) -> None:
        self.on = True
        self._handles = [
            norm.register_forward_pre_hook(self) for norm in batch_norms(model).values()
        ]

    def __call__(self, norm: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The hook: the input that stands for the other statistics."""
        moved = self.moved(norm, inputs[0]) if self.on else None
        return None if moved is None else (moved, *inputs[1:])

    def moved(self, norm: Any, x: Tensor) -> Tensor | None:
        """The norm's input under other statistics; None keeps it."""
        found = self.statistics(norm, x)
        return None if found is None else _renormed(x, norm, *found)

    @abstractmethod
    def statistics(self, norm: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance to normalise by; None keeps the norm's own."""

    def remove(self) -> None:
        """Back to the source's statistics."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class BatchStatistics(OtherStatistics):
    """While it is there, batch norms see the batch's own mean and variance.

    A channel that has a single value in a batch keeps the source's.

    Args:
        model: whose batch norms.
        prior: source images that the source's statistics count as beside the batch's.

    >>> net = nn.Sequential(nn.BatchNorm1d(1, affine=False)).eval()
    >>> x = torch.tensor([[2.0], [6.0]])
    >>> with BatchStatistics(net):
    ...     inside = net(x)
    >>> [round(float(v), 3) for v in inside], [round(float(v), 3) for v in net(x)]
    ([-1.0, 1.0], [2.0, 6.0])
    """

    def __init__(self, model: nn.Module, prior: int = 0) -> None:
        super().__init__(model)
        self.prior = prior
        self.images = 1  # of the present batch; only a prior asks

    def statistics(self, norm: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """The batch's, mixed with the source's by images where there is a prior."""
        if x.numel() // x.shape[1] < 2:
            return None
        mean, variance = _batch_moments(x)
        if self.prior:
            share = self.images / (self.images + self.prior)
            mean = torch.lerp(norm.running_mean.float(), mean, share)
            variance = torch.lerp(norm.running_var.float(), variance, share)
        return mean, variance

    def moved(self, norm: Any, x: Tensor) -> Tensor | None:
        """In one operator where the batch alone counts."""
        if self.prior or x.numel() // x.shape[1] < 2:
            return super().moved(norm, x)
        return _renormed_by_batch(x, norm)

    def __enter__(self) -> BatchStatistics:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class FollowingStatistics(OtherStatistics):
    """Batch norms with statistics that follow the batches slowly (RoTTA's robust batch norm).

    Args:
        model: whose batch norms.
        rate: share of a batch in new statistics.
        names: who has statistics of their own, such as a teacher and a student.

    Attributes:
        who: whose turn it is.
        following: whether what passes now changes them.

    >>> model = nn.Sequential(nn.BatchNorm2d(3)).eval()
    >>> norms = FollowingStatistics(model, rate=0.5, names=("student",))
    >>> norms.following = True
    >>> bright = model(torch.full((2, 3, 4, 4), 2.0))
    >>> norms.values["student.0.mean"]
    tensor([1., 1., 1.])
    """

    def __init__(self, model: nn.Module, rate: float, names: tuple[str, ...]) -> None:
        super().__init__(model)
        self.rate, self.who, self.following = rate, names[0], False
        self._norms = batch_norms(model)
        self.values = {
            f"{who}.{name}.{part}": getattr(norm, f"running_{part}").detach().float().clone()
            for who in names
            for name, norm in self._norms.items()
            for part in ("mean", "var")
        }

    def statistics(self, norm: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Those of whose turn it is, moved towards the batch's while following."""
        name = next(name for name, one in self._norms.items() if one is norm)
        places = [f"{self.who}.{name}.{part}" for part in ("mean", "var")]
        mean, variance = (self.values[place].to(x.device) for place in places)
        if self.following and x.numel() // x.shape[1] > 1:
            now = _batch_moments(x)
            mean, variance = (
                torch.lerp(mean, now[0], self.rate),
                torch.lerp(variance, now[1], self.rate),
            )
            for place, value in zip(places, (mean, variance), strict=True):
                self.values[place] = value.detach()
        return mean, variance

    def export_state(self) -> State:
        """Everyone's statistics."""
        return State(dict(self.values))

    def import_state(self, state: State) -> None:
        """Take statistics over; checks names and shapes first."""
        for name, value in self.values.items():
            given = state.tensors.get(name)
            if given is None or given.shape != value.shape:
                raise StateError(f"The state has no fitting batch norm statistics for {name!r}.")
        self.values = {name: state.tensors[name].clone() for name in self.values}
