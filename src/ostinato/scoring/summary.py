"""Everything that a finished run says in one typed value, made from its records alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ostinato.config import Config
from ostinato.errors import DataError
from ostinato.scoring._routing import Routing, routing
from ostinato.scoring.forgetting import (
    Metric,
    cells,
    repeat_forget,
    round_means,
    total_mean,
)
from ostinato.scoring.metrics import Cost, calibration_error, class_iou, cost, reliability
from ostinato.scoring.record import Record


class CellScore(Config):
    """The score of one domain in one round.

    >>> CellScore(round=0, domain="fog", value=12.5, images=400).value
    12.5
    """

    round: int
    domain: str
    value: float
    images: int


class RoundScore(Config):
    """The mean of one round, by images and by domains.

    >>> RoundScore(round=1, by_images=40.0, by_domains=41.0).by_images
    40.0
    """

    round: int
    by_images: float
    by_domains: float


class ClassScore(Config):
    """IoU of one class over all pixels of a run in percent; None where nothing was of it.

    >>> ClassScore(name="road", value=None).value is None
    True
    """

    name: str
    value: float | None


class Summary(Config):
    """A run in short; percent throughout, means by images first.

    >>> row = dict(run="a", images=2, counted=2, confidence=(0.5, 0.5), domain="fog")
    >>> short = summarise(
    ...     [
    ...         Record(index=0, correct=1, hits="01", **row),
    ...         Record(index=1, round=1, correct=2, hits="11", **row),
    ...     ]
    ... )
    >>> short.mean, short.rf, short.calibration_error
    (25.0, -50.0, 25.0)
    """

    metric: Metric
    batches: int
    images: int
    mean: float
    mean_by_domains: float
    rf: float | None
    rf_by_domains: float | None
    rounds: tuple[RoundScore, ...]
    cells: tuple[CellScore, ...]
    calibration_error: float | None
    domains_found: int | None
    routing: Routing | None
    cost: Cost
    used: int
    updates: int
    events: int
    classes: tuple[ClassScore, ...] = ()


def natural_metric(records: Sequence[Record]) -> Metric:
    """The metric of the records' task: error for images, mIoU for pixels."""
    return "miou" if any(r.task == "segmentation" for r in records) else "error"


def summarise(
    records: Sequence[Record], metric: Metric | None = None, names: Sequence[str] = ()
) -> Summary:
    """Sum a run up; `names` are those of the classes, for segmentation."""
    if not records:
        raise DataError("There is no record to sum up; the run has no finished batch.")
    metric = metric or natural_metric(records)
    table = cells(records, metric)
    total, forget = total_mean(table), repeat_forget(table, metric)
    error = calibration_error(reliability(records))
    decided = any(r.decision for r in records)
    return Summary(
        metric=metric,
        batches=len(records),
        images=sum(r.images for r in records),
        mean=total.by_images,
        mean_by_domains=total.by_domains,
        rf=forget and forget.by_images,
        rf_by_domains=forget and forget.by_domains,
        rounds=tuple(
            RoundScore(round=number, by_images=m.by_images, by_domains=m.by_domains)
            for number, m in round_means(table).items()
        ),
        cells=tuple(
            CellScore(round=number, domain=domain, value=score.value, images=int(score.images))
            for (number, domain), score in table.items()
        ),
        calibration_error=None if error is None else 100.0 * error,
        domains_found=domains_over_time(records)[-1] if decided else None,
        routing=routing(records),
        cost=cost(records),
        used=sum(r.used for r in records),
        updates=sum(r.updated for r in records),
        events=sum(len(r.events) for r in records),
        classes=_classes(records, names) if metric == "miou" else (),
    )


def _classes(records: Sequence[Record], names: Sequence[str]) -> tuple[ClassScore, ...]:
    count = records[0].classes
    if len(names) != count:
        names = [f"class {number}" for number in range(count)]
    total = np.sum([one for r in records for one in r.confusion], axis=0).reshape(count, count)
    return tuple(
        ClassScore(name=name, value=100.0 * float(value) if np.isfinite(value) else None)
        for name, value in zip(names, class_iou(total), strict=True)
    )


def domains_over_time(records: Sequence[Record]) -> list[int]:
    """K after every batch: distinct domains chosen so far, once the evidence had settled.

    >>> row = dict(run="a", domain="fog", images=1, correct=1, counted=1)
    >>> choice = lambda i: {"domain": i, "is_new": False, "distance": 0, "threshold": 1}
    >>> domains_over_time(
    ...     [Record(index=n, decision=choice(i), **row) for n, i in enumerate([4, 4, 6])]
    ... )
    [1, 1, 2]
    """
    seen: set[int] = set()
    count = []
    for record in records:
        if record.decision is not None and record.decision.settled:
            seen.update(record.decision.per_sample or (record.decision.domain,))
        count.append(len(seen))
    return count
