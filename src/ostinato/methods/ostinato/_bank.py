"""What the method keeps for each domain, and what it publishes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.domains.verdict import SOURCE, Change, View
from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import BlockMap, Branch, Expert
from ostinato.methods.ostinato._timing import Timed
from ostinato.methods.ostinato.settings import OstinatoConfig

GAIN = 0.5
"""How far an update moves a temperature by what a micro-batch says."""
HOTTEST = 8.0


@dataclass(frozen=True)
class Published:
    """An expert, and what it was made of."""

    maps: tuple[BlockMap, ...]
    branches: FlatBranches | None
    changes: int
    expert: Expert

    def is_of(
        self, maps: tuple[BlockMap, ...], branches: FlatBranches | None, changes: int
    ) -> bool:
        """Whether it would come out the same."""
        return self.maps is maps and self.branches is branches and self.changes == changes


@dataclass
class Domain(Timed):
    """One domain's expert in the making.

    Attributes:
        images: distinct images seen.
        due: the count of images at which its maps are made next.
        maps: one every second block; empty while the source answers.
        share: what its maps move tokens by; 0 while the source answers.
        branches: what it has learned, once it learns.
        recent: latest images, uint8, oldest first.
        arrived: for each of them, the update of the state that brought it.
        waiting: how many of the latest have not been learned from.
        variety: entropy of the mean answer that its maps alone give; learned answers keep near it.
        unsure: mean entropy of those answers, in nats; learned ones are given as sure as that.
        temperature: what learned logits are divided by for that.
        used: the last update of the state in which it had an image.
        skipped: micro-batches passed over since its last update.
        excess: entropy, in ln C, by which the latest answers are less sure than its maps' were.
        patience: images that come before answers less sure than usual have its maps made once more.
        made_at: images seen when its maps were made.
        place: where the images lay that they were made from, the mean of their descriptors.
        place_of: how many descriptors that is of.
        published: the expert that stands for it in the latest version, and what that was made of.
    """

    due: int
    images: int = 0
    maps: tuple[BlockMap, ...] = ()
    share: float = 0.0
    branches: FlatBranches | None = None
    recent: list[Tensor] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    waiting: int = 0
    used: int = 0
    variety: float = 0.0
    unsure: float = 0.0
    temperature: float = 1.0
    skipped: int = 0
    excess: float = 0.0
    patience: int = 0
    made_at: int = 0
    place: Tensor = field(default_factory=lambda: torch.empty(0))
    place_of: int = 0
    published: Published | None = field(default=None, repr=False)

    def add(self, images: list[Tensor], bound: int, when: int) -> None:
        """Keep new images, at most `bound` of the latest."""
        self.images += len(images)
        self.waiting += len(images)
        self.arrived += [when] * len(images)
        self.recent = alike(self.recent, images)
        self.drop_oldest(max(len(self.arrived) - min(len(self.recent), bound), 0))

    def drop_oldest(self, count: int) -> None:
        """Keep all of the latest images but so many."""
        self.arrived = self.arrived[count:]
        self.recent = self.recent[len(self.recent) - len(self.arrived) :]
        self.waiting = min(self.waiting, len(self.recent))

    def learned_from(self, count: int) -> None:
        """So many of its images wait no longer."""
        self.waiting = max(self.waiting - count, 0)

    def forget_learned(self) -> None:
        """Go back to the maps alone."""
        self.branches, self.temperature = None, 1.0

    def move(self, device: torch.device | str) -> None:
        """Let its expert go to another device; `torch.device` compares, so say which GPU."""
        place = torch.device(device)
        if any(one.shift.device != place for one in self.maps):
            self.maps = tuple(one.to(place) for one in self.maps)
        if self.branches is not None and self.branches.value.device != place:
            self.branches.move(place)

    def warm(self, entropy: float, times: int = 1) -> None:
        """Let its temperature follow a micro-batch: towards the entropy that its maps alone have.

        Learning lowers entropy, right or wrong, so how sure learned answers are means little. Their
        logits are divided by a temperature, never below 1, under which they are on average as sure
        as the answers of the maps. Which class is likeliest stays as it is.

        Args:
            entropy: mean entropy of learned answers at the present temperature, in nats.
            times: micro-batches that it stands for.

        >>> domain = Domain(due=20, unsure=0.5)
        >>> domain.warm(1.4)  # unsure enough as they are
        >>> unchanged = domain.temperature
        >>> domain.warm(0.1)
        >>> unchanged, round(domain.temperature, 2)
        (1.0, 1.49)
        """
        off = (self.unsure - entropy) / max(self.unsure, entropy, 1e-6)
        gain = 1 - (1 - GAIN) ** times
        self.temperature = min(max(self.temperature * math.exp(gain * off), 1.0), HOTTEST)

    def expert(self) -> Expert:
        """What is published of it: the same one for as long as nothing in it changes."""
        learned = self.branches if self.maps else None
        changes = 0 if learned is None else learned.changes
        known = self.published
        if known is None or not known.is_of(self.maps, learned, changes):
            own = () if learned is None else learned.latest or learned.published()
            known = self.published = Published(self.maps, learned, changes, Expert(self.maps, own))
        return known.expert


@dataclass(frozen=True)
class Version:
    """A published state; nothing in it changes any more.

    Attributes:
        number: counts the versions of this method.
        view: what routing needs.
        experts: by domain.
        shared: the learned branches that domains share.
        shares: by domain, what its maps move tokens by; its trust.
        temperatures: by domain, what its logits are divided by.
    """

    number: int
    view: View
    experts: Mapping[int, Expert] = field(default_factory=dict)
    shared: tuple[Branch, ...] = ()
    shares: Mapping[int, float] = field(default_factory=dict)
    temperatures: Mapping[int, float] = field(default_factory=dict)


class Bank:
    """All domains, the shared branches, and the latest images whatever their domain.

    Args:
        branches: makes new branches for a label.
        config: the method's settings.

    >>> config = OstinatoConfig()
    >>> bank = Bank(lambda label: FlatBranches([("a", 8)], 2, seed=0, label=label), config)
    >>> bank.keep(list(torch.zeros(30, 3, 4, 4, dtype=torch.uint8)))
    >>> bank.found(1, torch.tensor([0] * 10 + [1] * 20))
    >>> bank.domains[1].images, bank.domains[1].due
    (20, 20)
    """

    def __init__(self, branches: Callable[[object], FlatBranches], config: OstinatoConfig) -> None:
        self._branches, self.config = branches, config
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.shared = self._branches("shared")
        self.domains: dict[int, Domain] = {}
        self.latest: list[Tensor] = []
        self.updates = 0
        self._here: dict[int, None] = {}  # domains on the model's device, the last used last

    def number(self, domain: Domain) -> int:
        """The id of a domain."""
        return next(number for number, one in self.domains.items() if one is domain)

    # What arrives.

    def take_in(self, pixels: Tensor, change: Change, owners: Tensor) -> list[str]:
        """Give domains the images of a batch; what happened to domains, in order.

        Args:
            pixels: of the batch, in [0, 1].
            change: what routing made of it.
            owners: the domains of the latest images, this batch's the last.
        """
        events, levels = list[str](), to_levels(pixels)
        self.keep([image for image, new in zip(levels, change.known, strict=True) if new])
        for gone, into in change.merged:
            self.merge(gone, into)
            events.append(f"merged domain {gone} into {into}")
        for number in change.founded:
            self.found(number, owners)
            events.append(f"founded domain {number}")
        for number in dict.fromkeys(change.owners):
            if number == SOURCE:
                continue
            mine = zip(levels, change.owners, change.known, strict=True)
            fresh = [image for image, owner, new in mine if owner == number and new]
            self.add(number, fresh, counted=number in change.founded)
        return events

    def version(self, number: int, view: View) -> Version:
        """What is known now as a version of that number, to be answered by."""
        domains = self.domains.items()
        return Version(
            number,
            view,
            {one: domain.expert() for one, domain in domains},
            self._published_shared(),
            {one: domain.share for one, domain in domains},
            {one: domain.temperature for one, domain in domains if domain.maps},
        )

    def version_after(self, before: Version, changed: Domain) -> Version:
        """The version after another one, where one domain alone and what is shared have changed."""
        number = self.number(changed)
        return Version(
            before.number + 1,
            before.view,
            {**before.experts, number: changed.expert()},
            self._published_shared(),
            {**before.shares, number: changed.share},
            {**before.temperatures, number: changed.temperature},
        )

    def _published_shared(self) -> tuple[Branch, ...]:
        return (self.shared.latest or self.shared.published()) if self.shared.updates else ()

    def keep(self, images: list[Tensor]) -> None:
        """Keep the latest images, which may turn out to be a new domain's."""
        self.latest = alike(self.latest, apart(images))[-self.config.buffer :]

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


