"""Many streams over one frozen model: each learns for itself, and common forwards answer them.

`SharedModel` owns the source model and the hooks; every `StreamMethod` on it has its own domains,
experts, prior and trust. `prepare` routes the images of any number of streams, each by a version
that its stream published, and `Prepared.run` answers them in one forward, every image under its
own expert. What a question is answered depends on its version and its images alone, not on the
company it is answered in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.domains.texture import Texture
from ostinato.experts.routed import Branch, Expert, Hooks, Pass
from ostinato.methods._ostinato_parts import Domain, OstinatoConfig, Version
from ostinato.methods.base import Resources
from ostinato.methods.ostinato import Ostinato
from ostinato.models import Normalize, VisionModel, fingerprint
from ostinato.ops.precision import products
from ostinato.ops.statistics import SourceStatistics, check_fits
from ostinato.ops.trainable import Flags, claim


class SharedModel(VisionModel):
    """The one frozen source model of all streams, with the hooks that their experts act at.

    Args:
        model: gets hooks and is frozen.
        statistics: of clean images.
        normalize: the input convention.
        targets: feed-forward networks for learned branches; None finds them.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: SourceStatistics,
        *,
        normalize: Normalize = "model",
        targets: Any = None,
    ) -> None:
        super().__init__(model, normalize=normalize)
        self.building = True  # methods made on it belong to it
        claim(model, self)
        Flags.freeze(model)
        self.hooks = Hooks(model, targets)
        check_fits(statistics, self.hooks.blocks, fingerprint(model))
        self.statistics = statistics.to(self.device)
        self.describe = Texture()


class StreamMethod(Ostinato):
    """The method for one of many streams on a shared model.

    Attributes:
        held: domains whose experts stay as they are.
    """

    model: SharedModel

    def __init__(self, model: SharedModel, config: OstinatoConfig) -> None:
        super().__init__(model, config, Resources(model.statistics))
        self.held: set[int] = set()

    def open_hooks(self) -> Hooks:
        """Those of the shared model."""
        return self.model.hooks

    def release(self) -> None:
        """The hooks stay: other streams act at them."""

    def take(self, levels: Tensor) -> tuple[str, ...]:
        """Learn from one question's images (uint8); what happened to domains, in order.

        The same images in the same order give the same state, whatever was answered meanwhile.
        """
        self._refuse_detached()
        exactness = products(self.config.precision)
        with self._lock, torch.inference_mode(False), torch.enable_grad(), exactness:
            pixels = levels.to(self.model.device).float() / 255
            self._take_in(pixels, self.describe(pixels), None)
            self._learn_waiting(None)
            self.held &= set(self.bank.domains)
            return tuple(self.events)

    def forget(self, domain: int) -> None:
        """Take one domain out: its images are the source's again."""
        with self._lock:
            self.router.remove(domain)
            self.bank.domains.pop(domain)
            self.held.discard(domain)
            self._republish()

    def _make_maps(self, domain: Domain, classes: Tensor | None) -> None:
        if self.bank.number(domain) not in self.held:
            super()._make_maps(domain, classes)

    def _may_learn(self, domain: Domain) -> bool:
        return self.bank.number(domain) not in self.held and super()._may_learn(domain)


@dataclass
class Published:
    """A published version as common forwards use it: shared and own branches as one."""

    version: Version
    _joined: dict[int, Expert] = field(default_factory=dict)

    def expert(self, domain: int) -> Expert | None:
        """A domain's expert; None where the source answers."""
        if self.version.shares.get(domain, 0.0) <= 0:
            return None
        if domain not in self._joined:
            self._joined[domain] = joined(self.version.experts[domain], self.version.shared)
        return self._joined[domain]


@dataclass(frozen=True)
class Question:
    """Images of one stream, to be answered by one of its versions.

    Attributes:
        published: the version.
        pixels: (B, 3, H, W) in [0, 1], on the model's device.
        source: also ask the source model.
    """

    published: Published
    pixels: Tensor
    source: bool = False


@dataclass(frozen=True)
class Answer:
    """What one question was answered.

    Attributes:
        logits: (B, C), or (B, C, H, W) per pixel; on the CPU.
        domains: of each image; 0 is the source.
        trust: how far each image's expert acted; 0 where the source answered.
        distance: of each image to its nearest domain; 1 is usual.
        far: images that no known domain explains.
        source: the source's logits, where asked for.
    """

    logits: Tensor
    domains: tuple[int, ...]
    trust: tuple[float, ...]
    distance: tuple[float, ...]
    far: tuple[bool, ...]
    source: Tensor | None = None


