"""A pool's state: what is written, and how one is checked and taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ostinato.errors import StateError
from ostinato.experts.group import check_state
from ostinato.ops.snapshot import State

if TYPE_CHECKING:
    from ostinato.experts.pool import ExpertPool


def export_pool(pool: ExpertPool) -> State:
    """Every group's parameters, optimizer and snapshot, and the lists of domains."""
    parts = {}
    for name, group in pool.groups.items():
        kept = {} if group.kept is None else {"kept": group.kept}
        parts[str(name)] = State.join({"now": group.capture(), **kept})
    whole = State.join(parts)
    whole.values["pool"] = {
        "layers": {name: layer.dim for name, layer in pool.layers.items()},
        "domains": list(pool.domains),
        "used": list(pool.used),
        "active": list(pool.active) if isinstance(pool.active, tuple) else pool.active,
    }
    return whole


def import_pool(pool: ExpertPool, state: State) -> None:
    """Take a state over, after all of it was checked."""
    facts = _checked(pool, state)
    state = state.clone()  # it may hold the very tensors that are about to be written
    pool.deselect()
    _arrange(pool, facts["domains"])
    for name, group in pool.groups.items():
        part = state.part(str(name))
        group.restore(part.part("now"), schedule=True)
        group.kept = part.part("kept") if "kept" in part.values else None
        if group.kept is not None:
            where = torch.device("cpu") if pool.offload else pool.device
            group.kept.tensors = {n: t.to(where) for n, t in group.kept.tensors.items()}
    pool.settle(facts["active"], facts["used"])


def _arrange(pool: ExpertPool, domains: list[int]) -> None:
    """The state's domains in the state's order; groups that exist keep their parameters."""
    for domain in pool.domains:
        if domain not in domains:
            pool.remove(domain)
    for domain in domains:
        if domain not in pool.groups:
            for layer in pool.layers.values():
                layer.add_domain(domain)
            pool.groups[domain] = pool.make_group(domain)
        pool.groups[domain] = pool.groups.pop(domain)


def _checked(pool: ExpertPool, state: State) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = state.values["pool"]
        domains, used, active = facts["domains"], facts["used"], facts["active"]
        layers = dict(facts["layers"])
        chosen = active if isinstance(active, list) else [] if active is None else [active]
        consistent = sorted(used) == sorted(domains) and set(chosen) <= set(domains)
    except (KeyError, TypeError, ValueError):
        raise StateError("This is not the state of a pool of experts.") from None
    here = {name: layer.dim for name, layer in pool.layers.items()}
    if layers != here:
        odd = sorted(set(layers.items()) ^ set(here.items()))
        raise StateError(f"The state has other layers; these (name, width) differ: {odd[:4]}.")
    if pool.max_domains is not None and len(domains) > pool.max_domains:
        raise StateError(f"The state has {len(domains)} domains: set max_domains to at least that.")
    if not consistent or len(set(domains)) != len(domains):
        raise StateError("The state's lists of domains contradict each other.")
    for name in ("shared", *domains):
        part, shapes = state.part(str(name)), pool.shapes(name)
        template = pool.make_optimizer([nn.Parameter(torch.zeros(1))]) if shapes else None
        for which in ("now", "kept"):
            if which == "now" or which in part.values:
                check_state(part.part(which), shapes, template, f"{name} ({which})")
    return facts
