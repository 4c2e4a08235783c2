"""The domains with everything they keep, as something that can be saved, loaded and reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ostinato.experts.flat import FlatBranches
from ostinato.methods.ostinato.expected import PARTS, expected_bank
from ostinato.methods.ostinato.parts import Domain, OstinatoConfig, alike, apart
from ostinato.ops.expect import Expected
from ostinato.experts.routed import BlockMap
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


class DomainBank:
    """All domains, the shared branches, and the latest images whatever their domain.

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
        self._branches, self.config, self._changed = branches, config, changed
        self.sizes = sizes
        self._clear()

    def _clear(self) -> None:
        self.shared = self._branches("shared")
        self.domains: dict[int, Domain] = {}
        self.latest: list[Tensor] = []
        self.updates = 0
        self._here: dict[int, None] = {}  # domains on the model's device, the last used last

    def number(self, domain: Domain) -> int:
        """The id of a domain."""
        return next(number for number, one in self.domains.items() if one is domain)

    # What arrives.

    def keep(self, images: list[Tensor]) -> None:
        """Keep the latest images, which may turn out to be a new domain's."""
        self.latest = alike(self.latest, apart(images))[-self.config.buffer :]

    def is_due(self, number: int) -> bool:
        """Whether a domain has the images that its maps are to be made from next."""
        domain = self.domains[number]
        enough = min(self.config.enough, self.config.buffer)
        return domain.images >= domain.due and len(domain.recent) >= enough

    def found(self, number: int, owners: Tensor) -> None:
        """A new domain, with those of the latest images that are its own.

        Until it has maps of its own the source answers: its images lie elsewhere than those that
        the maps of the domain it was split off were made from.

        Args:
            number: its id.
            owners: the router's, of which the last ones are the latest images'.
        """
        domain = self.domains[number] = Domain(due=self.config.enough)
        mine = owners[-len(self.latest) :].tolist()  # fewer, where buffers reach farther back
        latest = self.latest[-len(mine) :]
        own = [image for image, owner in zip(latest, mine, strict=True) if owner == number]
        domain.add(apart(own), self.config.buffer, self.updates)

    def add(self, number: int, images: list[Tensor], *, counted: bool) -> None:
        """A domain's images of a batch; a domain that the batch founded has them already."""
        domain = self.domains[number]
        self.updates += 1
        domain.used = self.updates
        self.bring(number)
        if not counted:
            domain.add(apart(images), self.config.buffer, self.updates)
        self._bound(domain)

    def bring(self, number: int) -> None:
        """Let a domain's expert be where the model is; those used longest ago make room."""
        self._here.pop(number, None)
        self._here[number] = None
        self.domains[number].move(self.shared.value.device)
        while len(self._here) > self.config.resident:
            gone = next(iter(self._here))
            del self._here[gone]
            if gone in self.domains:
                self.domains[gone].move("cpu")

    def _bound(self, present: Domain) -> None:
        """Drop the oldest images, whose ever they are, while all take more than is allowed.

        In blocks these are images of domains that have not come for long, in mixed traffic those
        of all domains alike. The domain at hand keeps what an update rests on.
        """
        sizes = [(one, one.recent[0].numel()) for one in self.domains.values() if one.recent]
        total = sum(size * len(one.recent) for one, size in sizes)
        while total > self.config.buffer_mb * 2**20:
            held = [
                pair
                for pair in sizes
                if len(pair[0].recent) > (self.config.micro if pair[0] is present else 0)
            ]
            if not held:
                return
            oldest, size = min(held, key=lambda pair: pair[0].arrived[0])
            oldest.drop_oldest(1)
            total -= size

    def merge(self, gone: int, into: int) -> None:
        """One domain becomes part of another, whose expert stays unless it has none."""
        old = self.domains.pop(gone, None)
        if old is None:
            return
        kept = self.domains.get(into)
        if kept is None:
            return
        kept.images += old.images
        kept.due = min(kept.due, kept.images)  # what it is now, its maps were not made from
        if not kept.maps and old.maps:
            kept.maps, kept.share, kept.branches = old.maps, old.share, old.branches
            kept.unsure, kept.temperature = old.unsure, old.temperature
        kept.recent = alike(old.recent, kept.recent)
        kept.arrived = old.arrived + kept.arrived
        kept.drop_oldest(max(len(kept.recent) - self.config.buffer, 0))

    # State.

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
        self._clear()
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
