"""The domains with everything they keep, as something that can be saved, loaded and reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import BlockMap
from ostinato.methods.ostinato._bank import Bank, Domain
from ostinato.methods.ostinato._expected import PARTS, expected_bank
from ostinato.methods.ostinato.settings import OstinatoConfig
from ostinato.ops.expect import Expected
from ostinato.ops.snapshot import State

BUFFERS = ("recent", "arrived", "latest")
NUMBERS = (
    "due",
    "images",
    "share",
    "waiting",
    "used",
    "variety",
    "unsure",
    "temperature",
    "skipped",
    "excess",
    "patience",
    "made_at",
    "place_of",
)


class DomainBank(Bank):
    """A bank that travels in files.

    Args:
        branches: makes new branches for a label.
        config: the method's settings.
        changed: called after a state was taken over.
        sizes: how many maps an expert has, and numbers an image's descriptor.
    """

    finds_places = True
    """A state is taken over from any device: experts not used lately stay in host memory."""

    def __init__(
        self,
        branches: Callable[[object], FlatBranches],
        config: OstinatoConfig,
        changed: Callable[[], None],
        sizes: tuple[int, int],
    ) -> None:
        super().__init__(branches, config)
        self._changed, self.sizes = changed, sizes

    def export_state(self) -> State:
        """Experts, counts and buffers."""
        parts = {"shared": self.shared.export_state()}
        for number, domain in self.domains.items():
            tensors = {
                f"maps.{part}.{block}": tensor
                for block, one in enumerate(domain.maps)
                for part, tensor in zip(PARTS, one.tensors(), strict=True)
            }
            values: dict[str, Any] = {name: getattr(domain, name) for name in NUMBERS}
            values["blocks"] = len(domain.maps)
            tensors["place"] = domain.place
            if domain.recent:
                tensors["recent"] = torch.stack(domain.recent)
                tensors["arrived"] = torch.tensor(domain.arrived)
            whole = State(tensors, values)
            if domain.branches is not None:
                inner = State.join({"branches": domain.branches.export_state()})
                whole = State(tensors | inner.tensors, values | inner.values)
            parts[str(number)] = whole
        state = State.join(parts)
        if self.latest:
            state.tensors["latest"] = torch.stack(self.latest)
        state.values["bank"] = {"domains": list(self.domains), "updates": self.updates}
        return state

    def without_buffers(self, state: State) -> State:
        """An exported state without images: experts and counts alone."""
        tensors = {
            name: tensor
            for name, tensor in state.tensors.items()
            if name.rpartition("/")[2] not in BUFFERS
        }
        values = dict(state.values)
        for number in self.domains:
            values[str(number)] = values[str(number)] | {"waiting": 0}
        return State(tensors, values)

    def expected(self, state: State) -> Expected:
        """See `expected_bank`."""
        return expected_bank(state, self._branches, self.config.buffer, self.sizes)

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        known = state.values["bank"]
        self.clear()
        self.shared.import_state(state.part("shared"))
        for number in known["domains"]:
            self.domains[int(number)] = self._read(int(number), state.part(str(number)))
        for number in sorted(self.domains, key=lambda one: self.domains[one].used):
            self._here[number] = None
        for number in list(self._here)[: -self.config.resident]:
            del self._here[number]
        for number, domain in self.domains.items():
            domain.move(self.shared.value.device if number in self._here else "cpu")
        self.latest = self._images(state, "latest")
        self.updates = int(known["updates"])
        self._changed()

    def _images(self, state: State, name: str) -> list[Tensor]:
        return list(state.tensors.get(name, torch.empty(0)).to(self.shared.value.device))

    def _read(self, number: int, part: State) -> Domain:
        values = dict(part.values)
        maps = tuple(
            BlockMap(*(part.tensors[f"maps.{name}.{block}"].clone() for name in PARTS))
            for block in range(int(values.pop("blocks")))
        )
        learned = values.pop("branches", None)
        domain = Domain(**values, maps=maps)
        domain.recent = self._images(part, "recent")
        domain.place = part.tensors["place"].clone().cpu()
        domain.arrived = part.tensors.get("arrived", torch.empty(0)).tolist()
        if learned is not None:
            domain.branches = self._branches(number)
            domain.branches.move("cpu")
            domain.branches.import_state(part.part("branches"))
        return domain