def alike(kept: list[Tensor], coming: list[Tensor]) -> list[Tensor]:
    """All of them in one size, so that they stack: the fewer are resized to that of the others.

    >>> small, large = torch.zeros(3, 4, 4), torch.zeros(3, 8, 8)
    >>> {tuple(one.shape) for one in alike([small, small], [large])}
    {(3, 4, 4)}
    >>> {tuple(one.shape) for one in alike([small], [large])}
    {(3, 8, 8)}
    """
    if not kept or not coming or kept[-1].shape == coming[-1].shape:
        return kept + coming
    fewer, more = (kept, coming) if len(coming) >= len(kept) else (coming, kept)
    changed = list(resized(torch.stack(fewer), more[-1].shape[-2:]))
    return changed + coming if fewer is kept else kept + changed


def resized(levels: Tensor, size: Sequence[int]) -> Tensor:
    """Images (B, C, H, W) in another size, in the precision they have."""
    other = F.interpolate(levels.float(), size=tuple(size), mode="bilinear", antialias=True)
    return other if levels.is_floating_point() else other.round().clamp(0, 255).to(levels.dtype)


def apart(images: list[Tensor]) -> list[Tensor]:
    """Images of one size without what they came with: one that is kept would hold its whole batch.

    >>> batch = torch.zeros(50, 3, 4, 4)
    >>> [len(apart([image])[0].untyped_storage()) // 192 for image in (batch[0], batch[:1][0])]
    [1, 1]
    >>> apart(list(batch))[0].data_ptr() == batch.data_ptr()  # all of it is kept: as it is
    True
    """
    if not images:
        return images
    held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in images}
    own = sum(one.nbytes for one in images)
    return images if sum(held.values()) <= own else list(torch.stack(images))


def to_levels(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as uint8, for buffers."""
    return (pixels.detach() * 255).round().clamp(0, 255).to(torch.uint8)
