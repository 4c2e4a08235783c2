"""Can a confidence be believed, and what does accuracy cost?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ostinato.report._over_time import WORDS
from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Missing, Part, listing, rounded
from ostinato.report.style import FAINT, End, canvas, fold, label_ends, room_for, tip, to_svg
from ostinato.scoring.forgetting import higher_is_better
from ostinato.scoring.metrics import Bin, calibration_error, reliability

_COLUMNS = 4
_LEAST = 3
"""Bins of confidence that a picture needs: one or two dots say nothing about a line."""


def reliability_diagram(variants: Sequence[Variant]) -> list[Part]:
    """Accuracy against confidence, one panel per variant; the seeds' answers are put together."""
    name, title = "reliability", "Reliability"
    tables = [(v, reliability([r for run in v.runs for r in run.records])) for v in variants]
    known = [(variant, bins) for variant, bins in tables if sum(b.answers for b in bins)]
    if not known:
        return [Missing(name, title, "These records hold no confidences.")]
    shown = [
        (variant, bins) for variant, bins in known if sum(b.answers > 0 for b in bins) >= _LEAST
    ]
    if not shown:
        note = "Confidences fill too few bins for a picture; the summary has their ECE."
        return [Missing(name, title, note)]
    left = [v.label for v, _ in known if all(v is not one for one, _ in shown)]
    columns = min(_COLUMNS, max(len(shown), 2))
    lines = math.ceil(len(shown) / columns)
    errors = {v.label: 100 * (calibration_error(bins) or 0.0) for v, bins in shown}
    alt = "Expected calibration error: " + "; ".join(f"{k} {e:.1f} %" for k, e in errors.items())
    with canvas(min(940, 250 * columns), 305 * lines) as figure:
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for place, axes in enumerate(grid.flat):
            if place >= len(shown):
                axes.axis("off")
                continue
            variant, bins = shown[place]
            _draw_bins(axes, variant, bins, errors[variant.label], columns)
            if place % columns == 0:
                axes.set_ylabel("share right")
            axes.tick_params(labelbottom=True)
            if place + columns >= len(shown):
                axes.set_xlabel("confidence")
        svg = to_svg(figure, name, alt)
    rows = tuple(
        (v.label, rounded(place / len(bins)), rounded((place + 1) / len(bins)), b.answers,
         rounded(b.confidence) if b.answers else None, rounded(b.accuracy) if b.answers else None)
        for v, bins in shown
        for place, b in enumerate(bins)
    )  # fmt: skip
    return [
        Figure(
            name,
            title,
            "On the diagonal a confidence means what it says; below it the model is too sure of "
            "itself. Discs grow with the number of answers. ECE: expected calibration error."
            + (f" Too few confidences to draw: {listing(left)}." if left else ""),
            alt,
            svg,
            Data(("run", "from", "to", "answers", "mean confidence", "share right"), rows),
            min(640, 220 * columns),
        )
    ]


def _draw_bins(
    axes: Any, variant: Variant, bins: Sequence[Bin], error: float, columns: int
) -> None:
    filled = [b for b in bins if b.answers]
    most = max(b.answers for b in filled)
    axes.plot([0, 1], [0, 1], color=FAINT, lw=1)
    xs, ys = [b.confidence for b in filled], [b.accuracy for b in filled]
    axes.vlines(xs, ys, xs, color=variant.colour, lw=3, alpha=0.3)
    for b in filled:
        disc = axes.scatter([b.confidence], [b.accuracy], s=12 + 110 * b.answers / most,
                            color=variant.colour, lw=0)  # fmt: skip
        tip(disc, f"{b.answers:,} answers, {b.confidence:.0%} sure, {b.accuracy:.0%} right")
    axes.set_xlim(0, 1.03)
    axes.set_ylim(0, 1.03)
    axes.set_box_aspect(1)
    axes.set_title(fold(variant.label, 84 // columns), color=variant.colour)
    axes.text(0.04, 0.96, f"ECE {error:.1f} %", transform=axes.transAxes, va="top", fontsize=11)


def cost_against_accuracy(variants: Sequence[Variant]) -> list[Part]:
    """Time per image against the score; one point per variant."""
    name, title = "cost", "Cost against accuracy"
    points = []
    for variant in variants:
        speeds = [r.summary.cost.images_per_second for r in variant.runs]
        known = [s for s in speeds if s]
        if known:
            points.append((variant, 1000 * len(known) / sum(known)))
    if not points:
        return [Missing(name, title, "These records hold no times.")]
    metrics = {v.first.summary.metric for v, _ in points}
    metric = next(iter(metrics))
    if len(metrics) > 1:
        return [Missing(name, title, "These runs are of different tasks; report them apart.")]
    word = WORDS["accuracy" if metric == "error" else metric]
    values = [v.score if higher_is_better(metric) else 100 - v.score for v, _ in points]
    alt = "; ".join(
        f"{v.label}: {value:.1f} % {word} at {time:.2g} ms an image"
        for (v, time), value in zip(points, values, strict=True)
    )
    with canvas(900, max(400, room_for(len(points)) + 90)) as figure:
        axes = figure.subplots()
        for (variant, time), value in zip(points, values, strict=True):
            point = axes.scatter(
                [time], [value], s=85, color=variant.colour, marker=variant.marker, zorder=3, lw=0
            )
            tip(point, f"{variant.label}: {value:.1f} % {word}, {time:.3g} ms an image")
        _scale(axes, [time for _, time in points], values)
        axes.set_xlabel("milliseconds an image, adaptation included (log scale)")
        axes.set_ylabel(f"{word} in %")
        axes.grid()
        _name_points(axes, points, values)
        svg = to_svg(figure, name, alt)
    rows = tuple(
        (v.label, rounded(value), rounded(time), rounded(1000 / time, 2),
         v.first.summary.cost.trained, v.first.summary.cost.peak_memory)
        for (v, time), value in zip(points, values, strict=True)
    )  # fmt: skip
    return [
        Figure(
            name,
            title,
            f"Top left is best: {word} against the time that one image takes, with the "
            "parameters that a step trains. Times compare only where runs shared a machine.",
            alt,
            svg,
            Data(("run", word, "ms per image", "images per second", "trained parameters",
                  "peak memory in bytes"), rows),
        )
    ]  # fmt: skip


def _scale(axes: Any, times: Sequence[float], values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = min(times) / 1.6, max(times) * 1.25
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    room = max(2.0, 0.12 * (max(values) - min(values)))
    axes.set_ylim(max(0.0, min(values) - room), min(100.0, max(values) + room))


def _name_points(
    axes: Any, points: Sequence[tuple[Variant, float]], values: Sequence[float]
) -> None:
    ends = [
        End(
            value,
            f"{variant.label} {value:.1f}\u00a0%, trains "
            f"{_size(variant.first.summary.cost.trained)}",
            variant.colour,
            time,
        )
        for (variant, time), value in zip(points, values, strict=True)
    ]
    label_ends(axes, ends, 34 if len(ends) <= 10 else None)


def _size(count: int) -> str:
    """A count of parameters in words.

    >>> _size(0), _size(3_400), _size(1_200_000)
    ('nothing', '3.4\xa0k', '1.20\xa0M')
    """
    if not count:
        return "nothing"
    return f"{count / 1e6:.2f}\u00a0M" if count >= 1e6 else f"{count / 1e3:.1f}\u00a0k"
