"""Optimizers by name, and their state as tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from ostinato.errors import StateError
from ostinato.ops.expect import ANYTHING, LARGEST, Expected, Kind, Like
from ostinato.ops.snapshot import State

OptimizerName = Literal["adam", "adamw", "sgd"]

_ADAM = {"step": 0.0, "exp_avg": -math.inf, "exp_avg_sq": 0.0}
_MOMENTS = {"Adam": _ADAM, "AdamW": _ADAM, "SGD": {"momentum_buffer": -math.inf}}
"""What each optimizer gathers for a parameter, with the least value it can have."""


def make_optimizer(
    name: OptimizerName,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> torch.optim.Optimizer:
    """Adam and AdamW with (0.9, 0.999), SGD with momentum.

    `nesterov` steps along the gradient plus the momentum that already counts it; without any
    momentum it changes nothing.

    >>> type(make_optimizer("sgd", [nn.Parameter(torch.ones(1))], lr=0.1)).__name__
    'SGD'
    """
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        optimizer = torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov and momentum > 0,
        )
    else:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        optimizer = kind(parameters, lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # what annealing starts from
    return optimizer


def export_optimizer(optimizer: torch.optim.Optimizer) -> State:
    """An optimizer's state as tensors by "index/name", and plain values."""
    full = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in full["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}/{name}"] = value.detach()
            else:
                plain.setdefault(str(index), {})[name] = _jsonable(name, value)
    settings = [
        {name: _jsonable(name, value) for name, value in group.items() if name != "params"}
        for group in full["param_groups"]
    ]
    kind = type(optimizer).__name__
    # Told apart from a file that lost a parameter's moments: which parameters have any.
    begun = sorted(full["state"])
    return State(tensors, {"kind": kind, "plain": plain, "settings": settings, "begun": begun})


def import_optimizer(
    optimizer: torch.optim.Optimizer, state: State, *, schedule: bool = True
) -> None:
    """Become what `export_optimizer` described; the parameters must be in the same order.

    Without `schedule` the learning rate and the other settings stay as they are.
    """
    entries: dict[int, dict[str, Any]] = {}
    for key, tensor in state.tensors.items():
        index, name = key.split("/", 1)
        entries.setdefault(int(index), {})[name] = tensor.detach().clone()
    for index, values in state.values["plain"].items():
        entries.setdefault(int(index), {}).update(values)
    groups = optimizer.state_dict()["param_groups"]
    if schedule:
        groups = [
            {**now, **{n: _like(now.get(n), v) for n, v in then.items()}}
            for now, then in zip(groups, state.values["settings"], strict=True)
        ]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


class OptimizerState:
    """An optimizer as something that can be saved, loaded and reset.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> state = OptimizerState(torch.optim.SGD([weight], lr=0.1, momentum=0.9)).export_state()
    >>> state.values["kind"]
    'SGD'
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def export_state(self) -> State:
        """See `export_optimizer`."""
        return export_optimizer(self.optimizer)

    def expected(self, state: State) -> Expected:
        """Moments in the shapes of the parameters, and the settings there are; rates may move."""
        lows = _MOMENTS.get(type(self.optimizer).__name__)
        if lows is None:
            return ANYTHING  # an optimizer of a user's own
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        begun = {name.partition("/")[0] for name in state.tensors}
        every = sorted({int(index) for index in (*begun, *state.values["plain"])})
        tensors = {
            f"{index}/{name}": Like((), torch.get_default_dtype(), low, LARGEST)
            if name == "step"
            else Like.of(p, low)
            for index, p in enumerate(parameters)
            if str(index) in begun
            for name, low in lows.items()
        }
        now = export_optimizer(self.optimizer).values
        idle = {str(index) for index in range(len(parameters))} - begun
        values = {"kind": Kind.exactly(now["kind"]), "settings": _settings(now["settings"])}
        return Expected(tensors, values | {"plain": _plain(idle), "begun": Kind.exactly(every)})

    def import_state(self, state: State) -> None:
        """See `import_optimizer`."""
        import_optimizer(self.optimizer, state)


def cosine(step: int, total: int) -> float:
    """Cosine annealing from 1 to 0 over `total` steps, without warm-up.

    >>> cosine(0, 10), round(cosine(5, 10), 3), round(cosine(10, 10), 3)
    (1.0, 0.5, 0.0)
    """
    return 0.5 * (1 + math.cos(math.pi * min(step, total) / total))


def total_norm(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Norm of all gradients together, to see a non-finite one before it is applied."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    return norm


def _jsonable(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_jsonable(name, item) for item in value]
    raise StateError(f"The optimizer's {name} is a {type(value).__name__}, which cannot be saved.")


def _like(now: Any, then: Any) -> Any:
    """JSON knows no tuples and no tensors; give a value back the type it has here."""
    if isinstance(now, tuple):
        return tuple(then)
    return torch.full_like(now, then) if isinstance(now, torch.Tensor) else then


def _settings(now: list[dict[str, Any]]) -> Kind:
    """The settings of every group as they are here, but for rates, which follow the stream."""
    rate = Kind.number(low=0)
    kinds = [
        {n: rate if n in ("lr", "initial_lr") else Kind.exactly(v) for n, v in group.items()}
        for group in now
    ]
    return Kind(
        "the optimizer's own settings",
        lambda value: (
            isinstance(value, list)
            and len(value) == len(kinds)
            and all(
                isinstance(group, dict) and group.keys() == k.keys()
                for group, k in zip(value, kinds, strict=True)
            )
            and all(k[n].fits(group[n]) for group, k in zip(value, kinds, strict=True) for n in k)
        ),
    )


def _plain(idle: set[str]) -> Kind:
    """What is no tensor: that a parameter has no momentum yet."""
    return Kind(
        "nothing but momentum that is not there",
        lambda value: (
            isinstance(value, dict)
            and set(value) <= idle
            and all(entry == {"momentum_buffer": None} for entry in value.values())
        ),
    )
