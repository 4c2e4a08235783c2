"""Optimizers by name, and their state as tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from ostinato.ops.snapshot import State

OptimizerName = Literal["adam", "adamw", "sgd"]


def make_optimizer(
    name: OptimizerName,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
) -> torch.optim.Optimizer:
    """Adam and AdamW with (0.9, 0.999), SGD with momentum.

    >>> type(make_optimizer("sgd", [nn.Parameter(torch.ones(1))], lr=0.1)).__name__
    'SGD'
    """
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    else:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        optimizer = kind(parameters, lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # what annealing starts from
    return optimizer


def export_optimizer(optimizer: torch.optim.Optimizer) -> State:
    """Every parameter's optimizer state, by its position, and each group's numbers."""
    packed = optimizer.state_dict()
    state = State(values={"numbers": {}, "lr": [group["lr"] for group in packed["param_groups"]]})
    for position, entries in packed["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                state.tensors[f"{position}.{key}"] = value
            elif value is not None:
                state.values["numbers"][f"{position}.{key}"] = value
    return state


def import_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Become what `export_optimizer` described; the parameters must be in the same order."""
    packed = optimizer.state_dict()
    packed["state"] = {}
    for source in (state.tensors, state.values.get("numbers", {})):
        for name, value in source.items():
            position, key = name.split(".", 1)
            kept = value.detach().clone() if isinstance(value, torch.Tensor) else value
            packed["state"].setdefault(int(position), {})[key] = kept
    for group, lr in zip(packed["param_groups"], state.values.get("lr", []), strict=False):
        group["lr"] = lr
    optimizer.load_state_dict(packed)


class OptimizerState:
    """An optimizer as something that can be saved, loaded and reset."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def export_state(self) -> State:
        """See `export_optimizer`."""
        return export_optimizer(self.optimizer)

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
