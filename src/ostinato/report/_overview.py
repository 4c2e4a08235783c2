"""The words of a report: which runs these are, what they came to, and what to beware of."""

from __future__ import annotations

import statistics as stats
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.errors import OstinatoError
from ostinato.report._over_time import WORDS
from ostinato.report._runs import Run, Variant
from ostinato.report.figure import Data, Value
from ostinato.scoring.forgetting import higher_is_better

_NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """Headings and cells; the first cell of a row carries the look of its run.

    Attributes:
        headings: of the columns.
        rows: (what has a colour and a turn, cells).
        best: per column, the row that is best, or None.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Variant, tuple[str, ...]], ...]
    best: tuple[int | None, ...] = ()

    def data(self) -> Data:
        """The same as plain values."""
        rows: list[tuple[Value, ...]] = [cells for _, cells in self.rows]
        return Data(self.headings, tuple(rows))


def _by_score(variants: Sequence[Variant]) -> list[Variant]:
    """The best first, by the metric of its own task."""
    return sorted(
        variants,
        key=lambda v: -v.score if higher_is_better(v.first.summary.metric) else v.score,
    )


def describe_runs(variants: Sequence[Variant]) -> Table:
    """What was run, on what, with which help; best first."""
    variants = _by_score(variants)
    headings = ("run", "model", "weights", "input", "stream", "images", "batch", "seeds",
                "source help", "predicts", "device", "commit")  # fmt: skip
    rows = []
    for variant in variants:
        run, spec = variant.first, variant.first.spec
        unfinished = "" if all(r.complete for r in variant.runs) else " (not finished)"
        needs, predicts = _declared(run)
        rows.append(
            (
                variant,
                (
                    variant.label + unfinished,
                    str(spec.get("model", _NOTHING)),
                    _weights(run),
                    _convention(spec),
                    str(spec.get("stream", _NOTHING)),
                    f"{run.summary.images:,}".replace(",", "\u202f"),
                    str(spec.get("batch_size", max(r.images for r in run.records))),
                    ", ".join(str(r.seed) for r in variant.runs if r.seed is not None) or _NOTHING,
                    needs,
                    predicts,
                    run.provenance.device,
                    (run.provenance.commit or _NOTHING)[:10],
                ),
            )
        )
    return Table(headings, tuple(rows))


def _declared(run: Run) -> tuple[str, str]:
    """What help the method had, and which of its forwards was scored."""
    from ostinato.methods.contract import resolve_config
    from ostinato.registry import METHODS

    name = run.spec.get("method")
    if name not in METHODS.names():
        return _NOTHING, _NOTHING
    kind = METHODS[str(name)]
    try:
        config = resolve_config(kind, run.spec.get("preset"), run.spec.get("settings") or {})
    except OstinatoError:  # settings of another version
        return ", ".join(sorted(kind.info.needs)) or "none", str(kind.info.predicts)
    predicts = getattr(config, "predict", kind.info.predicts)
    return ", ".join(sorted(kind.needs(config))) or "none", str(predicts)


def _weights(run: Run) -> str:
    named = str(run.spec.get("weights") or "own")
    digest = run.provenance.weights
    return f"{named.rpartition('/')[2]} ({digest[:8]})" if digest else named


def _convention(spec: Mapping[str, Any]) -> str:
    words = {"model": "model's mean and std", "none": "raw [0, 1]", "input": "given normalised"}
    return words.get(str(spec.get("normalize")), _NOTHING)


def summarise_variants(variants: Sequence[Variant]) -> Table:
    """The main figures, mean ± spread over seeds; best first."""
    variants = _by_score(variants)
    metric = variants[0].first.summary.metric
    down = not higher_is_better(metric)
    numbers = sorted({r.round for v in variants for run in v.runs for r in run.summary.rounds})
    rounds = numbers if 1 < len(numbers) <= 12 else []
    columns: list[tuple[str, list[list[float | None]], int, bool | None]] = [
        (f"{WORDS[metric]} %", _collect(variants, lambda s: s.mean), 1, down),
        *((f"R{n + 1}", _collect(variants, lambda s, n=n: _round(s, n)), 1, down) for n in rounds),
        ("RF", _collect(variants, lambda s: s.rf), 1, True),
        ("domains", _collect(variants, lambda s: s.domains_found), 0, None),
        ("AMI %", _collect(variants, lambda s: s.routing and 100 * s.routing.ami), 0, False),
        ("ECE %", _collect(variants, lambda s: s.calibration_error), 1, True),
        ("images/s", _collect(variants, lambda s: s.cost.images_per_second), 0, False),
        ("trained", _collect(variants, lambda s: s.cost.trained), -1, None),
        ("memory MiB", _collect(variants, lambda s: _mebi(s.cost.peak_memory)), 0, True),
    ]
    kept = [c for c in columns if any(v is not None for values in c[1] for v in values)]
    rows = tuple(
        (v, (v.label, *(_cell(c[1][place], c[2]) for c in kept)))
        for place, v in enumerate(variants)
    )
    best = (None, *(_best([_mean(v) for v in c[1]], c[3]) for c in kept))
    return Table(("run", *(c[0] for c in kept)), rows, best)


def _collect(variants: Sequence[Variant], pick: Any) -> list[list[float | None]]:
    return [[pick(run.summary) for run in variant.runs] for variant in variants]


def _round(summary: Any, number: int) -> float | None:
    return next((float(r.by_images) for r in summary.rounds if r.round == number), None)


def _mebi(count: int | None) -> float | None:
    return None if count is None else count / 2**20


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _cell(values: Sequence[float | None], digits: int) -> str:
    """A mean, with its spread over seeds where there are several.

    >>> _cell([40.0, 42.0], 1), _cell([None], 1), _cell([12345.0], -1)
    ('41.0 ± 1.4', '–', '12\\u202f345')
    """
    known = [v for v in values if v is not None]
    if not known:
        return _NOTHING
    middle = sum(known) / len(known)
    if digits < 0:
        return f"{middle:,.0f}".replace(",", "\u202f")
    text = f"{middle:.{digits}f}"
    return f"{text} ± {stats.stdev(known):.{max(digits, 1)}f}" if len(known) > 1 else text


def _best(values: Sequence[float | None], lower: bool | None) -> int | None:
    known = [(v, place) for place, v in enumerate(values) if v is not None]
    if lower is None or len(known) < 2:
        return None
    return (min if lower else max)(known, key=lambda pair: pair[0])[1]


def warnings(variants: Sequence[Variant]) -> list[str]:
    """What makes these runs hard to compare, in sentences."""
    runs = [run for variant in variants for run in variant.runs]
    found = []
    for key, what in (("model", "model"), ("normalize", "input convention"), ("stream", "stream"),
                      ("batch_size", "batch size"), ("precision", "precision")):  # fmt: skip
        values = sorted({str(run.spec[key]) for run in runs if key in run.spec})
        if len(values) > 1:
            found.append(f"These runs differ in their {what} ({', '.join(values)}).")
    if len({run.summary.metric for run in runs}) > 1:
        found.append("These runs are of different tasks; read each figure for one of them.")
    data = {(run.provenance.data, run.seed) for run in runs if run.provenance.data}
    if len(data) > len({seed for _, seed in data}):
        found.append("These runs did not see the same images in the same order.")
    devices = sorted({run.provenance.device for run in runs})
    if len(devices) > 1:
        found.append(f"Speeds are of different devices ({', '.join(devices)}).")
    for run in runs:
        if not run.complete:
            found.append(f"{run.path.name} is not finished: {len(run.records)} batches so far.")
    return found
