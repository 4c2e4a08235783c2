"""How well discovered domains match the true ones. Pure functions over two lists of labels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.config import Config
from ostinato.errors import DataError
from ostinato.scoring.record import Record

Labels = Sequence[Hashable]


def contingency(true: Labels, found: Labels) -> NDArray[np.int64]:
    """How often each true domain (row) met each discovered one (column).

    >>> contingency(["fog", "fog", "snow"], [0, 1, 1]).tolist()
    [[1, 1], [0, 1]]
    """
    if len(true) != len(found):
        raise DataError(f"{len(true)} true labels cannot be matched with {len(found)} found ones.")
    rows = {label: place for place, label in enumerate(dict.fromkeys(true))}
    columns = {label: place for place, label in enumerate(dict.fromkeys(found))}
    table = np.zeros((len(rows), len(columns)), dtype=np.int64)
    np.add.at(table, ([rows[label] for label in true], [columns[label] for label in found]), 1)
    return table


def purity(true: Labels, found: Labels) -> float:
    """The share of a true domain that lies in its main discovered domain, averaged over domains.

    High where a domain that returns finds its expert again. One domain for everything scores 1:
    read it together with `exclusiveness` and `adjusted_mutual_information`.

    >>> purity(["fog", "fog", "snow", "snow"], [0, 1, 2, 2])
    0.75
    """
    table = contingency(true, found)
    return float((table.max(1) / table.sum(1)).mean()) if table.size else 1.0


def exclusiveness(true: Labels, found: Labels) -> float:
    """The share of a discovered domain that its main true domain fills, averaged over domains.

    >>> exclusiveness(["fog", "fog", "snow", "snow"], [0, 0, 0, 0])
    0.5
    """
    return purity(found, true)


def _entropy(counts: NDArray[np.int64]) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _information(table: NDArray[np.int64]) -> float:
    joint = _entropy(table.ravel())
    return max(_entropy(table.sum(1)) + _entropy(table.sum(0)) - joint, 0.0)


def normalized_mutual_information(true: Labels, found: Labels) -> float:
    """Mutual information over the mean of both entropies; 1 for equal partitions.

    >>> normalized_mutual_information(["a", "a", "b"], [7, 7, 9])
    1.0
    """
    table = contingency(true, found)
    if min(table.shape) <= 1:
        return float(table.shape in {(0, 0), (1, 1)})
    return 2 * _information(table) / (_entropy(table.sum(1)) + _entropy(table.sum(0)))


def expected_information(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> float:
    """Mutual information that chance alone gives partitions of these sizes.

    For each pair of sizes (a, b) the overlap n is hypergeometric; this sums
    P(n) · n/N · ln(N n / (a b)) over the overlaps that can occur.
    """
    total = int(rows.sum())
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    expected = 0.0
    for a in rows.tolist():
        for b in columns.tolist():
            n = np.arange(max(1, a + b - total), min(a, b) + 1)
            log_probability = (
                log_factorial[a]
                + log_factorial[b]
                + log_factorial[total - a]
                + log_factorial[total - b]
                - log_factorial[total]
                - log_factorial[n]
                - log_factorial[a - n]
                - log_factorial[b - n]
                - log_factorial[total - a - b + n]
            )
            information = n / total * np.log(total * n / (a * b))
            expected += float((information * np.exp(log_probability)).sum())
    return expected


def adjusted_mutual_information(true: Labels, found: Labels) -> float:
    """Mutual information, corrected for chance: 0 for random labels, 1 for equal partitions.

    >>> round(adjusted_mutual_information(["a", "a", "b", "b"], [0, 0, 1, 1]), 6)
    1.0
    """
    table = contingency(true, found)
    if min(table.shape) <= 1:
        return float(table.shape in {(0, 0), (1, 1)})
    rows, columns = table.sum(1), table.sum(0)
    chance = expected_information(rows, columns)
    bound = (_entropy(rows) + _entropy(columns)) / 2
    above = _information(table) - chance
    room = bound - chance
    # Both differences are rounding noise where every image is a domain of its own: a match.
    return 1.0 if abs(room) < 1e-12 else above / room


class Change(NamedTuple):
    """A place where the true domain changed.

    Attributes:
        at: the first batch of the new segment.
        domain: its true domain.
        delay: batches until the segment's main discovered domain was chosen.
        noticed: whether that differs from the domain chosen just before the change.

    >>> Change(at=10, domain="fog", delay=1, noticed=True).delay
    1
    """

    at: int
    domain: Hashable
    delay: int
    noticed: bool


def changes(true: Labels, found: Labels) -> list[Change]:
    """Every change of the true domain, and how long the discriminator took to follow.

    >>> changes(["a", "a", "b", "b", "b"], [0, 0, 0, 1, 1])
    [Change(at=2, domain='b', delay=1, noticed=True)]
    """
    if len(true) != len(found):
        raise DataError(f"{len(true)} true labels cannot be matched with {len(found)} found ones.")
    starts = [0, *(i for i in range(1, len(true)) if true[i] != true[i - 1]), len(true)]
    result = []
    for start, end in pairwise(starts[1:]):
        segment = list(found[start:end])
        main = max(dict.fromkeys(segment), key=segment.count)  # a tie goes to the earlier one
        result.append(
            Change(start, true[start], segment.index(main), bool(main != found[start - 1]))
        )
    return result


class Routing(Config):
    """The discriminator's work, measured against the true domains.

    Attributes:
        unit: what was routed, "batch" or "image".
        found: discovered domains.
        true: true domains.
        delay: mean batches to follow a noticed change; None for mixed batches and without one.
        noticed: share of the true changes that moved the choice at all.
    """

    unit: str
    found: int
    true: int
    purity: float
    exclusiveness: float
    ami: float
    nmi: float
    delay: float | None
    noticed: float | None


def _pairs(records: Sequence[Record]) -> tuple[str, list[str], list[int]]:
    """The unit that was routed, with its true and its discovered domains, in order."""
    decided = [r for r in records if r.decision is not None]
    mixed = any(r.image_domains or (r.decision and r.decision.per_sample) for r in decided)
    true: list[str] = []
    found: list[int] = []
    for record in decided:
        assert record.decision is not None
        if mixed:
            true.extend(record.domains())
            found.extend(record.decision.per_sample or (record.decision.domain,) * record.images)
        else:
            true.append(record.domain)
            found.append(record.decision.domain)
    return ("image" if mixed else "batch"), true, found


def routing(records: Sequence[Record]) -> Routing | None:
    """Measure a run's decisions; None for a method that keeps no domains."""
    unit, true, found = _pairs(records)
    if not true:
        return None
    moves = changes(true, found) if unit == "batch" else []
    delays = [move.delay for move in moves if move.noticed]
    return Routing(
        unit=unit,
        found=len(set(found)),
        true=len(set(true)),
        purity=purity(true, found),
        exclusiveness=exclusiveness(true, found),
        ami=adjusted_mutual_information(true, found),
        nmi=normalized_mutual_information(true, found),
        delay=float(np.mean(delays)) if delays else None,
        noticed=float(np.mean([m.noticed for m in moves])) if moves else None,
    )
