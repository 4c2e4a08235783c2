"""One group of expert parameters (the shared branch, or one domain) with what travels with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ostinato.errors import StateError
from ostinato.ops.expect import ANYTHING, Expected, Kind, Like
from ostinato.ops.optim import OptimizerState, export_optimizer, import_optimizer
from ostinato.ops.snapshot import State

_EMPTY: dict[str, Any] = {"kind": "", "plain": {}, "settings": []}
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
        found = State(values=_EMPTY) if self.optimizer is None else export_optimizer(self.optimizer)
        tensors.update({f"optimizer/{name}": tensor for name, tensor in found.tensors.items()})
        return State(tensors, found.values)

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
            found = State(state.part("optimizer").tensors, state.values)
            import_optimizer(self.optimizer, found, schedule=schedule)

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


def expected_group(group: Group, state: State) -> Expected:
    """What a state has to hold that `Group.capture` gave for a group like this one."""
    tensors = {f"parameters/{name}": Like.of(p) for name, p in group.parameters.items()}
    if group.optimizer is None:
        return Expected(tensors, {name: Kind.exactly(value) for name, value in _EMPTY.items()})
    inner = State(state.part("optimizer").tensors, state.values)
    wanted = OptimizerState(group.optimizer).expected(inner)
    if wanted is ANYTHING:
        return ANYTHING
    moments = {f"optimizer/{name}": one for name, one in wanted.tensors.items()}
    return Expected(tensors | moments, wanted.values)


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
