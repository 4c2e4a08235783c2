"""How long a trial takes, from a few timed batches of every method."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ostinato.api import adapt, unwrap
from ostinato.errors import OstinatoError
from ostinato.methods.base import Method
from ostinato.trial._plan import BATCH, Row, Traffic, tried
from ostinato.trial.setting import Preparations, Request

_Pace = dict[tuple[str, int], float]
"""Seconds an image, by method's title and batch size."""
_PROBES = 3
DEFAULT, LEAST = 100, 25
"""Images a domain where time allows, and where it does not."""


def measure_pace(
    request: Request, preparations: Preparations, rows: Sequence[Row], shown: Tensor
) -> _Pace:
    """Time a few batches of every method, whole ones and single images.

    A method that refuses the model has no pace; the trial says why when it comes to it.
    """
    pace: _Pace = {}
    model = request.load()
    for row in rows:
        try:
            help_given: dict[str, Any] = {**preparations.help_for(row)}
            for size in (BATCH, 1):
                adapted = adapt(
                    model, row.method, preset=row.preset, normalize=request.normalize, **help_given
                )
                try:
                    pace[row.title, size] = _time(adapted, shown, size)
                finally:
                    model = unwrap(adapted)
        except OstinatoError:
            continue
    return pace


def _time(adapted: Method, shown: Tensor, size: int) -> float:
    device = next(adapted.parameters()).device
    parts = [shown[n * size : (n + 1) * size].to(device) for n in range(_PROBES)]
    parts = [part for part in parts if len(part)]
    started = time.perf_counter()
    for part in parts:
        adapted(part)
    return (time.perf_counter() - started) / sum(map(len, parts))


def seconds(
    traffic: Sequence[Traffic], rows: Sequence[Row], pace: Mapping[tuple[str, int], float]
) -> float:
    """Seconds that all runs take together."""
    return sum(
        one.stream.images * pace.get((row.title, one.batch), 0.0)
        for one in traffic
        for row in rows
        if tried(row, one)
    )


def fitting_limit(available: int, minutes: float, whole: float, images: int) -> int:
    """Images a domain that fit into the time.

    Args:
        available: images there are.
        minutes: that a trial may take.
        whole: seconds it takes with `images` a domain.
        images: what `whole` was counted with.

    >>> (
    ...     fitting_limit(300, 10, 60, 100),
    ...     fitting_limit(300, 1, 240, 100),
    ...     fitting_limit(60, 9, 1, 60),
    ... )
    (100, 25, 60)
    """
    affordable = int(images * 60 * minutes / max(whole, 1e-9))
    return max(min(LEAST, available), min(available, DEFAULT, affordable))


def in_words(duration: float) -> str:
    """A duration for people.

    >>> in_words(40), in_words(200), in_words(9000)
    ('less than a minute', 'about 3 minutes', 'about 2.5 hours')
    """
    if duration < 50:
        return "less than a minute"
    minutes = duration / 60
    if minutes < 100:
        count = max(1, round(minutes))
        return f"about {count} minute{'s' * (count > 1)}"
    return f"about {minutes / 60:.1f} hours"
