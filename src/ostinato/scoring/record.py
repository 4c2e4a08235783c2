"""One record per batch: the only thing that tables, comparisons and reports read.

Nothing here needs torch, so a report opens as fast as its files can be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, ValidationError, model_validator

from ostinato.config import Config
from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.types import Decision

# What a machine does differently each time; everything else repeats with the seed.
_UNREPEATABLE = frozenset({"seconds", "peak_memory"})


def finite(value: float | None) -> float | None:
    """The value, or None where JSON has no word for it.

    >>> finite(0.5), finite(float("inf")), finite(None)
    (0.5, None, None)
    """
    return value if value is not None and math.isfinite(value) else None


class RecordedDecision(Config):
    """What the discriminator decided; `distance` is None where no domain was known yet.

    >>> from ostinato.types import Decision
    >>> RecordedDecision.of(Decision(0, True, float("inf"), 5.0)).distance is None
    True
    """

    domain: int
    is_new: bool
    distance: float | None
    threshold: float | None
    distances: tuple[tuple[int, float | None], ...] = ()
    evidence: int = 0
    settled: bool = True
    per_sample: tuple[int, ...] | None = None

    @classmethod
    def of(cls, decision: Decision) -> Self:
        """Keep a method's decision, infinite distances as None."""
        return cls(
            domain=decision.domain,
            is_new=decision.is_new,
            distance=finite(decision.distance),
            threshold=finite(decision.threshold),
            distances=tuple((name, finite(value)) for name, value in decision.distances),
            evidence=decision.evidence,
            settled=decision.settled,
            per_sample=decision.per_sample,
        )


class Record(Config):
    """One batch of one run, as one line of JSON.

    Classification fills `hits` and `confidence`; segmentation fills `confusion` and `bins`.

    Attributes:
        run: the run's id, the same on every line of a file.
        index: position of the batch in its stream, from 0.
        round: how often the domain has come before, from 0.
        domain: the true domain's name.
        images: images in the batch.
        correct: right answers, out of `counted` (images, or labelled pixels).
        counted: answers that have a label.
        keys: one stable name per image, which pairs images across runs.
        image_domains: the true domain of each image where the batch mixes several.
        hits: one character per image, "1" right, "0" wrong.
        confidence: largest probability per image, rounded to five decimals.
        classes: classes of `confusion`, 0 for classification.
        confusion: per image, classes × classes pixel counts, flat, row = label.
        bins: per confidence bin (pixels, sum of confidence, right pixels).
        descriptor: the batch's mean descriptor, where the run keeps it.
        trust: per image, how far its expert acted; 0 where the source model answered.
        trained: parameters that the step trained.
        seconds: wall time of the step.
        peak_memory: bytes at the step's highest point, where the device tells.

    >>> record = Record(
    ...     run="a",
    ...     index=0,
    ...     domain="fog",
    ...     images=2,
    ...     correct=1,
    ...     counted=2,
    ...     keys=("x", "y"),
    ...     hits="10",
    ...     confidence=(0.9, 0.6),
    ... )
    >>> Record.from_line(record.to_line()) == record
    True
    >>> record.replace(hits="1")
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: Record: ... hits holds 1 images, the batch has 2
    """

    run: str
    index: int = Field(ge=0)
    round: int = Field(default=0, ge=0)
    domain: str
    images: int = Field(ge=0)
    correct: int = Field(ge=0)
    counted: int = Field(ge=0)
    keys: tuple[str, ...] = ()
    image_domains: tuple[str, ...] | None = None
    hits: str = Field(default="", pattern="^[01]*$")
    confidence: tuple[float, ...] = ()
    classes: int = 0
    confusion: tuple[tuple[int, ...], ...] = ()
    bins: tuple[tuple[int, float, int], ...] = ()
    decision: RecordedDecision | None = None
    descriptor: tuple[float, ...] = ()
    trust: tuple[float, ...] = ()
    loss: float | None = None
    used: int = 0
    updated: bool = False
    events: tuple[str, ...] = ()
    trained: int = 0
    seconds: float = 0.0
    peak_memory: int | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        per_image: dict[str, Any] = {
            "keys": self.keys,
            "image_domains": self.image_domains,
            "hits": self.hits,
            "confidence": self.confidence,
            "confusion": self.confusion,
            "trust": self.trust,
            "decision.per_sample": self.decision and self.decision.per_sample,
        }
        for name, values in per_image.items():
            if values and len(values) != self.images:
                raise ValueError(f"{name} holds {len(values)} images, the batch has {self.images}")
        if any(len(counts) != self.classes**2 for counts in self.confusion):
            raise ValueError(f"confusion should hold {self.classes}² counts per image")
        return self

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        correct, counted = self.correct, self.counted
        if self.hits:
            correct, counted = self.hits.count("1"), len(self.hits)
        elif self.confusion:
            correct = sum(sum(one[:: self.classes + 1]) for one in self.confusion)
            counted = sum(sum(one) for one in self.confusion)
        if (correct, counted) != (self.correct, self.counted):
            raise ValueError(
                f"correct and counted are {self.correct} of {self.counted}, but "
                f"{'hits say' if self.hits else 'confusion says'} {correct} of {counted}"
            )
        if correct > counted:
            raise ValueError(f"{correct} of {counted} cannot be correct")
        return self

    @property
    def task(self) -> str:
        """What was measured: "classification" or "segmentation"."""
        return "segmentation" if self.confusion else "classification"

    def domains(self) -> tuple[str, ...]:
        """The true domain of every image."""
        return self.image_domains or (self.domain,) * self.images

    def wrong(self) -> Iterator[bool]:
        """Whether each image was answered wrongly (classification)."""
        if len(self.hits) != self.images:
            raise DataError(f"Batch {self.index} does not say which of its images were right.")
        return (hit == "0" for hit in self.hits)

    def to_line(self) -> str:
        """One line of JSON, without the fields that stand at their default."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """Read a line back; a damaged one is a DataError."""
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise DataError(f"is not a record ({where}: {first['msg']})") from None

    def content(self) -> dict[str, Any]:
        """Everything that a repeated run must reproduce: all but time and memory."""
        return self.model_dump(exclude=set(_UNREPEATABLE))
