"""What the method keeps for each domain, what it publishes, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ostinato.domains.verdict import View
from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import Branch, Expert
from ostinato.methods.contract import MethodConfig
from ostinato.methods.ostinato.pace import MARGIN
from ostinato.experts.routed import BlockMap


class OstinatoConfig(MethodConfig):
    """Settings of the method; the presets differ in `learn` alone."""

    lr: float = Field(2e-3, gt=0, description="learning rate of a branch's first update")
    learn: bool = Field(True, description="refine experts by gradients, on top of their maps")
    count_in: bool = Field(True, description="let a batch's own images shape the answer to it")
    shares: tuple[float, ...] = Field(
        (0.2, 0.4, 0.6), min_length=1, description="shares that a map may move tokens by"
    )
    trust: bool = Field(True, description="let maps act only where they make answers surer")
    shared_rank: int = Field(64, ge=0, description="rank of the learned shared branch; 0: none")
    domain_rank: int = Field(32, ge=0, description="rank of a domain's learned branch; 0: none")
    alignment: float = Field(1.0, ge=0, description="weight of alignment with source features")
    entropy: float = Field(0.4, ge=0, description="weight of confident entropy beside alignment")
    kappa: float = Field(0.4, gt=0, description="entropy, in ln C, above which nothing is learned")
    settle: float = Field(10.0, gt=0, description="updates after which a rate has halved")
    keep: float = Field(
        0.7, ge=0, le=1, description="share of its maps' variety below which learning is forgotten"
    )
    temper: bool = Field(True, description="give learned answers as sure as the maps' alone are")
    micro: int = Field(50, ge=2, description="images of a domain that an update rests on")
    spare: int = Field(
        0, ge=0, description="micro-batches that a settled expert passes over between two updates"
    )
    enough: int = Field(20, ge=4, description="images of one piece that found a domain")
    apart: float = Field(5.5, gt=0, description="deviations between two domains")
    max_domains: int = Field(32, ge=1, description="domains that are kept, beside the source")
    buffer: int = Field(128, ge=8, description="latest images of a domain that maps are made from")
    true_domains: bool = Field(
        False, description="be told each image's domain: an upper bound for routing"
    )
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="on a GPU, capture whole answers and updates where the model allows it; "
        "true warns where it does not, auto does not",
    )
    resident: int = Field(
        64, ge=1, description="domains whose experts stay on a GPU; others wait in host memory"
    )
    buffer_mb: float = Field(256.0, gt=0, description="megabytes that all buffers may take")

    @property
    def middle(self) -> float:
        """The share that a new domain's maps begin with."""
        return sorted(self.shares)[(len(self.shares) - 1) // 2]


LASTING = 12
"""Times `enough`: images from which on a domain is no longer new, and its share is chosen."""
NEW = 64
"""Latest images that maps of a new domain are made from."""
PLENTY = 48
"""Images that make maps of a new domain as good as they get soon."""


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
class Domain:
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

    def lasts(self, enough: int) -> bool:
        """Whether it is no longer new."""
        return self.images >= LASTING * enough

    def window(self, enough: int) -> int:
        """How many of its latest images maps are made from: few while the domain is new."""
        return len(self.recent) if self.lasts(enough) else NEW

    def stands(self, placed: Tensor) -> None:
        """Note where the images lie that its maps were just made from: (n, d) descriptors."""
        self.made_at, self.place_of = self.images, len(placed)
        self.place = placed.mean(0) if len(placed) else torch.empty(0)

    def shares_to_try(self, config: OstinatoConfig) -> tuple[float, ...]:
        """All of them once the domain lasts, then the chosen one.

        While it is new, the middle one comes first, and lower ones are for where that is not
        trusted. A domain that the source answers for is given another chance with all of them.
        """
        if not self.lasts(config.enough):
            start = self.share or config.middle
            lower = (share for share in config.shares if share < start)
            return (start, *sorted(lower, reverse=True))
        chosen = self.due > LASTING * config.enough and self.share > 0
        return (self.share,) if chosen else tuple(sorted(config.shares))

    def made(self, enough: int) -> None:
        """The maps were made: when the next ones are due, in images, counted from the first one.

        Twice as many images make better maps as long as they are few, and may show what fewer did
        not: that maps are worth it. Else nothing is gained until the domain has lasted. Maps that
        were made since answers had become less sure are given twice as long each time: where that
        does not help, it is not the maps that are wrong.
        """
        self.patience = max(2 * self.patience, NEW) if self.excess > MARGIN else 0
        self.due = LASTING * enough
        if self.images < PLENTY or not self.share:
            self.due = min(self.due, 2 * self.images)
        while self.due <= self.images:
            self.due *= 4
        self.excess = 0.0

    def move(self, device: torch.device | str) -> None:
        """Let its expert go to another device; `torch.device` compares, so say which GPU."""
        place = torch.device(device)
        if any(one.shift.device != place for one in self.maps):
            self.maps = tuple(one.to(place) for one in self.maps)
        if self.branches is not None:
            self.branches.move(place)

    def expert(self) -> Expert:
        """What is published of it: the same one for as long as nothing in it changes."""
        learned = self.branches if self.maps else None
        changes = 0 if learned is None else learned.changes
        known = self.published
        if known is None or not known.is_of(self.maps, learned, changes):
            expert = Expert(self.maps, () if learned is None else learned.published())
            known = self.published = Published(self.maps, learned, changes, expert)
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


PRESETS: dict[str, dict[str, Any]] = {"robust": {"learn": True}, "forward-only": {"learn": False}}


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
