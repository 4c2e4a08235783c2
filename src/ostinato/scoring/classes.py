"""Per-class IoU of a run, and the names of its classes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ostinato.data.streams import CLASSES
from ostinato.errors import DataError
from ostinato.scoring.metrics import class_iou
from ostinato.scoring.record import Record


def class_scores(records: Iterable[Record]) -> dict[tuple[int, int], float]:
    """IoU in percent by (round, class), over all domains of a round; absent classes are left out.

    >>> row = dict(run="a", domain="fog", images=1, correct=4, counted=5, classes=2)
    >>> class_scores([Record(index=0, confusion=((3, 1, 0, 1),), **row)])
    {(0, 0): 75.0, (0, 1): 50.0}
    """
    counts: dict[int, np.ndarray] = {}
    for record in records:
        if record.task != "segmentation":
            raise DataError(f"Batch {record.index} holds whole images, which have no IoU.")
        side = record.classes
        total = np.sum(record.confusion, axis=0).reshape(side, side)
        counts[record.round] = total + counts.get(record.round, np.zeros_like(total))
    return {
        (number, place): 100.0 * float(value)
        for number, one in sorted(counts.items())
        for place, value in enumerate(class_iou(one))
        if np.isfinite(value)
    }


def class_names(folder: Path, count: int) -> tuple[str, ...]:
    """The names that a run keeps of its classes; numbers where it keeps none."""
    path = folder / "data" / CLASSES
    if not path.is_file():
        return tuple(f"class {number}" for number in range(count))
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
        found = tuple(str(name) for name in names)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} holds no list of names ({error}); delete it.") from None
    if len(found) != count:
        raise DataError(f"{path} names {len(found)} classes, the run has {count}; delete it.")
    return found
