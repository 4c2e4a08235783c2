"""Paired comparison of runs: is one better, or was it luck of the images?

The bootstrap draws images, with everything that was asked about them: an image that appears
under fifteen corruptions in three rounds is one draw, since its 45 answers hang together. All
runs share the draws, so what makes an image hard for every run cancels in the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.scoring._bootstrap import (
    Answer,
    Array,
    Cell,
    Scores,
    draws,
    group,
    score,
    spread,
    stack,
)
from ostinato.scoring.forgetting import Metric, higher_is_better
from ostinato.scoring.record import Record
from ostinato.scoring.summary import natural_metric


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval, in percent.

    >>> str(Interval(4.0, 2.5, 5.5))
    '4.00 [2.50, 5.50]'
    """

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Contrast:
    """One run against the baseline, on all images or on a part of them.

    Attributes:
        images: answers that were paired.
        baseline: the baseline's score.
        other: the other run's score.
        difference: other − baseline.
        p_value: two-sided; how often a draw puts the difference on zero's other side.

    >>> before, after = Interval(50.0, 48.0, 52.0), Interval(44.0, 42.0, 46.0)
    >>> Contrast(100, before, after, Interval(-6.0, -8.0, -4.0), p_value=0.001).differs
    True
    """

    images: int
    baseline: Interval
    other: Interval
    difference: Interval
    p_value: float

    @property
    def differs(self) -> bool:
        """Whether the interval of the difference leaves zero out."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run against the baseline: over all, per domain and per round.

    >>> before, after = Interval(50.0, 48.0, 52.0), Interval(44.0, 42.0, 46.0)
    >>> whole = Contrast(100, before, after, Interval(-6.0, -8.0, -4.0), p_value=0.001)
    >>> Comparison("source", "tent", "error", 0.95, 1000, whole, {}, {}).verdict
    'better'
    """

    baseline: str
    other: str
    metric: Metric
    confidence: float
    resamples: int
    overall: Contrast
    domains: dict[str, Contrast]
    rounds: dict[int, Contrast]

    @property
    def verdict(self) -> str:
        """In one word: "better", "worse" or "undecided", of `other`."""
        if not self.overall.differs:
            return "undecided"
        rises = self.overall.difference.estimate > 0
        return "better" if rises == higher_is_better(self.metric) else "worse"


