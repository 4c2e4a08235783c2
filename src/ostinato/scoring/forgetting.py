"""Scores per domain and round, their means, and Repeat Forget. Pure functions, all in percent.

Means come in two weightings, in this order everywhere: by images (what the literature's CRS
tables print) and by domains (every domain counts the same).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ostinato.errors import DataError, did_you_mean
from ostinato.scoring.metrics import mean_iou
from ostinato.scoring.record import Record

Metric: TypeAlias = Literal["error", "accuracy", "miou"]
_HIGHER_IS_BETTER: dict[str, bool] = {"error": False, "accuracy": True, "miou": True}


class Score(NamedTuple):
    """A value in percent, and how many images stand behind it.

    >>> Score(40.0, 100.0).value
    40.0
    """

    value: float
    images: float


class Means(NamedTuple):
    """One mean in both weightings.

    >>> Means(by_images=20.0, by_domains=25.0).by_domains
    25.0
    """

    by_images: float
    by_domains: float


Cells: TypeAlias = Mapping[tuple[int, str], Score]
"""Scores by (round, domain), in the order in which the stream brought them."""


def cells(records: Iterable[Record], metric: Metric = "error") -> dict[tuple[int, str], Score]:
    """The score of every domain in every round.

    >>> row = dict(run="a", images=2, counted=2, domain="fog")
    >>> cells(
    ...     [
    ...         Record(index=0, correct=1, hits="01", **row),
    ...         Record(index=1, correct=2, hits="11", **row),
    ...     ]
    ... )
    {(0, 'fog'): Score(value=25.0, images=4)}
    """
    higher_is_better(metric)
    if metric == "miou":
        return _iou_cells(records)
    right: dict[tuple[int, str], int] = {}
    images: dict[tuple[int, str], int] = {}
    for record in records:
        if record.task != "classification":
            raise DataError(f"Batch {record.index} holds pixels; measure it with metric='miou'.")
        for domain, wrong in zip(record.domains(), record.wrong(), strict=True):
            key = (record.round, domain)
            right[key] = right.get(key, 0) + (not wrong)
            images[key] = images.get(key, 0) + 1
    count = {k: right[k] if metric == "accuracy" else n - right[k] for k, n in images.items()}
    return {key: Score(100.0 * count[key] / n, n) for key, n in images.items()}


def _iou_cells(records: Iterable[Record]) -> dict[tuple[int, str], Score]:
    counts: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    classes: set[int] = set()
    for record in records:
        if record.task != "segmentation":
            raise DataError(f"Batch {record.index} holds whole images; use metric='error'.")
        classes.add(record.classes)
        for domain, one in zip(record.domains(), record.confusion, strict=True):
            counts.setdefault((record.round, domain), []).append(one)
    if len(classes) > 1:
        raise DataError(f"These records mix {sorted(classes)} classes; they are of several runs.")
    result = {}
    for key, many in counts.items():
        side = next(iter(classes))
        value = float(mean_iou(np.sum(many, axis=0).reshape(side, side)))
        if np.isfinite(value):  # a cell without one labelled pixel says nothing
            result[key] = Score(100.0 * value, len(many))
    return result


def higher_is_better(metric: str) -> bool:
    """The metric's direction; an unknown one is an error that names the nearest."""
    if metric not in _HIGHER_IS_BETTER:
        hint = did_you_mean(metric, _HIGHER_IS_BETTER)
        raise DataError(f"There is no metric {metric!r}. {hint}")
    return _HIGHER_IS_BETTER[metric]


def _mean(scores: Iterable[Score]) -> Means:
    """The mean of some scores.

    >>> _mean([Score(10.0, 3), Score(30.0, 1)])
    Means(by_images=15.0, by_domains=20.0)
    """
    values = list(scores)
    total = sum(s.images for s in values)
    if not values or total <= 0:
        raise DataError(
            "There are no scores to average; the run has no finished batch, or no labelled pixel."
        )
    weighted = sum(s.value * s.images for s in values) / total
    return Means(weighted, sum(s.value for s in values) / len(values))


def _rounds(table: Cells) -> list[int]:
    """The rounds that a table holds, in order."""
    return sorted({number for number, _ in table})


def _domains(table: Cells) -> list[str]:
    """The domains that a table holds, in the order in which they first came."""
    return list(dict.fromkeys(domain for _, domain in table))


def round_means(table: Cells) -> dict[int, Means]:
    """The mean of each round."""
    return {
        number: _mean(score for (at, _), score in table.items() if at == number)
        for number in _rounds(table)
    }


def total_mean(table: Cells) -> Means:
    """The mean over every domain of every round."""
    return _mean(table.values())


def repeat_forget(table: Cells, metric: Metric = "error") -> Means | None:
    """RF: the last round's mean minus the first's, negated where higher is better.

    Above zero, returning domains went worse than before. Only domains that stand in both
    rounds count, so that a stream that ends in the middle of a round compares like with like.
    None where nothing came back.

    >>> repeat_forget({(0, "fog"): Score(40.0, 10), (1, "fog"): Score(35.0, 10)})
    Means(by_images=-5.0, by_domains=-5.0)
    """
    sign = -1.0 if higher_is_better(metric) else 1.0
    numbers = _rounds(table)
    if len(numbers) < 2:
        return None
    first, last = numbers[0], numbers[-1]
    both = [d for d in _domains(table) if (first, d) in table and (last, d) in table]
    if not both:
        return None
    before = _mean(table[first, domain] for domain in both)
    after = _mean(table[last, domain] for domain in both)
    return Means(*(sign * (b - a) for a, b in zip(before, after, strict=True)))


def gain(value: float, source: float, metric: Metric = "error") -> float:
    """How much better than the source model; above zero is better for every metric.

    >>> gain(40.0, 55.0), gain(62.0, 56.0, "miou")
    (15.0, 6.0)
    """
    return value - source if higher_is_better(metric) else source - value
