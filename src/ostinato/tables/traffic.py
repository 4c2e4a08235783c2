"""Tables beyond the paper's: any traffic, twenty rounds, what each part of the default earns."""

from __future__ import annotations

from statistics import median
from typing import Any

from ostinato.data.stand_ins import STAND_IN_NOTE
from ostinato.methods.ostinato.settings import OstinatoConfig
from ostinato.registry import TABLES
from ostinato.tables._table import Measure, Part, Table, Variant
from ostinato.tables.tables import EMBEDDED, METHODS_FULL, VIT

_LIMIT = 100
"""Images a corruption at small scale."""


def _part(name: str, stream: str, batch_size: int = 50, **data: Any) -> Part:
    """The same corruptions as another kind of traffic."""
    full = {**VIT, "stream": stream, "batch_size": batch_size}
    small = {**EMBEDDED, "stream": stream, "batch_size": batch_size}
    images = {"dataset": "imagenet-c", **data}
    return Part(name, {**full, "data": images}, {**small, "data": {**images, "limit": _LIMIT}})


_RECURRING = _part("Recurring", "recurring", rounds=3)
_PARTS = (
    _RECURRING,
    _part("Mixed", "mixed"),
    _part("Alternating", "alternating"),
    _part("Correlated", "correlated"),
    _part("CDC", "cdc"),
    _part("Batch 200", "continual", 200),
    _part("Batch 50", "continual"),
    _part("Batch 10", "continual", 10),
    _part("Batch 1", "continual", 1),
    _part("Gradual", "gradual"),
)
_NOTE = (
    "Recurring: three rounds. Mixed: every batch holds all domains. Alternating: another domain "
    "with every batch. Correlated: sorted by class. CDC: domains change at random. Batch 200, 50, "
    "10 and 1: each domain once. Gradual: every corruption rises from severity 1 to 5 and falls "
    "back. Batches of 50 unless said."
)
_TRAFFIC = Table(
    "traffic",
    "Any traffic: mean error in percent",
    _PARTS,
    tuple(Measure(part.name, "mean", part=part.name) for part in _PARTS),
    "imagenet-c",
    notes=(_NOTE,),
    small_notes=(STAND_IN_NOTE,),
    methods=(*METHODS_FULL[:3], "eata", "rdumb", "pea", *METHODS_FULL[-3:]),
)


_ROUNDS = 20
_SHOWN = (1, 2, 3, 5, 10, 15, 20)
"""The rounds that stand in the table; the report draws all of them."""
_OFTEN = _part("Recurring", "recurring", rounds=_ROUNDS)
_RECURRING_20 = Table(
    "recurring-20",
    "Fifteen corruptions that return for 20 rounds: error in percent",
    (_OFTEN,),
    (
        *(Measure(f"R{number}", "round mean", round=number - 1) for number in _SHOWN),
        Measure("Mean", "mean"),
        Measure("RF", "rf"),
        Measure("K", "count"),
        Measure("img/s", "speed"),
    ),
    "imagenet-c",
    notes=(
        "R1 to R20: mean of a round; `ostinato report` draws all of them. RF: the last round less "
        "the first, below 0 where a method remembers. K: domains found.",
        "The same images in every round, so that a method also meets its own images again.",
    ),
    small_notes=(STAND_IN_NOTE,),
    methods=(
        *(
            "source",
            "eata",
            "rdumb",
            "roid",
            "cola",
            "reservoir",
            "imse:recurring",
            "dpcore",
            "kff",
        ),
        *("ostinato:forward-only", "ostinato:robust"),
    ),
)


def _without(label: str, preset: str = "robust", **settings: Any) -> Variant:
    return Variant(label, "ostinato", preset, settings)


_ABLATED = (_RECURRING, _PARTS[1])
_MIDDLE = median(OstinatoConfig().shares)
"""The share that every domain starts with."""
_OBJECTIVE = Table(
    "ablation-objective",
    "What each part of `robust` earns: mean error in percent",
    _ABLATED,
    (
        *(Measure(part.name, "mean", part=part.name) for part in _ABLATED),
        *(Measure("ECE", "ece", part.name, part.name) for part in _ABLATED),
        Measure("K", "count", _RECURRING.name, _RECURRING.name),
    ),
    variants=(
        Variant("Source", "source"),
        _without("robust"),
        _without("without learning", "forward-only"),
        _without("without entropy", entropy=0.0),
        _without("without alignment", alignment=0.0),
        _without("without the shared branch", shared_rank=0),
        _without("without domains' branches", domain_rank=0),
        _without("without a falling rate", settle=1e9),
        _without("without a bound on entropy", kappa=1.0),
        _without("without forgetting", keep=0.0),
        _without("one expert for all", max_domains=1),
        _without("one share for all domains", shares=(_MIDDLE,)),
        _without("without trust", trust=False),
        _without("told the true domains", true_domains=True),
        _without("answers from earlier images alone", count_in=False),
        _without("without a temperature", temper=False),
    ),
    notes=(
        "One part is changed in every row; the others are as in `robust`. ECE: expected "
        "calibration error in percent. K: domains found.",
    ),
    small_notes=(STAND_IN_NOTE,),
)

for _table in (_TRAFFIC, _RECURRING_20, _OBJECTIVE):
    TABLES.register(_table.name)(_table)
