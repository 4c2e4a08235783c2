"""A pool's state: what is written, and how one is checked and taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ostinato.errors import StateError
from ostinato.experts._group import Group, check_state, expected_group
from ostinato.ops.expect import Expected, Kind
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
    if pool.offload:
        for domain in pool.domains:
            pool.groups[domain].move(torch.device("cpu"))
    pool.used = list(facts["used"])
    if facts["active"] is not None:
        pool.select(facts["active"])
        pool.used = list(facts["used"])  # selecting counts as use


def expected_pool(pool: ExpertPool, state: State) -> Expected:
    """What a pool's state has to hold: each group now and as kept, and lists of domains."""
    here = {name: layer.dim for name, layer in pool.layers.items()}
    known = set(state.values["pool"]["domains"])
    active = Kind(
        "none, a domain or several",
        lambda v: (
            v is None or Kind.one_of(known).fits(v) or Kind.listed(Kind.one_of(known)).fits(v)
        ),
    )
    lists = {
        "domains": Kind.ids(),
        "used": Kind.ids(),
        "layers": Kind.exactly(here),
        "active": active,
    }
    parts = {"pool": Expected(values=lists)}
    for name in ("shared", *state.values["pool"]["domains"]):
        part = state.part(str(name))
        parts[str(name)] = Expected(
            parts={
                which: expected_group(_template(pool, name), part.part(which))
                for which in ("now", "kept")
                if which == "now" or which in part.values
            }
        )
    return Expected(parts=parts)


def _template(pool: ExpertPool, name: str | int) -> Group:
    """A group like one of the pool's, whether that exists or not, without memory of its own."""
    double = next(pool.model.parameters()).dtype == torch.float64
    kind = torch.float64 if double else torch.float32  # as the layers make them
    return Group(
        {
            key: nn.Parameter(torch.empty(shape, dtype=kind, device="meta"))
            for key, shape in pool.shapes("shared" if name == "shared" else int(name)).items()
        },
        pool.make_optimizer,
    )


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
