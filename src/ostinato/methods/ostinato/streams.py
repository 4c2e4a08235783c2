"""Many streams over one frozen model: each learns for itself, and common forwards answer them.

`SharedModel` owns the source model, the hooks and one stack of experts; every `StreamMethod` on it
has its own domains, experts, prior and trust. `prepare` routes the images of any number of streams,
each by a version that its stream published, and `Prepared.run` answers them in one forward, every
image under its own expert. What a question is answered depends on its version and its images
alone, not on the company it is answered in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.domains.texture import Texture
from ostinato.experts.routed import EVERY, Branch, Expert, Hooks
from ostinato.experts.stack import Layout, Row, Rows, Stack, StackPass
from ostinato.methods.base import Resources
from ostinato.methods.ostinato import Ostinato
from ostinato.methods.ostinato.parts import Domain, OstinatoConfig, Version
from ostinato.methods.ostinato.published import Publisher
from ostinato.methods.ostinato.temperature import tempered
from ostinato.models import Normalize, VisionModel, fingerprint
from ostinato.ops.colours import three_colours
from ostinato.ops.moments import map_rank
from ostinato.ops.precision import Precision, products
from ostinato.ops.statistics import SourceStatistics, check_fits
from ostinato.ops.trainable import Flags, claim


class SharedModel(VisionModel):
    """The one frozen source model of all streams, with the places where their experts act.

    Args:
        model: gets hooks and is frozen.
        statistics: of clean images.
        config: ranks and precision, which all streams share.
        normalize: the input convention.
        targets: feed-forward networks for learned branches; None finds them.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: SourceStatistics,
        config: OstinatoConfig | None = None,
        *,
        normalize: Normalize = "model",
        targets: Any = None,
    ) -> None:
        super().__init__(model, normalize=normalize)
        chosen = config or OstinatoConfig()
        self.building = True  # methods made on it belong to it
        claim(model, self)
        Flags.freeze(model)
        blocks = [(block.mean.numel(), block.prefix.shape[0]) for block in statistics.tokens]
        self.hooks = Hooks(model, targets, [width for width, _ in blocks])
        check_fits(statistics, self.hooks.blocks, fingerprint(model))
        self.statistics = statistics.to(self.device)
        content = statistics.content
        self.content = None if content is None else content.to(self.device)
        self.describe = Texture()
        self.precision: Precision = chosen.precision
        self.ranks = (chosen.shared_rank, chosen.domain_rank)
        layout = Layout(
            tuple((width, map_rank(width), prefix) for width, prefix in blocks[::EVERY]),
            tuple((width, sum(self.ranks)) for _, width in self.hooks.widths),
        )
        own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float)
        kind = torch.bfloat16 if self.precision == "bf16" else own
        self.stack = Stack(layout, self.device, kind)
        self.publisher: Publisher | None = None


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

    def _publisher(self) -> Publisher:
        """One for all streams: experts answer from the shared stack, not from one each."""
        if self.model.publisher is None:
            self.model.publisher = super()._publisher()
        return self.model.publisher

    def _may_capture(self) -> bool:
        return False  # a graph would be captured for each stream, while others compute

    def take(self, levels: Tensor) -> tuple[str, ...]:
        """Learn from one question's images (uint8); what happened to domains, in order.

        The same images in the same order give the same state, whatever was answered meanwhile.
        """
        exactness = products(self.config.precision)
        with self._at_work(), torch.inference_mode(False), torch.enable_grad(), exactness:
            pixels = levels.to(self.model.device).float() / 255
            self._take_in(pixels, self._described(pixels), None)
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

    def _is_due(self, domain: int) -> bool:
        return domain not in self.held and super()._is_due(domain)

    def _may_learn(self, domain: Domain) -> bool:
        return self.bank.number(domain) not in self.held and super()._may_learn(domain)


@dataclass
class InUse:
    """A published version as common forwards use it: shared and own branches as one."""

    version: Version
    ranks: tuple[int, int]
    _joined: dict[int, Expert] = field(default_factory=dict)

    def expert(self, domain: int) -> Expert | None:
        """A domain's expert; None where the source answers."""
        if self.version.shares.get(domain, 0.0) <= 0:
            return None
        if domain not in self._joined:
            own, shared = self.version.experts[domain], self.version.shared
            self._joined[domain] = joined(own, shared, self.ranks)
        return self._joined[domain]


