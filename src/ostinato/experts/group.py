"""One group of expert parameters (the shared branch, or one domain) with what travels with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ostinato.errors import StateError
from ostinato.ops.snapshot import State

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


class Group:
    """Parameters by name, their own optimizer, and the last snapshot of both.

    An ablation may leave a group without parameters; it then has no optimizer either.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> group = Group({"w": weight}, lambda p: torch.optim.SGD(p, lr=0.1))
    >>> group.keep()
    >>> weight.data.zero_().tolist(), group.restore(group.kept), weight.tolist()
    ([0.0, 0.0], None, [1.0, 1.0])
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], optimizer: MakeOptimizer) -> None:
        self.parameters = dict(parameters)
        values = list(self.parameters.values())
        self.optimizer = optimizer(values) if values else None
        self.kept: State | None = None

    def capture(self) -> State:
        """Parameters and optimizer as they are now; the tensors are the live ones."""
        tensors: dict[str, Tensor] = {
            f"parameters/{name}": p.detach() for name, p in self.parameters.items()
        }
        found, values = _pack(self.optimizer)
        tensors.update({f"optimizer/{name}": tensor for name, tensor in found.items()})
        return State(tensors, values)

    def keep(self, device: torch.device | None = None) -> None:
        """Take a snapshot, in place of the last one."""
        copy = self.capture().clone()
        if device is not None:
            copy.tensors = {name: t.to(device) for name, t in copy.tensors.items()}
        self.kept = copy

    @torch.no_grad()
    def restore(self, state: State | None, *, schedule: bool = False) -> None:
        """Become what `capture` gave. The learning rate comes back only with `schedule`."""
        assert state is not None
        for name, parameter in self.parameters.items():
            parameter.copy_(state.tensors[f"parameters/{name}"])
        self.zero_grad()
        if self.optimizer is not None:
            _unpack(self.optimizer, state.part("optimizer").tensors, state.values, schedule)

    def forget(self) -> None:
        """Clear what the optimizer has gathered."""
        if self.optimizer is not None:
            self.optimizer.state = defaultdict(dict)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def move(self, device: torch.device) -> None:
        """Parameters and optimizer state to a device; the parameters stay the same objects."""
        stray = [p for p in self.parameters.values() if p.device != device]
        if not stray:
            return
        self.zero_grad()
        for parameter in stray:
            parameter.data = parameter.data.to(device)
        if self.optimizer is not None:
            # Loading its own state makes an optimizer follow its parameters' device.
            self.optimizer.load_state_dict(self.optimizer.state_dict())

    def count(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters.values())


def check_state(
    state: State, shapes: Mapping[str, tuple[int, ...]], optimizer: Optimizer | None, where: str
) -> None:
    """Refuse a group's state that does not fit, before anything is changed.

    Args:
        state: as `Group.capture` gave it.
        shapes: of the parameters here, in order.
        optimizer: one like the group's, made for any parameter.
        where: the group, in words.
    """
    for name, shape in shapes.items():
        tensor = state.tensors.get(f"parameters/{name}")
        if tensor is None:
            raise StateError(f"The state has no {name} for {where}: it is another model's.")
        if tuple(tensor.shape) != shape:
            raise StateError(
                f"{name} of {where} has shape {tuple(tensor.shape)} in the state and {shape} "
                "here: use the same model, ranks and number of experts."
            )
    extra = {n for n in state.tensors if n.startswith("parameters/")} - {
        f"parameters/{n}" for n in shapes
    }
    if extra:
        raise StateError(f"The state has {sorted(extra)[0]} for {where}, which is not there here.")
    wanted = "" if optimizer is None else type(optimizer).__name__
    if state.values.get("kind") != wanted:
        raise StateError(
            f"The state was made with optimizer {state.values.get('kind')!r}, this pool has "
            f"{wanted!r}: use the same one."
        )
    groups = 0 if optimizer is None else len(optimizer.param_groups)
    indices = {n.split("/")[0] for n in state.part("optimizer").tensors} | set(
        state.values.get("plain", ())
    )
    known = {str(index) for index in range(len(shapes))}
    if len(state.values.get("settings", ())) != groups or not indices <= known:
        raise StateError(f"The optimizer state of {where} does not fit its parameters.")


def _pack(optimizer: Optimizer | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by "index/name", and plain values."""
    if optimizer is None:
        return {}, {"kind": "", "plain": {}, "settings": []}
    full = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in full["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}/{name}"] = value.detach()
            else:
                plain.setdefault(str(index), {})[name] = _jsonable(name, value)
    settings = [
        {name: _jsonable(name, value) for name, value in group.items() if name != "params"}
        for group in full["param_groups"]
    ]
    return tensors, {"kind": type(optimizer).__name__, "plain": plain, "settings": settings}


def _unpack(
    optimizer: Optimizer, tensors: dict[str, Tensor], values: dict[str, Any], schedule: bool
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        index, name = key.split("/", 1)
        state.setdefault(int(index), {})[name] = tensor.detach().clone()
    for index, entries in values["plain"].items():
        state.setdefault(int(index), {}).update(entries)
    groups = optimizer.state_dict()["param_groups"]
    if schedule:
        groups = [
            {**now, **{n: _like(now.get(n), v) for n, v in then.items()}}
            for now, then in zip(groups, values["settings"], strict=True)
        ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _jsonable(name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
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
    return torch.full_like(now, then) if isinstance(now, Tensor) else then
