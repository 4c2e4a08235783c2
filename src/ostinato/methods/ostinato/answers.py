"""Answering from a published version: describe, route, one forward, all on the model's device."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.domains.texture import Texture
from ostinato.domains.verdict import FAR, Change
from ostinato.experts.routed import EVERY, Acting, Branch, Expert
from ostinato.experts.stack import Layout
from ostinato.methods.base import Input
from ostinato.methods.ostinato.capture import Answered, Captures
from ostinato.methods.ostinato.learning import Differentiated, Learner
from ostinato.methods.ostinato.making import Made, MapCaptures
from ostinato.methods.ostinato.parts import Domain, Version
from ostinato.methods.ostinato.published import Placed, Publisher
from ostinato.methods.ostinato.step import Started, StepCaptures
from ostinato.methods.ostinato.temperature import tempered
from ostinato.ops import kernels
from ostinato.ops.borrowed import Borrowed
from ostinato.ops.colours import three_colours
from ostinato.experts.maps import map_rank
from ostinato.ops.narrowed import Narrowed
from ostinato.ops.views import Viewed
from ostinato.types import Decision, StepOutput


class Answers(Learner):
    """The part of the method that answers."""

    describe: Texture
    publisher: Publisher
    captures: Captures
    step_captures: StepCaptures
    map_captures: MapCaptures
    narrowed: Narrowed
    _said: frozenset[str] = frozenset()

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
        """Begin with no captures."""
        self.narrowed = Narrowed()
        self._whole = not any(isinstance(module, Viewed) for module in self.model.modules())
        self.captures = Captures(Borrowed(self._described), Borrowed(self._forward_pixels))
        class_token = self.hooks.prefix > 0
        work = Borrowed(self._differentiate_pixels)
        self.step_captures = StepCaptures(work, class_token=class_token)
        self.map_captures = MapCaptures(Borrowed(self._make_from_pixels))

    def _forward_pixels(self, pixels: Tensor, placed: Placed, index: Tensor) -> Tensor:
        with self.narrowed:
            return self._forward(Input(pixels), placed, index)

    def _differentiate_pixels(
        self, pixels: Tensor, now: Acting, groups: tuple[tuple[Branch, ...], ...]
    ) -> Differentiated:
        with self.narrowed:
            return self._differentiate(Input(pixels), now, groups)

    def _make_from_pixels(self, pixels: Tensor, share: Tensor) -> Made:
        with self.narrowed:
            return super()._passed(Input(pixels), Expert(), share)

    def _passed(
        self, batch: Input, expert: Expert | None, share: float | Tensor | None = None
    ) -> Made:
        """Maps alone are made by a captured pass where possible; all else is passed plainly."""
        alone = expert is not None and not expert.branches and batch.classes is None
        found = None
        if alone and isinstance(share, float) and self._may_capture():
            self.narrowed.refresh()
            found = self.map_captures.made_from(batch.pixels, share)
            self._say_refused("captured maps", self.map_captures.refused)
        return super()._passed(batch, expert, share) if found is None else found

    def _gradients(self, batch: Input, domain: Domain) -> Differentiated:
        """Captured where possible; the plain way otherwise."""
        found = self._captured_gradients(batch, domain)
        return super()._gradients(batch, domain) if found is None else found

    def _captured_gradients(self, batch: Input, domain: Domain) -> Differentiated | None:
        if domain.branches is None or batch.classes is not None or not self._may_capture():
            return None
        number = self.bank.number(domain)
        known = self.version.experts.get(number)
        if known is None or known.maps is not domain.maps or domain.share <= 0:
            return None
        placed = self.publisher.with_maps(number, self.version)
        groups = (self.bank.shared, domain.branches)
        self.narrowed.refresh()
        row = placed.table[number]
        found = self.step_captures.gradients(batch.pixels, placed.rows, row, groups)
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

    def _described(self, pixels: Tensor) -> Tensor:
        found = self.describe(three_colours(self.processes.share(pixels)))
        return self.processes.gathered(found, len(pixels))

    def _captured(self, batch: Input) -> Answered | None:
        """A captured answer on its way; None where the plain way is to be gone."""
        if not self._may_capture():
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
        gpu = self.model.device.type == "cuda" and self.processes.alone
        # Input that came normalised goes to the model as it came, in a tensor of its own.
        plain = not self.config.compile or self.model.normalize == "input"
        return gpu and not plain and self._whole

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

    def _answer(self, batch: Input, described: Tensor, change: Change | None = None) -> StepOutput:
        """Answer a batch; what was decided comes to the host once the forward is on its way."""
        placed = self.publisher.placed(self.version, () if change is None else change.owners)
        if change is not None:
            owners, distance = change.owners, change.distance
            logits = self._forward(batch, placed, placed.index(owners))
        else:
            with torch.no_grad():
                routed = placed.routes(described)
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
        founded = set(change.founded) if change is not None else set()
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
            logits=tempered(logits.detach().float(), owners, version.temperatures),
            decision=decision,
            used=len(owners),
            events=() if change is None else tuple(self.events),
            version=version.number,
            trust=tuple(version.shares.get(owner, 0.0) for owner in owners),
        )
