"""The few values that travel between a stream, a method and the records of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """What a stream yields. A method is given `images` (and `classes`) and nothing else.

    Attributes:
        images: (B, 3, H, W), uint8 or float in [0, 1], before any normalisation.
        labels: (B,) class indices, or (B, H, W) for segmentation (255 is ignored).
            Counted within `classes` where that is set.
        domain: the true domain's name; for metrics alone.
        index: position of the batch in its stream.
        round: how often this domain has come before, from 0.
        classes: the model's output columns in use, where a data set has a part of them.
        keys: one stable name per image, to pair images across runs.
        image_domains: the true domain of every image where a batch mixes several.

    >>> import torch
    >>> batch = Batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), domain="fog")
    >>> len(batch), batch.domain, batch.round
    (2, 'fog', 0)
    """

    images: Tensor
    labels: Tensor | None = None
    domain: str = ""
    index: int = 0
    round: int = 0
    classes: Tensor | None = None
    keys: tuple[str, ...] = ()
    image_domains: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return int(self.images.shape[0])


@dataclass(frozen=True, slots=True)
class Decision:
    """What the discriminator made of a batch. Deciding changes nothing.

    Attributes:
        domain: stable id of the chosen domain (a new id where `is_new`).
        is_new: the batch matches no known domain.
        distance: to the nearest known domain; infinite where there is none.
        threshold: the distance above which a batch counts as new.
        distances: to every known domain, as (id, distance).
        evidence: how many images the decision rests on.
        settled: False while the evidence is still too thin to learn from.
        per_sample: the domain of each image, where a method routes them one by one.

    >>> decision = Decision(domain=1, is_new=False, distance=0.8, threshold=5.0)
    >>> decision.domain, decision.is_new
    (1, False)
    """

    domain: int
    is_new: bool
    distance: float
    threshold: float
    distances: tuple[tuple[int, float], ...] = ()
    evidence: int = 0
    settled: bool = True
    per_sample: tuple[int, ...] | None = None


@dataclass(slots=True)
class StepOutput:
    """What one step produced; `adapted.last` keeps the latest.

    Attributes:
        logits: the prediction that was returned.
        decision: what the discriminator decided, for methods that have one.
        loss: the objective's value, where there was one.
        used: images that took part in the objective.
        updated: whether any parameter moved.
        events: what happened to domains ("founded domain 2"), in order.
        seconds: wall time of the step.
        version: of the published state that answered.
        trust: per image, how far its expert was let act (0: the source answered), where known.
        source_logits: what the source model says, where it was asked.

    >>> import torch
    >>> seen = Decision(0, False, 0.4, 5.0, per_sample=(0, 2))
    >>> output = StepOutput(torch.zeros(2, 10), decision=seen, trust=(0.0, 0.3))
    >>> output.domains, output.trust
    ((0, 2), (0.0, 0.3))
    """

    logits: Tensor
    decision: Decision | None = None
    loss: float | None = None
    used: int = 0
    updated: bool = False
    events: tuple[str, ...] = field(default=())
    seconds: float = 0.0
    version: int = 0
    trust: tuple[float, ...] = field(default=())
    source_logits: Tensor | None = None

    def part(self, rows: slice | None) -> StepOutput:
        """The same for some of the batch's images: what is one an image is theirs alone."""
        if rows is None:
            return self
        decision, source = self.decision, self.source_logits
        if decision is not None and decision.per_sample is not None:
            decision = replace(decision, per_sample=decision.per_sample[rows])
        return replace(
            self,
            logits=self.logits[rows],
            decision=decision,
            trust=self.trust[rows],
            source_logits=None if source is None else source[rows],
        )

    @property
    def domains(self) -> tuple[int, ...]:
        """The domain of every image, where the method keeps domains."""
        if self.decision is None:
            return ()
        return self.decision.per_sample or (self.decision.domain,) * len(self.logits)

    @property
    def domain(self) -> int | None:
        """The chosen domain's id, where the method keeps domains."""
        return None if self.decision is None else self.decision.domain

    @property
    def is_new(self) -> bool:
        """Whether the batch opened a new domain."""
        return self.decision is not None and self.decision.is_new
