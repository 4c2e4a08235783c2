"""Calibration: does a confidence of 0.8 mean that 80 % of such answers are right?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ostinato.errors import DataError
from ostinato.scoring.record import Record

_BINS = 15


class Bin(NamedTuple):
    """One bar of a reliability diagram; its sums add up across batches.

    >>> half = Bin(answers=4, confidence_sum=3.6, correct=2)
    >>> half.confidence, half.accuracy
    (0.9, 0.5)
    """

    answers: int
    confidence_sum: float
    correct: int

    @property
    def confidence(self) -> float:
        """Mean confidence, 0 where the bin is empty."""
        return self.confidence_sum / self.answers if self.answers else 0.0

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0 where the bin is empty."""
        return self.correct / self.answers if self.answers else 0.0


def bin_answers(confidence: ArrayLike, correct: ArrayLike, bins: int = _BINS) -> tuple[Bin, ...]:
    """Sort answers into equal bins [a, b) of confidence; 1.0 belongs to the last.

    >>> [tuple(b) for b in bin_answers([0.1, 0.9, 1.0], [0, 1, 0], bins=2)]
    [(1, 0.1, 0), (2, 1.9, 1)]
    """
    values = np.asarray(confidence, dtype=np.float64).ravel()
    right = np.asarray(correct, dtype=np.float64).ravel()
    place = np.minimum((values * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    total = np.bincount(place, weights=values, minlength=bins)
    hits = np.bincount(place, weights=right, minlength=bins)
    return tuple(Bin(int(n), float(c), int(h)) for n, c, h in zip(count, total, hits, strict=True))


def add_bins(many: Iterable[Sequence[tuple[int, float, int]]]) -> tuple[Bin, ...]:
    """Add the bins of several batches.

    >>> [tuple(b) for b in add_bins([[(1, 0.5, 1)], [(1, 0.25, 0)]])]
    [(2, 0.75, 1)]
    """
    stacked = [np.asarray(bins, dtype=np.float64) for bins in many]
    if not stacked:
        return ()
    if len({part.shape for part in stacked}) > 1:
        raise DataError("These records were binned differently; compare runs of one version.")
    total: NDArray[np.float64] = np.sum(stacked, axis=0)
    return tuple(Bin(int(n), float(c), int(h)) for n, c, h in total)


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Expected calibration error (ECE): the mean |accuracy − confidence|, weighted by answers.

    >>> round(calibration_error(bin_answers([0.8, 0.8], [1, 0])), 6)
    0.3
    """
    total = sum(b.answers for b in bins)
    if total == 0:
        return None
    return sum(abs(b.correct - b.confidence_sum) for b in bins) / total


def reliability(records: Iterable[Record], bins: int = _BINS) -> tuple[Bin, ...]:
    """The bins of a run's reliability diagram, from its records alone."""
    confidence: list[float] = []
    hits: list[int] = []
    binned = []
    for record in records:
        if record.bins:
            binned.append(record.bins)
        else:
            confidence.extend(record.confidence)
            hits.extend(map(int, record.hits))
    if confidence:
        binned.append(bin_answers(confidence, hits, bins))
    return add_bins(binned)