@dataclass
class Prepared:
    """Questions that have been routed and wait for their forward."""

    model: SharedModel
    pixels: Tensor
    owners: list[int | None]
    experts: list[Expert]
    answers: list[dict[str, Any]]
    rows: list[range]
    again: list[list[int] | None]

    @torch.no_grad()
    def run(self, *, half: bool = False) -> list[Answer]:
        """One forward for all; `half` runs it under bf16."""
        now = Pass(self.owners, widened(self.experts))
        kind = self.model.device.type
        exact = torch.autocast(kind, torch.bfloat16, enabled=half)
        with exact, self.model.hooks.open(now):
            logits = self.model(self.pixels).float().cpu()
        found = []
        for parts, rows, again in zip(self.answers, self.rows, self.again, strict=True):
            own = logits[rows.start : rows.stop]
            source = None if again is None else logits[again]
            found.append(Answer(own, source=source, **parts))
        return found


@torch.no_grad()
def prepare(model: SharedModel, questions: Sequence[Question]) -> Prepared:
    """Route every image by its own stream's version; all images have one size."""
    pixels = torch.cat([one.pixels for one in questions])
    content = model.statistics.content
    assert content is not None
    standard = content.standard(model.describe(pixels))
    owners: list[int | None] = []
    experts: dict[int, tuple[int, Expert]] = {}
    answers, rows, again = [], list[range](), list[list[int] | None]()
    doubled: list[int] = []
    for question in questions:
        start = len(owners)
        rows.append(range(start, start + len(question.pixels)))
        verdict = question.published.version.view.decide(standard[start : rows[-1].stop])
        domains = verdict.owners()
        for domain in domains:
            expert = question.published.expert(domain)
            row = None if expert is None else experts.setdefault(id(expert), (len(experts), expert))
            owners.append(None if row is None else row[0])
        shares = question.published.version.shares
        answers.append(
            {
                "domains": tuple(domains),
                "trust": tuple(shares.get(domain, 0.0) for domain in domains),
                "distance": tuple(verdict.distance.tolist()),
                "far": tuple(verdict.far.tolist()),
            }
        )
        again.append(None)
    for at, question in enumerate(questions):
        if question.source:  # what the source answers anyway need not be asked twice
            again[at] = [_asked(owners, row, len(pixels), doubled) for row in rows[at]]
    if doubled:
        pixels = torch.cat([pixels, pixels[doubled]])
        owners += [None] * len(doubled)
    return Prepared(
        model, pixels, owners, [one for _, one in experts.values()], answers, rows, again
    )


def _asked(owners: Sequence[int | None], row: int, count: int, doubled: list[int]) -> int:
    if owners[row] is None:
        return row
    doubled.append(row)
    return count + len(doubled) - 1


def joined(expert: Expert, shared: tuple[Branch, ...]) -> Expert:
    """An expert whose branches are its own and the shared ones side by side.

    >>> one = Branch(torch.ones(4, 2), torch.ones(2, 4))
    >>> joined(Expert((), (one,)), (one,)).branches[0].down.shape
    torch.Size([4, 4])
    """
    if not shared or not expert.branches:
        return Expert(expert.maps, expert.branches or shared)
    pairs = zip(shared, expert.branches, strict=True)
    return Expert(
        expert.maps,
        tuple(Branch(torch.cat([a.down, b.down], 1), torch.cat([a.up, b.up], 0)) for a, b in pairs),
    )


def widened(experts: Sequence[Expert]) -> list[Expert]:
    """Experts with branches of one rank, so that they stack; what is added is zero.

    >>> narrow, wide = Branch(torch.ones(4, 1), torch.ones(1, 4)), torch.ones(4, 3)
    >>> both = widened([Expert((), (narrow,)), Expert((), (Branch(wide, wide.T),))])
    >>> [one.branches[0].down.shape[1] for one in both]
    [3, 3]
    """
    rank = max((one.branches[0].down.shape[1] for one in experts if one.branches), default=0)
    return [
        Expert(one.maps, tuple(_padded(branch, rank) for branch in one.branches)) for one in experts
    ]


def _padded(branch: Branch, rank: int) -> Branch:
    more = rank - branch.down.shape[1]
    if not more:
        return branch
    return Branch(F.pad(branch.down, (0, more)), F.pad(branch.up, (0, 0, 0, more)))
