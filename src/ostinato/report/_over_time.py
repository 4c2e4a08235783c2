"""Error over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.methods.contract import is_own
from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Part, Value, listing, rounded
from ostinato.report.style import End, canvas, label_ends, tip, to_svg
from ostinato.report.timeline import Visit, by_stream, draw_visits, longest, visits
from ostinato.scoring.forgetting import Metric, higher_is_better
from ostinato.scoring.metrics import mean_iou
from ostinato.scoring.record import Record

WORDS: dict[Metric, str] = {"error": "error", "accuracy": "accuracy", "miou": "mIoU"}

_TOTAL = "total"
_MANY = 8


def heading(word: str) -> str:
    """A metric's name where a sentence begins.

    >>> heading("error"), heading("mIoU")
    ('Error', 'mIoU')
    """
    return word if word == "mIoU" else word.capitalize()


def _score(records: Sequence[Record], metric: Metric) -> float:
    """The score of a few batches together, in percent."""
    if metric == "miou":
        side = records[0].classes
        total = np.sum([one for r in records for one in r.confusion], axis=0)
        return 100.0 * float(mean_iou(total.reshape(side, side)))
    right, counted = sum(r.correct for r in records), sum(r.counted for r in records)
    share = 100.0 * right / max(counted, 1)
    return share if higher_is_better(metric) else 100.0 - share


def running(records: Sequence[Record], many: Sequence[Visit], metric: Metric) -> list[float]:
    """A mean around every batch that never looks across the border of a domain.

    It covers a quarter of the visit, three batches or more.
    """
    values = []
    for visit in many:
        end = min(visit.end, len(records))
        reach = max(1, math.ceil((visit.end - visit.start) / 8))
        for at in range(visit.start, end):
            part = records[max(visit.start, at - reach) : min(end, at + reach + 1)]
            values.append(_score(part, metric))
    return values


def error_over_time(variants: Sequence[Variant]) -> list[Part]:
    """One figure for each stream that the runs met."""
    groups = by_stream(variants)
    return [
        _over_time(group, "" if len(groups) == 1 else f"-{place + 1}")
        for place, group in enumerate(groups)
    ]


def _over_time(group: Sequence[Variant], ending: str) -> Figure:
    many = visits(longest(group))
    metric = group[0].first.summary.metric
    word = WORDS[metric]
    name = f"error-over-time{ending}"
    rows: list[tuple[Value, ...]] = []
    ends: list[End] = []
    frozen = next((v for v in group if v.first.spec.get("method") == "source"), None)
    alt = f"Lines of the running {word} over {many[-1].end} batches for {names_of(group)}."
    with canvas(940, 580) as figure:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, 1))
        draw_visits(axes, many)
        draw_visits(below, many, names=False)
        for variant in group:
            curves = [running(run.records, many, metric) for run in variant.runs]
            for run, curve in zip(variant.runs, curves, strict=True):
                rows += _rows(variant.label, run.seed, run.records, curve, metric)
            _draw(axes, variant, curves, many, quiet=_is_background(variant, group))
            ends.append(_draw_total(below, variant, frozen, metric))
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"{word} in %")
        below.set_ylabel("mean so far in %" if frozen is None else "gain so far")
        below.set_xlabel("batch")
        for one in (axes, below):
            one.grid(axis="y")
        below.set_ylim(*_limits(below))
        label_ends(below, ends)
        svg = to_svg(figure, name, alt)
    lower = "the mean" if frozen is None else "points gained over the source model"
    better = "higher" if higher_is_better(metric) else "lower"
    return Figure(
        name,
        f"{heading(word)} over time",
        f"Above: running {word} within each visit of a domain; {better} is better. Bands are "
        f"domains, vertical lines begin a round. Below: {lower} since the stream began; the number "
        "after a name is the mean over the whole stream."
        + (" Shaded: range over seeds." if any(len(v.runs) > 1 for v in group) else ""),
        alt,
        svg,
        Data(
            ("run", "seed", "batch", "round", "domain", "images", word, f"running {word}"),
            tuple(rows),
        ),
        760,
    )


def _rows(
    label: str, seed: int | None, records: Sequence[Record], curve: Sequence[float], metric: Metric
) -> list[tuple[Value, ...]]:
    return [
        (label, seed, r.index, r.round + 1, r.domain, r.images, rounded(_score([r], metric)),
         rounded(value))
        for r, value in zip(records, curve, strict=True)
    ]  # fmt: skip


def _draw(
    axes: Any,
    variant: Variant,
    curves: Sequence[Sequence[float]],
    many: Sequence[Visit],
    quiet: bool = False,
) -> None:
    """The mean over seeds, broken between visits."""
    length = min(map(len, curves))
    table = np.array([curve[:length] for curve in curves])
    middle, low, high = table.mean(0), table.min(0), table.max(0)
    # A gap after every visit, so that no line suggests values between two domains.
    xs: list[float] = []
    ys: list[float] = []
    for visit in many:
        stretch = range(visit.start, min(visit.end, length))
        xs += [*(at + 0.5 for at in stretch), float(visit.end)]
        ys += [*(float(middle[at]) for at in stretch), math.nan]
        if len(curves) > 1 and len(stretch):
            at = np.array(stretch)
            axes.fill_between(at + 0.5, low[at], high[at], color=variant.colour, alpha=0.18, lw=0)
    marker = "." if many[-1].end <= 200 else ""
    weight = {"lw": 0.7, "alpha": 0.4} if quiet else {"marker": marker, "markersize": 4}
    (line,) = axes.plot(xs, ys, color=variant.colour, ls=variant.dash, zorder=2 - quiet, **weight)
    tip(line, f"{variant.label}: {variant.score:.1f} % over the whole stream")


def _is_background(variant: Variant, group: Sequence[Variant]) -> bool:
    """Among many lines, all but the source model's and this project's step back."""
    method = str(variant.first.spec.get("method"))
    return len(group) > _MANY and method != "source" and not is_own(method)


def so_far(records: Sequence[Record], metric: Metric) -> list[float]:
    """The mean of all batches up to each one, weighted by their images."""
    images = np.array([r.images for r in records], dtype=np.float64)
    values = np.array([_score([r], metric) for r in records])
    total: list[float] = (np.cumsum(values * images) / np.cumsum(images)).tolist()
    return total


def _draw_total(axes: Any, variant: Variant, frozen: Variant | None, metric: Metric) -> End:
    """The mean so far, or what it gains over the source model's run of the same seed."""
    twins = {} if frozen is None else {run.seed: run for run in frozen.runs}
    paired = [run for run in variant.runs if run.seed in twins] or list(variant.runs)
    curves = []
    for run in paired:
        curve = np.array(so_far(run.records, metric))
        if frozen is not None:
            base = np.array(so_far(twins.get(run.seed, frozen.first).records, metric))
            length = min(len(base), len(curve))
            curve = (curve[:length] - base[:length]) * (1 if higher_is_better(metric) else -1)
        curves.append(curve)
    length = min(map(len, curves))
    middle = np.mean([curve[:length] for curve in curves], axis=0)
    (line,) = axes.plot(
        np.arange(length) + 1, middle, color=variant.colour, ls=variant.dash, label=_TOTAL
    )
    tip(line, f"{variant.label}: {float(middle[-1]):.1f} at the end")
    return End(float(middle[-1]), f"{variant.label}\u00a0{variant.score:.1f}", variant.colour)


def _limits(axes: Any) -> tuple[float, float]:
    """Limits without the first third of all lines, which would squeeze the rest."""
    lines = [line.get_ydata() for line in axes.get_lines() if line.get_label() == _TOTAL]
    values = [value for line in lines for value in line[len(line) // 3 :]]
    room = 0.1 * (max(values) - min(values)) + 0.5
    return min(values) - room, max(values) + room


def names_of(group: Sequence[Variant]) -> str:
    """All variants with their scores, in a sentence."""
    return listing([f"{v.label} (mean {v.score:.1f} %)" for v in group])