@dataclass(frozen=True)
class Question:
    """Images of one stream, to be answered by one of its versions.

    Attributes:
        asked: the version.
        pixels: (B, 3, H, W) in [0, 1], on the model's device.
        source: also ask the source model.
    """

    asked: InUse
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
    """Questions that have been routed and wait for their forward.

    Attributes:
        model: of all streams.
        pixels: all images, those that the source is asked about once more at the end.
        index: (B,) the stack's row of each image's expert; 0 is the source.
        rows: the stack as it was when they were written.
        held: the rows, which nobody else gets meanwhile.
        answers: per question, everything but logits.
        places: per question, where its images are.
        again: per question, where the source's answers are, if it asked for them.
        temperatures: per question, those of its version.
    """

    model: SharedModel
    pixels: Tensor
    index: list[int]
    rows: Rows
    held: list[Row]
    answers: list[dict[str, Any]]
    places: list[range]
    again: list[list[int] | None]
    temperatures: list[Mapping[int, float]]

    def run(self) -> list[Answer]:
        """One forward for all."""
        return self.launch().answers()

    @torch.no_grad()
    def launch(self) -> Launched:
        """Begin that forward; on a GPU it is under way when this returns."""
        single = self.index[0] if len(set(self.index)) == 1 else None
        index = torch.tensor(self.index, device=self.pixels.device)
        learned = any(one.expert.branches for one in self.held)
        now = StackPass(index, self.rows, single=single, branches=learned)
        kind, half = self.model.device.type, self.model.precision == "bf16"
        with (
            torch.inference_mode(False),
            products(self.model.precision),
            torch.autocast(kind, torch.bfloat16, enabled=half),
            self.model.hooks.open(now),
        ):
            logits = self.model(self.pixels).float()
        if not logits.is_cuda or logits.ndim > 2:
            return Launched(self, logits.cpu())
        host = torch.empty(logits.shape, pin_memory=True).copy_(logits, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return Launched(self, host, done)


@dataclass(frozen=True)
class Launched:
    """A forward under way, with what it reads: nobody else gets that before it is done.

    Attributes:
        prepared: the questions.
        logits: on the CPU, once it is done.
        done: tells when, on a GPU.
    """

    prepared: Prepared
    logits: Tensor
    done: Any = None

    @torch.no_grad()
    def answers(self) -> list[Answer]:
        """Wait for the forward; what each question is answered."""
        if self.done is not None:
            self.done.synchronize()
        mine, found = self.prepared, list[Answer]()
        told = zip(mine.answers, mine.places, mine.again, mine.temperatures, strict=True)
        for parts, place, again, heat in told:
            source = None if again is None else self.logits[again]
            own = tempered(self.logits[place.start : place.stop], parts["domains"], heat)
            found.append(Answer(own, source=source, **parts))
        return found


@torch.no_grad()
def prepare(model: SharedModel, questions: Sequence[Question]) -> Prepared:
    """Route every image by its own stream's version; all images have one size."""
    pixels = torch.cat([one.pixels for one in questions])
    assert model.content is not None  # streams refuse statistics without it
    placed = model.content.place(model.describe(three_colours(pixels))).cpu()
    owners: list[Expert | None] = []
    answers, places, again = list[dict[str, Any]](), list[range](), list[list[int] | None]()
    for question in questions:
        places.append(range(len(owners), len(owners) + len(question.pixels)))
        verdict = question.asked.version.view.decide(placed[places[-1].start : places[-1].stop])
        domains, shares = verdict.owners(), question.asked.version.shares
        owners += [question.asked.expert(domain) for domain in domains]
        answers.append(
            {
                "domains": tuple(domains),
                "trust": tuple(shares.get(domain, 0.0) for domain in domains),
                "distance": tuple(verdict.distance.tolist()),
                "far": tuple(verdict.far.tolist()),
            }
        )
    doubled: list[int] = []
    for question, place in zip(questions, places, strict=True):
        asked = None
        if question.source:
            asked = [_asked(owners, row, len(pixels), doubled) for row in place]
        again.append(asked)
    if doubled:
        pixels = torch.cat([pixels, pixels[doubled]])
    experts = list({id(one): one for one in owners if one is not None}.values())
    held = model.stack.rows(experts)
    table = {id(row.expert): row.number for row in held}
    index = [0 if one is None else table[id(one)] for one in owners] + [0] * len(doubled)
    temperatures = [question.asked.version.temperatures for question in questions]
    return Prepared(
        model, pixels, index, model.stack.now, held, answers, places, again, temperatures
    )


def _asked(owners: Sequence[Expert | None], row: int, count: int, doubled: list[int]) -> int:
    """Where the source's answer to an image will be; what it answers anyway is not asked twice."""
    if owners[row] is None:
        return row
    doubled.append(row)
    return count + len(doubled) - 1


def joined(expert: Expert, shared: tuple[Branch, ...], ranks: tuple[int, int]) -> Expert:
    """An expert whose branches are the shared ones and its own side by side; none is zero.

    >>> one = Branch(torch.ones(4, 2), torch.ones(2, 4))
    >>> both = joined(Expert((), (one,)), (), (3, 2))
    >>> both.branches[0].down.shape, both.branches[0].down[0].tolist()
    (torch.Size([4, 5]), [0.0, 0.0, 0.0, 1.0, 1.0])
    """
    if not shared and not expert.branches:
        return Expert(expert.maps)
    like = shared or expert.branches
    expert = expert.to(like[0].down.device)
    first = shared or tuple(_nothing(one, ranks[0]) for one in like)
    second = expert.branches or tuple(_nothing(one, ranks[1]) for one in like)
    return Expert(
        expert.maps,
        tuple(
            Branch(torch.cat([a.down, b.down], 1), torch.cat([a.up, b.up], 0))
            for a, b in zip(first, second, strict=True)
        ),
    )


def _nothing(like: Branch, rank: int) -> Branch:
    width = len(like.down)
    return Branch(like.down.new_zeros(width, rank), like.up.new_zeros(rank, width))
