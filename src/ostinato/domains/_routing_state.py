"""What a router's state has to be before it is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ostinato.errors import StateError
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State

PER_DOMAIN = ("sums", "counts", "mix", "spreads", "untested")
"""Tensors with a row for every domain."""
NAMES = (*PER_DOMAIN, "recent", "owner")


@dataclass(frozen=True)
class RoutingState:
    """A state that was read: tensors by name, and the numbers beside them."""

    tensors: dict[str, Tensor]
    ids: list[int]
    next_id: int
    unrenewed: int


def expected_routing(state: State, types: Mapping[str, torch.dtype]) -> Expected:
    """Tensors of the types that the router has, and counts; `read_routing` checks the rest."""
    tensors = {n: Like(tuple(state.tensors[n].shape), kind) for n, kind in types.items()}
    values = {"ids": Kind.ids(), "next_id": Kind.count(1), "unrenewed": Kind.count()}
    return Expected(tensors, values)


def read_routing(state: State, width: int) -> RoutingState:
    """The parts of a router's state, on the CPU, or a StateError that says what is wrong.

    Args:
        state: what `Router.export_state` gave.
        width: of a descriptor.
    """
    values = state.values
    missing = sorted({*NAMES} - {*state.tensors})
    missing += sorted({"ids", "next_id", "unrenewed"} - {*values})
    if missing:
        raise StateError(f"The router's state has no {missing[0]}.")
    given = {name: state.tensors[name].detach().cpu().clone() for name in NAMES}
    ids = [int(domain) for domain in values["ids"]]
    for name, shape in _shapes(len(ids), len(given["recent"]), width).items():
        if tuple(given[name].shape) != shape:
            raise StateError(f"The router's {name} has shape {tuple(given[name].shape)}.")
    next_id = int(values["next_id"])
    together = ids[:1] == [0] and len(set(ids)) == len(ids) and max(ids) < next_id
    if not together or not set(given["owner"].tolist()) <= set(ids):
        raise StateError("The router's domains do not fit together.")
    for name in ("counts", "spreads"):
        if not bool((given[name] > 0).all()):
            raise StateError(f"The router's {name} are not all above 0.")
    return RoutingState(given, ids, next_id, int(values["unrenewed"]))


def _shapes(domains: int, recent: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        "sums": (domains, width),
        "counts": (domains,),
        "mix": (domains,),
        "spreads": (domains,),
        "untested": (domains,),
        "recent": (recent, width),
        "owner": (recent,),
    }