def compare(
    runs: Mapping[str, Sequence[Record]],
    *,
    baseline: str | None = None,
    metric: Metric | None = None,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Compare each run with the baseline (the first one, unless named).

    >>> row = dict(run="r", index=0, domain="fog", images=3, counted=3, keys=("a", "b", "c"))
    >>> runs = {
    ...     "tent": [Record(hits="000", correct=0, **row)],
    ...     "ours": [Record(hits="111", correct=3, **row)],
    ... }
    >>> (only,) = compare(runs, resamples=100)
    >>> str(only.overall.difference), only.verdict
    ('-100.00 [-100.00, -100.00]', 'better')
    """
    baseline = _check(runs, baseline, resamples, confidence)
    first, *others = [baseline, *(name for name in runs if name != baseline)]
    metric = metric or natural_metric(runs[first])
    higher_is_better(metric)
    answers = {name: _collect(runs[name], metric, name) for name in (first, *others)}
    for name in others:
        _check_paired(first, answers[first], name, answers[name])
    cells = group(list(answers[first]))
    images = 1 + max(int(cell.images.max()) for cell in cells)
    sizes = spread(cells, [np.ones(len(cell.images)) for cell in cells], images)
    stats = {name: stack(cells, answers[name], images, metric) for name in answers}
    tables: dict[str, list[Scores]] = {name: [] for name in stats}
    for weights in chain([np.ones((1, images))], draws(images, resamples, seed)):
        counts = weights @ sizes
        for name, one in stats.items():
            tables[name].append(Scores(score(cells, one, weights, counts, metric), counts))
    table = {name: (parts[0], Scores.join(parts[1:])) for name, parts in tables.items()}
    return tuple(
        _comparison(first, name, table, cells, metric, confidence, resamples) for name in others
    )


def _collect(
    records: Sequence[Record], metric: Metric, name: str = "run"
) -> dict[Answer, tuple[float, ...]]:
    """Each answer's numbers: wrong or right (or whatever the metric counts), or a confusion."""
    result: dict[Answer, tuple[float, ...]] = {}
    seen: dict[tuple[str, str, int], int] = {}
    for record in records:
        if not record.keys:
            raise DataError(f"Batch {record.index} of {name} has no image keys to pair by.")
        values = _values(record, metric, name)
        for key, domain, value in zip(record.keys, record.domains(), values, strict=True):
            place = (key, domain, record.round)
            again = seen.get(place, 0)
            seen[place] = again + 1
            result[(*place, again)] = value
    return result


def _values(record: Record, metric: Metric, name: str) -> Sequence[tuple[float, ...]]:
    task = "segmentation" if metric == "miou" else "classification"
    if record.task != task:
        raise DataError(f"Batch {record.index} of {name} is {record.task}; {metric} is for {task}.")
    if task == "segmentation":
        return record.confusion
    return [(float(wrong != (metric == "accuracy")),) for wrong in record.wrong()]


def _check(
    runs: Mapping[str, Sequence[Record]], baseline: str | None, resamples: int, confidence: float
) -> str:
    if len(runs) < 2:
        raise ConfigError(f"A comparison needs two runs or more, not {len(runs)}.")
    if resamples < 1 or not 0 < confidence < 1:
        raise ConfigError(
            f"resamples = {resamples} should be at least 1, confidence = {confidence} in (0, 1)."
        )
    if baseline is not None and baseline not in runs:
        raise ConfigError(f"There is no run {baseline!r}. {did_you_mean(baseline, runs)}")
    for name, records in runs.items():
        if not records:
            raise DataError(f"{name} has no records; it has not begun.")
    return baseline if baseline is not None else next(iter(runs))


def _check_paired(
    first: str,
    ours: Mapping[Answer, tuple[float, ...]],
    name: str,
    theirs: Mapping[Answer, tuple[float, ...]],
) -> None:
    alone = [(first, a) for a in ours if a not in theirs] + [
        (name, a) for a in theirs if a not in ours
    ]
    if alone:
        where, (key, domain, number, _) = alone[0]
        raise DataError(
            f"{first} and {name} did not see the same images: {len(alone)} stand in one alone, "
            f"such as {key!r} ({domain}, round {number}) in {where}. Compare runs of one stream."
        )
    if len(next(iter(ours.values()))) != len(next(iter(theirs.values()))):
        raise DataError(f"{first} and {name} have different numbers of classes.")


_Run: TypeAlias = tuple[Scores, Scores]
"""A run's scores as they are, and as drawn."""


def _interval(estimate: float, draws: Array, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))


def _contrast(ours: _Run, theirs: _Run, part: NDArray[np.int64], confidence: float) -> Contrast:
    before, after = (float(run[0].pool(part)[0]) for run in (ours, theirs))
    base, other = (run[1].pool(part) for run in (ours, theirs))
    kept = np.isfinite(base)  # a draw without one image of a small part says nothing about it
    base, other = base[kept], other[kept]
    gap = other - base
    rest = min(int((gap <= 0).sum()), int((gap >= 0).sum()))
    return Contrast(
        images=int(ours[0].counts[0, part].sum()),
        baseline=_interval(before, base, confidence),
        other=_interval(after, other, confidence),
        difference=_interval(after - before, gap, confidence),
        p_value=min(1.0, 2 * (rest + 1) / (len(gap) + 1)),
    )


def _comparison(
    first: str,
    name: str,
    table: Mapping[str, _Run],
    cells: Sequence[Cell],
    metric: Metric,
    confidence: float,
    resamples: int,
) -> Comparison:
    def contrast(part: list[int]) -> Contrast:
        return _contrast(table[first], table[name], np.array(part), confidence)

    domains = dict.fromkeys(cell.domain for cell in cells)
    rounds = sorted({cell.round for cell in cells})
    return Comparison(
        baseline=first,
        other=name,
        metric=metric,
        confidence=confidence,
        resamples=resamples,
        overall=contrast(list(range(len(cells)))),
        domains={d: contrast([i for i, c in enumerate(cells) if c.domain == d]) for d in domains},
        rounds={r: contrast([i for i, c in enumerate(cells) if c.round == r]) for r in rounds},
    )
