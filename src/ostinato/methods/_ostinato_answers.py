"""Answering from a published version: describe, route, one forward, all on the model's device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.domains.texture import Texture
from ostinato.domains.verdict import FAR, Change
from ostinato.experts.stack import Layout
from ostinato.methods._ostinato_learning import Learner
from ostinato.methods._ostinato_parts import Version
from ostinato.methods._ostinato_published import Placed, Publisher
from ostinato.methods.base import Input
from ostinato.ops.moments import map_rank
from ostinato.types import Decision, StepOutput


class Answers(Learner):
    """The part of the method that answers."""

    describe: Texture
    publisher: Publisher

    def _publisher(self) -> Publisher:
        blocks = [(block.mean.numel(), block.prefix.shape[0]) for block in self.statistics.tokens]
        layout = Layout(
            tuple((width, map_rank(width), prefix) for width, prefix in blocks),
            tuple((width, self.config.domain_rank) for _, width in self.hooks.widths),
        )
        own = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float)
        kind = torch.bfloat16 if self.config.precision == "bf16" else own
        assert self.statistics.content is not None
        return Publisher(layout, self.statistics.content, self.model.device, kind)

    def _answer(self, batch: Input, described: Tensor, change: Change | None = None) -> StepOutput:
        """Answer a batch; what was decided comes to the host once the forward is on its way."""
        placed = self.publisher.placed(self.version)
        with torch.no_grad():
            routed = placed.routes(described)
            index = routed.rows if change is None else placed.index(change.owners)
            logits = self._forward(batch, placed, index)
        owners = routed.owners.tolist() if change is None else change.owners
        return self._output(logits, placed.version, owners, routed.distance, change)

    def _forward(self, batch: Input, placed: Placed, index: Tensor) -> Tensor:
        with torch.no_grad(), self.autocast(), self.hooks.open(placed.open(index)):
            return self.logits(batch)

    def _output(
        self,
        logits: Tensor,
        version: Version,
        owners: Sequence[int],
        distance: Tensor,
        change: Change | None,
    ) -> StepOutput:
        founded = set(change.founded) if change is not None else set()
        usual = Counter(owners).most_common(1)[0][0]
        decision = Decision(
            domain=usual,
            is_new=usual in founded,
            distance=float(distance.mean()),
            threshold=FAR,
            evidence=len(owners),
            per_sample=tuple(owners),
        )
        return StepOutput(
            logits=logits.detach().float(),
            decision=decision,
            used=len(owners),
            events=() if change is None else tuple(self.events),
            version=version.number,
            trust=tuple(version.shares.get(owner, 0.0) for owner in owners),
        )
