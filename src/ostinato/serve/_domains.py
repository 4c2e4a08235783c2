"""One domain cut out of a state, and put into another: pure functions on `State`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ostinato.domains.router import Router
from ostinato.errors import StateError
from ostinato.ops.snapshot import State


def cut(state: State, domain: int) -> State:
    """A domain by itself: where it lies, its maps and branches, its latest images."""
    ids, key = _ids(state), str(domain)
    if domain not in ids or key not in state.values["bank"]:
        known = ", ".join(str(one) for one in ids[1:]) or "none"
        raise StateError(f"There is no domain {domain}. Domains: {known}.")
    row = ids.index(domain)
    kept = {name: state.tensors[f"router/{name}"][row] for name in Router.per_domain}
    tensors = {f"route/{name}": tensor.reshape(-1) for name, tensor in kept.items()}
    start = f"bank/{key}/"
    tensors |= {
        f"expert/{name[len(start) :]}": tensor
        for name, tensor in state.tensors.items()
        if name.startswith(start)
    }
    return State(tensors, {"expert": state.values["bank"][key]})


def added(state: State, part: State) -> tuple[State, int]:
    """The state with one more domain, and the id that it gets there."""
    route = _route(part)
    values = _copied(state.values)
    number = int(values["router"]["next_id"])
    values["router"]["ids"] = [*_ids(state), number]
    values["router"]["next_id"] = number + 1
    tensors = dict(state.tensors)
    for name in Router.per_domain:
        known = tensors[f"router/{name}"]
        fresh = route[name].to(known).reshape(1, *known.shape[1:])
        if name == "mix":
            fresh = torch.zeros_like(fresh)  # nothing of it has come here yet
        tensors[f"router/{name}"] = torch.cat([known, fresh])
    return _with_expert(State(tensors, values), part, number), number


def restored(state: State, part: State, domain: int) -> State:
    """The state with one domain's expert as it was; where it lies and its images stay."""
    if str(domain) not in state.values["bank"]:
        raise StateError(f"There is no domain {domain} now: import it instead.")
    recent = f"bank/{domain}/recent"
    kept = {recent: state.tensors[recent]} if recent in state.tensors else {}
    values = {name: state.values["bank"][str(domain)][name] for name in ("images", "waiting")}
    bare = State(
        {k: t for k, t in state.tensors.items() if not k.startswith(f"bank/{domain}/")},
        state.values,
    )
    found = _with_expert(bare, part, domain)
    found.tensors.pop(recent, None)
    found.tensors.update(kept)
    found.values["bank"][str(domain)] |= values
    return found


def _with_expert(state: State, part: State, domain: int) -> State:
    expert = part.values.get("expert")
    if not isinstance(expert, dict):
        raise StateError("This is no domain's state: it has no expert.")
    values = _copied(state.values)
    bank = values["bank"]
    bank[str(domain)] = _copied(expert)
    known = list(bank["bank"]["domains"])
    bank["bank"] = bank["bank"] | {"domains": known if domain in known else [*known, domain]}
    start = "expert/"
    tensors = dict(state.tensors)
    tensors |= {
        f"bank/{domain}/{name[len(start) :]}": tensor
        for name, tensor in part.tensors.items()
        if name.startswith(start)
    }
    return State(tensors, values)


def _route(part: State) -> dict[str, Tensor]:
    found = {name: part.tensors.get(f"route/{name}") for name in Router.per_domain}
    missing = sorted(name for name, tensor in found.items() if tensor is None)
    if missing:
        raise StateError(f"This is no domain's state: it has no {missing[0]}.")
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _ids(state: State) -> list[int]:
    return [int(domain) for domain in state.values["router"]["ids"]]


def _copied(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _copied(value) for key, value in values.items()}
    return values
