"""What a state of this method's domains has to hold before it is taken over."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ostinato.errors import StateError
from ostinato.experts.flat import FlatBranches
from ostinato.experts.maps import map_rank
from ostinato.methods.ostinato._bank import HOTTEST
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State

PARTS = ("scale", "down", "up", "shift", "prefix")
IMAGES = Like(("images", 3, "height", "width"), torch.uint8, optional=True)
Branches = Callable[[object], FlatBranches]


def expected_bank(state: State, branches: Branches, most: int, sizes: tuple[int, int]) -> Expected:
    """The shared branches, every listed domain, and images that are alike.

    Args:
        state: what `DomainBank.export_state` gave.
        branches: makes new branches for a label.
        most: images that a buffer holds.
        sizes: maps that an expert has, unless it has none, and numbers of a descriptor.
    """
    places, described = sizes
    known = state.values.get("bank")
    if known is None:
        raise StateError("The state has no domains of this method.")
    shared = branches("shared").expected(state)
    lists = Expected(values={"domains": Kind.ids(1), "updates": Kind.count()})
    parts = {"shared": shared, "bank": lists}
    for domain in known["domains"]:
        learned, part = branches(domain).expected(state), state.part(str(domain))
        held = part.values.get("blocks")
        if held not in (0, places):
            raise StateError(
                f"Domain {domain} has {held!r} maps where {places} are needed: "
                "the state is of another model or an earlier version, whose maps stood after every "
                "block. Start without it; what is met again is adapted to after a few dozen images."
            )
        parts[str(domain)] = expected_domain(part, learned, most, described)
    _buffered(state, "latest", most)
    return Expected({"latest": IMAGES}, parts=parts)


def expected_domain(part: State, branches: Expected, most: int, described: int) -> Expected:
    """One domain: maps that fit together, counts, and what it has learned."""
    tensors = {"recent": IMAGES, "arrived": Like(("images",), torch.long, optional=True)}
    placed = part.values.get("place_of") != 0
    tensors["place"] = Like((described if placed else 0,))
    for block in range(int(part.values["blocks"])):
        tensors |= _maps(block, int(part.tensors[f"maps.scale.{block}"].numel()))
    values = {
        "due": Kind.count(),
        "images": Kind.count(),
        "used": Kind.count(),
        "blocks": Kind.count(),
    }
    values |= {"made_at": Kind.count(), "place_of": Kind.count(), "patience": Kind.count()}
    values |= {"waiting": Kind.count(high=_buffered(part, "recent", most))}
    values |= {"share": Kind.number(0, 1), "variety": Kind.number(low=0)}
    values |= {"unsure": Kind.number(low=0), "temperature": Kind.number(1, HOTTEST)}
    values |= {"skipped": Kind.count(), "excess": Kind.number(-1.01, 1.01)}
    learned = {"branches": branches} if "branches" in part.values else {}
    return Expected(tensors, values, learned)


def _maps(block: int, width: int) -> dict[str, Like]:
    rank = map_rank(width)
    shapes: dict[str, tuple[int | str, ...]] = {
        "scale": (width,),
        "down": (width, rank),
        "up": (rank if rank < width else 0, width),
        "shift": (width,),
        "prefix": (f"prefix of {block}", width),
    }
    return {f"maps.{name}.{block}": Like(shapes[name]) for name in PARTS}


def _buffered(state: State, name: str, most: int) -> int:
    """How many images a buffer holds; a file without images has none."""
    held = len(state.tensors[name]) if name in state.tensors else 0
    if held > most:
        raise StateError(f"The state keeps {held} images where {most} are kept here.")
    return held
