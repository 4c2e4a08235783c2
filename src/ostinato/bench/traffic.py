"""Tables beyond the paper's: any kind of traffic, and what each part of the default earns."""

from __future__ import annotations

from typing import Any

from ostinato.bench.small import STAND_IN_NOTE
from ostinato.bench.table import Measure, Part, Table, Variant
from ostinato.bench.tables import EMBEDDED, METHODS_FULL, VIT
from ostinato.registry import TABLES

LIMIT = 100
"""Images a corruption at small scale."""


def _part(name: str, stream: str, batch_size: int = 50, **data: Any) -> Part:
    """The same corruptions as another kind of traffic."""
    full = {**VIT, "stream": stream, "batch_size": batch_size}
    small = {**EMBEDDED, "stream": stream, "batch_size": batch_size}
    images = {"dataset": "imagenet-c", **data}
    return Part(name, {**full, "data": images}, {**small, "data": {**images, "limit": LIMIT}})


RECURRING = _part("Recurring", "recurring", rounds=3)
PARTS = (
    RECURRING,
    _part("Mixed", "mixed"),
    _part("Alternating", "alternating"),
    _part("Correlated", "correlated"),
    _part("CDC", "cdc"),
    _part("Batch 200", "continual", 200),
    _part("Batch 10", "continual", 10),
    _part("Batch 1", "continual", 1),
)
NOTE = (
    "Recurring: three rounds. Mixed: every batch holds all domains. Alternating: another domain "
    "with every batch. Correlated: sorted by class. CDC: domains change at random. Batch 200, 10 "
    "and 1: each domain once. Batches of 50 unless said."
)
_TRAFFIC = Table(
    "traffic",
    "Any traffic: mean error in percent",
    PARTS,
    tuple(Measure(part.name, "mean", part=part.name) for part in PARTS),
    "imagenet-c",
    notes=(NOTE,),
    small_notes=(STAND_IN_NOTE,),
    methods=(*METHODS_FULL[:3], "eata", "rdumb", "pea", *METHODS_FULL[-3:]),
)


def _without(label: str, preset: str = "robust", **settings: Any) -> Variant:
    return Variant(label, "ostinato", preset, settings)


_OBJECTIVE = Table(
    "ablation-objective",
    "What each part of `robust` earns: mean error in percent",
    (RECURRING, PARTS[1]),
    tuple(Measure(part.name, "mean", part=part.name) for part in (RECURRING, PARTS[1])),
    variants=(
        Variant("Source", "source"),
        _without("robust"),
        _without("without learning", "forward-only"),
        _without("without entropy", entropy=0.0),
        _without("without a falling rate", settle=1e9),
        _without("without weight decay", weight_decay=0.0),
        _without("one share for all domains", shares=(0.2,)),
        _without("answers from earlier images alone", count_in=False),
    ),
    notes=("One part is changed in every row; the others are as in `robust`.",),
    small_notes=(STAND_IN_NOTE,),
)

for _table in (_TRAFFIC, _OBJECTIVE):
    TABLES.register(_table.name)(_table)
