"""Answering from a published version: describe, route, one forward, all on the model's device."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ostinato.domains.verdict import FAR, Change
from ostinato.experts.compiled import CompiledBlocks
from ostinato.experts.maps import map_rank
from ostinato.experts.routed import EVERY, Acting, Branch, Expert
from ostinato.experts.stack import Layout
from ostinato.methods.base import Input
from ostinato.methods.ostinato._bank import Domain, Version
from ostinato.methods.ostinato._capture import Answered, Captures
from ostinato.methods.ostinato._learning import Differentiated, Learner
from ostinato.methods.ostinato._making import Groups, Made, MapCaptures
from ostinato.methods.ostinato._narrowed import Narrowed
from ostinato.methods.ostinato._published import Placed, Publisher
from ostinato.methods.ostinato._step import Started, StepCaptures
from ostinato.methods.ostinato._timing import NEW
from ostinato.ops import kernels
from ostinato.ops.borrowed import Borrowed
from ostinato.ops.views import Viewed
from ostinato.types import Decision, StepOutput

Found = TypeVar("Found")


class Answers(Learner):
    """The part of the method that answers."""

    publisher: Publisher
    captures: Captures
    step_captures: StepCaptures
    map_captures: MapCaptures
    narrowed: Narrowed
    compiled: CompiledBlocks
    _said: frozenset[str] = frozenset()

    @abstractmethod
    def _described(self, pixels: Tensor) -> Tensor:
        """Descriptors of pixels that the model takes."""

    def _publisher(self) -> Publisher:
        mapped = self.statistics.tokens[::EVERY]
        blocks = [(block.mean.numel(), block.prefix.shape[0]) for block in mapped]
        layout = Layout(
            tuple((width, map_rank(width), prefix) for width, prefix in blocks),
            tuple((width, self.config.domain_rank) for _, width in self.hooks.widths),
        )
        own = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float)
        kind = torch.bfloat16 if self.config.precision == "bf16" else own
        assert self.statistics.content is not None
        where, resident = self.model.device, self.config.resident
        return Publisher(layout, self.statistics.content, where, kind, resident)

    def _open_captures(self) -> None:
        """Begin with no captures, where the model is now."""
        self.narrowed, self.compiled = Narrowed(), self.hooks.compiled()
        self._uncompiled: str | None = None
        self.capturing = self._may_capture()
        self.kind = torch.promote_types(torch.float, self.model.dtype)
        self.captures = Captures(Borrowed(self._described), Borrowed(self._forward_pixels))
        class_token = self.hooks.prefix > 0
        work = Borrowed(self._differentiate_pixels)
        self.step_captures = StepCaptures(work, class_token=class_token)
        self.map_captures = MapCaptures(Borrowed(self._make_from_pixels))

    def _quickly(self, work: Callable[[], Found]) -> Found:
        """What is recorded: with weights rounded once, and blocks compiled where that is asked.

        Where a model cannot be compiled, the first run finds out, which is not recorded yet.
        """
        if self.config.compile is True and self._uncompiled is None:
            try:
                with self.compiled(), self.autocast(), self.narrowed.in_layers(self.model):
                    return work()
            except RuntimeError as error:
                self._uncompiled = f"{type(error).__name__}: {error}".splitlines()[0]
                self._say_refused("compiled blocks", self._uncompiled)
        with self.narrowed:
            return work()

    def _forward_pixels(self, pixels: Tensor, placed: Placed, index: Tensor) -> Tensor:
        return self._quickly(lambda: self._forward(Input(pixels), placed, index))

    def _differentiate_pixels(
        self, pixels: Tensor, now: Acting, groups: tuple[tuple[Branch, ...], ...]
    ) -> Differentiated:
        return self._quickly(lambda: self._differentiate(Input(pixels), now, groups))

    def _make_from_pixels(self, pixels: Tensor, share: Tensor | None, groups: Groups) -> Made:
        shared, own = groups or ((), ())
        expert = None if share is None else Expert((), own)

        def make() -> Made:
            return super(Answers, self)._passed(Input(pixels), expert, share, shared)

        count = len(pixels)
        if count == self.config.micro or count % NEW == 0:  # others are few; compiling takes time
            return self._quickly(make)
        with self.narrowed:
            return make()

    def _passed(
        self,
        batch: Input,
        expert: Expert | None,
        share: float | Tensor | None = None,
        shared: tuple[Branch, ...] | None = None,
    ) -> Made:
        """The source's pass and the making of maps are captured where possible."""
        alone, found = (share is None) == (expert is None), None
        if alone and batch.classes is None and self.capturing and self.processes.alone:
            assert not isinstance(share, Tensor)
            own = () if expert is None else expert.branches
            groups = (self._shared_beside(expert), own) if own else ()
            self.narrowed.refresh()
            found = self.map_captures.made_from(batch.pixels, share, groups)
            self._say_refused("captured maps", self.map_captures.refused)
        return super()._passed(batch, expert, share, shared) if found is None else found

    def _captured_gradients(self, batch: Input, domain: Domain) -> Differentiated | None:
        if domain.branches is None or batch.classes is not None or not self.processes.alone:
            return None
        number = self.bank.number(domain)
        known = self.version.experts.get(number)
        if known is None or known.maps is not domain.maps or domain.share <= 0:
            return None
        placed = self.publisher.with_maps(number, self.version)
        groups = (self.bank.shared, domain.branches)
        self.narrowed.refresh()
        row = placed.table[number]
        found = self.step_captures.gradients(
            batch.pixels, placed.rows, row, groups, domain.temperature
        )
        self._say_refused("captures", self.step_captures.refused)
        return found

    def _start_step(self, batch: Input, domain: Domain) -> Started | None:
        """Send off the gradients of a batch that is expected to be a domain's."""
        found = self._captured_gradients(batch, domain)
        if found is None or domain.branches is None:
            return None
        groups = (self.bank.shared, domain.branches)
        changes = (groups[0].changes, groups[1].changes)
        return Started(domain, domain.maps, groups, changes, found)

    def _captured(self, batch: Input) -> Answered | None:
        """A captured answer on its way; None where the plain way is to be gone."""
        if not (self.capturing and self.processes.alone):
            return None
        self.narrowed.refresh()
        found = self.captures.answer(batch.pixels, self.publisher.placed(self.version))
        self._say_refused("captures", self.captures.refused)
        self._say_refused("kernels", kernels.refused())
        return found

    def _say_refused(self, what: str, why: str | None) -> None:
        """Warn once of what answers have to do without, where it was asked for."""
        if why is not None and self.config.compile is True and what not in self._said:
            self._said |= {what}
            warnings.warn(f"This model is answered without {what}: {why}", stacklevel=2)

    def _may_capture(self) -> bool:
        """Whether a capture serves here; no other process has a part in one."""
        whole = not any(isinstance(module, Viewed) for module in self.model.modules())
        # Input that came normalised goes to the model as it came, in a tensor of its own.
        plain = not self.config.compile or self.model.normalize == "input"
        return self.model.device.type == "cuda" and whole and not plain

    def _respond(self, batch: Input) -> tuple[StepOutput, Tensor]:
        """An answer, and the batch's descriptors."""
        answered = self._captured(batch)
        if answered is None:
            described = self._described(batch.pixels)
            return self._answer(batch, described), described
        owners, version = answered.routed.owners.tolist(), answered.placed.version
        if answered.placed.misses(owners):
            return self._answer(batch, answered.described), answered.described
        return self._captured_output(batch, answered, version, owners, None), answered.described

    def _captured_output(
        self,
        batch: Input,
        answered: Answered,
        version: Version,
        owners: Sequence[int],
        change: Change | None,
    ) -> StepOutput:
        logits = answered.logits
        if batch.classes is not None:
            logits = logits.index_select(1, batch.classes)
        far = float(answered.routed.distance.mean()) if change is None else change.distance
        return self._output(logits, version, owners, far, change)

    def _still_holds(self, answered: Answered, owners: Sequence[int]) -> bool:
        """Whether an answer sent off before a batch was taken in is what it would be after it."""
        before, now = answered.placed.version, self.version
        same = all(
            before.experts.get(domain) is now.experts.get(domain)
            and before.shares.get(domain) == now.shares.get(domain)
            for domain in set(owners)
        )
        shared = before.shared is now.shared or not (before.shared or now.shared)
        same = same and not answered.placed.misses(owners)
        return same and shared and answered.routed.owners.tolist() == list(owners)

    def _answer(self, batch: Input, decided: Tensor | Change) -> StepOutput:
        """Answer a batch; what is decided here comes to the host once the forward is on its way.

        Args:
            batch: the batch.
            decided: what routing made of it, or its descriptors where that is to be found.
        """
        change = decided if isinstance(decided, Change) else None
        placed = self.publisher.placed(self.version, () if change is None else change.owners)
        if isinstance(decided, Change):
            owners, distance = decided.owners, decided.distance
            logits = self._forward(batch, placed, placed.index(owners))
        else:
            with torch.no_grad():
                routed = placed.routes(decided)
                logits = self._forward(batch, placed, routed.rows)
            owners, distance = routed.owners.tolist(), float(routed.distance.mean())
        if placed.misses(owners):  # an expert comes back from the host: answer once more, with it
            placed = self.publisher.placed(placed.version, owners)
            logits = self._forward(batch, placed, placed.index(owners))
        return self._output(logits, placed.version, owners, distance, change)

    def _forward(self, batch: Input, placed: Placed, index: Tensor) -> Tensor:
        now = placed.open(self.processes.share(index))
        with torch.no_grad(), self.autocast(), self.hooks.open(now):
            return self.logits(batch)

    def _output(
        self,
        logits: Tensor,
        version: Version,
        owners: Sequence[int],
        distance: float,
        change: Change | None,
    ) -> StepOutput:
        """What a batch is answered."""
        founded = set(change.founded) if change is not None else set()
        shown = tempered(logits.detach().float(), owners, version.temperatures)
        self.publisher.used(owners)
        usual = Counter(owners).most_common(1)[0][0]
        decision = Decision(
            domain=usual,
            is_new=usual in founded,
            distance=distance,
            threshold=FAR,
            evidence=len(owners),
            per_sample=tuple(owners),
        )
        return StepOutput(
            logits=shown,
            decision=decision,
            used=len(owners),
            events=() if change is None else tuple(self.events),
            version=version.number,
            trust=tuple(version.shares.get(owner, 0.0) for owner in owners),
        )


def tempered(logits: Tensor, owners: Sequence[int], temperatures: Mapping[int, float]) -> Tensor:
    """Logits (B, C, ...) divided by the temperature of each image's domain, 1 where none is known.

    >>> tempered(torch.ones(2, 3), [1, 2], {2: 4.0})[:, 0].tolist()
    [1.0, 0.25]
    """
    factors = [1 / temperatures.get(owner, 1.0) for owner in owners] or [1.0]
    if all(factor == factors[0] for factor in factors):
        return logits if factors[0] == 1 else logits * factors[0]
    scale = torch.tensor(factors, dtype=logits.dtype, device=logits.device)
    return logits * scale.view(-1, *[1] * (logits.ndim - 1))
