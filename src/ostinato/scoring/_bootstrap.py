"""Drawing images with replacement, fast: draws are rows of weights, scores are products.

A cell is what one domain asked in one round. Its score under a draw is a share of wrong answers
or a mean IoU of summed confusions; parts of a run are means over cells, weighted by answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ostinato.scoring.forgetting import Metric
from ostinato.scoring.metrics import mean_iou

Answer: TypeAlias = tuple[str, str, int, int]
"""What pairs two runs: image key, true domain, round, and how often that had come before."""

Array: TypeAlias = NDArray[np.float64]

# Draws × images held at once: about 64 MB of weights, whatever the size of the run.
CHUNK = 8_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """The answers of one domain in one round; `images` numbers their images over the run."""

    domain: str
    round: int
    answers: list[Answer]
    images: NDArray[np.int64]


def group(answers: Sequence[Answer]) -> list[Cell]:
    """Sort answers into cells, and number the images behind them."""
    number = {key: place for place, key in enumerate(dict.fromkeys(a[0] for a in answers))}
    groups: dict[tuple[str, int], list[Answer]] = {}
    for answer in answers:
        groups.setdefault((answer[1], answer[2]), []).append(answer)
    return [
        Cell(domain, at, many, np.array([number[a[0]] for a in many], dtype=np.int64))
        for (domain, at), many in groups.items()
    ]


def spread(cells: Sequence[Cell], columns: Sequence[Array], images: int) -> Array:
    """Numbers of every answer, summed into (images × cells): a draw is then one product."""
    result = np.zeros((images, len(cells)))
    for place, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        np.add.at(result[:, place], cell.images, column)
    return result


def stack(
    cells: Sequence[Cell], answers: Mapping[Answer, tuple[float, ...]], images: int, metric: Metric
) -> list[Array]:
    """Numbers to draw from: one (images × cells) array, or each cell's confusions."""
    columns = [np.array([answers[a] for a in cell.answers], dtype=np.float64) for cell in cells]
    if metric == "miou":
        return columns
    return [spread(cells, [column[:, 0] for column in columns], images)]


def draws(images: int, resamples: int, seed: int) -> Iterator[Array]:
    """How often each draw took each image, (some draws × images) at a time."""
    generator = np.random.default_rng(seed)
    step = max(1, CHUNK // images)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        taken = generator.integers(0, images, (size, images))
        taken += np.arange(size)[:, None] * images
        counts = np.bincount(taken.ravel(), minlength=size * images)
        yield counts.reshape(size, images).astype(np.float64)


def score(
    cells: Sequence[Cell], stats: list[Array], weights: Array, counts: Array, metric: Metric
) -> Array:
    """Score per cell in percent, (draws × cells); NaN where no pixel has a label."""
    if metric != "miou":
        return 100.0 * (weights @ stats[0]) / np.maximum(counts, 1.0)
    columns = []
    for cell, confusion in zip(cells, stats, strict=True):
        side = round(confusion.shape[1] ** 0.5)
        total = (weights[:, cell.images] @ confusion).reshape(-1, side, side)
        columns.append(100.0 * mean_iou(total))
    return np.stack(columns, 1)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores and answers per cell, (draws × cells) each."""

    values: Array
    counts: Array

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """Put several chunks of draws into one."""
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.concatenate([part.counts for part in parts]))

    def pool(self, part: NDArray[np.int64]) -> Array:
        """The mean over some cells, weighted by their answers; NaN where a draw has none."""
        values = self.values[:, part]
        weights = np.where(np.isnan(values), 0.0, self.counts[:, part])
        total = weights.sum(1)
        result: Array = np.full(total.shape, np.nan)
        np.divide((np.nan_to_num(values) * weights).sum(1), total, out=result, where=total > 0)
        return result
