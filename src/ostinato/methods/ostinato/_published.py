"""Published versions on the model's device: experts as rows of a stack, routing beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.domains.routes import Routes, packed
from ostinato.domains.verdict import SOURCE
from ostinato.experts.routed import SCALE, Branch, Expert
from ostinato.experts.stack import Layout, Row, Rows, Stack, StackPass
from ostinato.methods.ostinato._bank import Version
from ostinato.ops.whitening import Content

_NOTED = 8
"""Domains whose last use is noted, in units of those that have rows."""


@dataclass(frozen=True)
class Placed:
    """A version, ready to answer.

    Attributes:
        version: the version.
        routes: its routing on the device.
        rows: the stack's rows.
        table: by domain, the row of its expert; those the source answers for are left out.
        shared: the learned branches that domains share, scaled, in the stack's precision.
        maps: whether any expert has maps.
        branches: whether any has learned branches.
        held: the rows in use.
        absent: domains with experts that have no row now; their images need another placing.
    """

    version: Version
    routes: Routes
    rows: Rows
    table: dict[int, int]
    shared: tuple[Branch, ...]
    maps: bool
    branches: bool
    held: tuple[Row, ...] = ()
    absent: frozenset[int] = frozenset()

    def misses(self, owners: Iterable[int]) -> bool:
        """Whether any of these domains has an expert and no row."""
        return bool(self.absent) and not self.absent.isdisjoint(owners)

    def open(self, index: Tensor) -> StackPass:
        """A pass that lets every image go by its row; a CPU looks whether all have the same."""
        single = None
        if index.device.type == "cpu" and bool((index == index[0]).all()):
            single = int(index[0])
        shared = self.shared if self.table else ()
        return StackPass(
            index, self.rows, shared, single=single, maps=self.maps, branches=self.branches
        )

    def index(self, owners: Sequence[int]) -> Tensor:
        """The rows of images whose domains the host knows."""
        rows = [self.table.get(owner, SOURCE) for owner in owners]
        return torch.tensor(rows).to(self.rows.matrices.device, non_blocking=True)


class Publisher:
    """Puts versions on the device, each once.

    Args:
        layout: what an expert takes.
        content: what clean descriptors are like.
        device: where the model is.
        kind: precision of its products.
        resident: experts that have rows, those used last; more only where one batch needs them.
    """

    def __init__(
        self,
        layout: Layout,
        content: Content,
        device: torch.device,
        kind: torch.dtype,
        resident: int = 64,
    ) -> None:
        self._given = (layout, content, device, kind, resident)
        self.resident, self._used = resident, dict[int, None]()
        self.stack = Stack(layout, device, kind)
        self.device, self.content = device, content.to(device)
        self._lock = threading.Lock()
        self._latest: Placed | None = None

    def __getstate__(self) -> Any:
        return self._given  # rows belong to the experts of one process; a copy makes its own

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def placed(self, version: Version, wanted: Iterable[int] = ()) -> Placed:
        """The version on the device.

        Args:
            version: the version.
            wanted: domains whose experts must have rows, where they have experts.
        """
        latest, needed = self._latest, set(wanted)
        if latest is not None and latest.version is version and not latest.misses(needed):
            return latest
        del latest  # whoever holds it keeps its rows
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._touch(needed)
            self._latest = placed = self._place(version, len(needed))
        return placed

    def with_maps(self, number: int, version: Version) -> Placed:
        """A placed version in which a domain has the maps it has in this one.

        What has been learned since may be missing there; putting it on the device can then wait.
        """
        latest, own = self._latest, version.experts[number].maps
        known = None if latest is None else latest.version.experts.get(number)
        if (
            latest is not None
            and known is not None
            and known.maps is own
            and number in latest.table
        ):
            return latest
        return self.placed(version, [number])

    def used(self, owners: Iterable[int]) -> None:
        """Note that these domains came: their experts stay longest."""
        with self._lock:
            self._touch(owners)

    def _touch(self, owners: Iterable[int]) -> None:
        for owner in dict.fromkeys(owners):
            self._used.pop(owner, None)
            self._used[owner] = None
        for gone in list(self._used)[: max(len(self._used) - _NOTED * self.resident, 0)]:
            del self._used[gone]  # domains come and go, and this is to stay small

    def _chosen(self, acting: dict[int, Expert], least: int) -> dict[int, Expert]:
        """The experts that get rows: those used last, then the youngest."""
        room = max(self.resident, least)
        if len(acting) <= room:
            return acting
        used = [number for number in self._used if number in acting]
        latest = dict.fromkeys([*reversed(used), *reversed(acting)])
        return {number: acting[number] for number in list(latest)[:room]}

    def _shared_of(self, version: Version, kind: torch.dtype) -> tuple[Branch, ...]:
        latest = self._latest
        if latest is not None and latest.version.shared is version.shared:
            return latest.shared
        return scaled(version.shared, kind)

    def _rows(self, experts: list[Expert]) -> list[Row]:
        """Rows of experts; those of the version before that are not among them become free first.

        Unless somebody is reading them, that is.
        """
        latest, self._latest = self._latest, None
        wanted = set(map(id, experts))
        kept = [row for row in (latest.held if latest else ()) if id(row.expert) in wanted]
        del latest
        rows = self.stack.rows(experts)
        del kept
        return rows

    def _place(self, version: Version, least: int) -> Placed:
        acting: dict[int, Expert] = {
            number: expert
            for number, expert in version.experts.items()
            if version.shares.get(number, 0.0) > 0
        }
        chosen = self._chosen(acting, least)
        shared = self._shared_of(version, self.stack.now.matrices.dtype)
        rows = self._rows(list(chosen.values()))
        table = {number: row.number for number, row in zip(chosen, rows, strict=True)}
        facts = packed(version.view, [table.get(number, SOURCE) for number in version.view.ids])
        if self.device.type == "cuda":
            facts = facts.pin_memory()  # a GPU that is at work is not waited for
        return Placed(
            version,
            Routes(facts.to(self.device, non_blocking=True), len(self.content.mean)),
            self.stack.now,
            table,
            shared,
            any(expert.maps for expert in acting.values()),
            any(expert.branches for expert in acting.values()),
            tuple(rows),
            frozenset(acting) - frozenset(chosen),
        )


def scaled(branches: Sequence[Branch], kind: torch.dtype) -> tuple[Branch, ...]:
    """Branches in another precision, `SCALE` in their `up`: a few operators for all of them.

    >>> one = Branch(torch.ones(4, 2), torch.ones(2, 4))
    >>> scaled([one, one], torch.half)[1].up[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    if not branches:
        return ()
    ups = torch._foreach_mul([one.up for one in branches], SCALE)
    parts = [part for one, up in zip(branches, ups, strict=True) for part in (one.down, up)]
    flat = torch.cat([part.flatten() for part in parts]).to(kind)
    cut = iter(flat.split([part.numel() for part in parts]))
    return tuple(Branch(next(cut).view_as(o.down), next(cut).view_as(o.up)) for o in branches)
