"""The discriminator at work: which domain when, at what distance, and how the pool grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Missing, Part, Value, rounded
from ostinato.report.style import (
    FAINT,
    INK,
    WARN,
    End,
    canvas,
    label_ends,
    room_for,
    shade,
    tip,
    to_svg,
)
from ostinato.report.timeline import by_stream, draw_visits, longest, visits
from ostinato.scoring.record import Record
from ostinato.scoring.summary import domains_over_time

_PANELS = 8
"""Most variants whose timeline is drawn."""
_NO_DECISIONS = "None of these runs recognises domains, so there is nothing to show."


def discriminator_timeline(variants: Sequence[Variant]) -> list[Part]:
    """One figure for each variant that recognises domains."""
    deciding = [v for v in variants if v.first.decided]
    title = "What the discriminator decided"
    if not deciding:
        return [Missing("discriminator", title, _NO_DECISIONS)]
    drawn: list[Part] = [_timeline(v, place) for place, v in enumerate(deciding[:_PANELS])]
    if len(deciding) > _PANELS:
        left = len(deciding) - _PANELS
        drawn.append(Missing("discriminator-more", title, f"{left} more runs are not drawn."))
    return drawn


def chosen(record: Record) -> list[tuple[int, float]]:
    """The domains of one batch, each with its share of the images."""
    if record.decision is None:
        return []
    many = record.decision.per_sample or (record.decision.domain,) * record.images
    return [(domain, count / len(many)) for domain, count in sorted(Counter(many).items())]


def stretches(records: Sequence[Record]) -> list[tuple[int, int, int, float]]:
    """(domain, first batch, batches, share): equal decisions in a row, put together."""
    result = []
    names = sorted({domain for r in records for domain, _ in chosen(r)})
    for name in names:
        shares = [dict(chosen(r)).get(name, 0.0) for r in records]
        start = 0
        for share, group in groupby(round(value, 1) for value in shares):
            length = sum(1 for _ in group)
            if share > 0:
                result.append((name, start, length, share))
            start += length
    return result


def _timeline(variant: Variant, place: int) -> Figure:
    run, name = variant.first, f"discriminator-{place + 1}"
    records, many = run.records, visits(run.shape)
    found = sorted({domain for r in records for domain, _ in chosen(r)})
    measured = run.summary.routing
    alt = (
        f"{variant.label}: {len(found)} domains were found where the stream has "
        f"{len({d for _, d in run.shape})}; bars show which was active in each of "
        f"{len(records)} batches, dots below the distance to the nearest one."
    )
    with canvas(940, 330 + 14 * min(len(found), 30)) as figure:
        ratio = [max(1.1, 0.19 * min(len(found), 30)), 1.2]
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=ratio)
        draw_visits(upper, many)
        draw_visits(lower, many, names=False)
        _draw_choices(upper, records, found)
        _draw_distances(lower, records)
        svg = to_svg(figure, name, alt)
    explained = (
        "Each bar is a discovered domain while it was active; a star marks the batch that opened "
        "it. Where a domain returns, its bar should return in the same row. Below: distance of "
        "each batch to the nearest known domain (logarithmic far above the threshold); above the "
        "threshold it counts as new."
    )
    caption = explained if place == 0 else ""
    if measured is not None:
        caption += (
            f" Purity {100 * measured.purity:.0f} %, adjusted mutual information "
            f"{100 * measured.ami:.0f} %."
        )
    seed = f" (seed {run.seed})" if len(variant.runs) > 1 else ""
    return Figure(
        name,
        f"What the discriminator decided: {variant.label}{seed}",
        caption,
        alt,
        svg,
        Data(
            ("batch", "round", "true domain", "found domain", "share", "new", "settled",
             "distance", "threshold"),
            tuple(_row(r, d, share) for r in records for d, share in chosen(r)),
        ),
        760,
    )  # fmt: skip


def _row(record: Record, domain: int, share: float) -> tuple[Value, ...]:
    decision = record.decision
    assert decision is not None
    return (
        record.index,
        record.round + 1,
        record.domain,
        domain,
        rounded(share),
        int(decision.is_new),
        int(decision.settled),
        rounded(decision.distance),
        rounded(decision.threshold),
    )


def _draw_choices(axes: Any, records: Sequence[Record], found: Sequence[int]) -> None:
    rows = {domain: row for row, domain in enumerate(found)}
    for domain, start, length, share in stretches(records):
        height = 0.72 * max(share, 0.15)
        row = rows[domain]
        bar = axes.broken_barh(
            [(start, length)], (row - height / 2, height), color=shade(row), lw=0
        )
        tip(bar, f"domain {domain}: batches {start} to {start + length - 1}, {share:.0%} of images")
    opened = [r for r in records if r.decision and r.decision.is_new]
    places = [(r.index + 0.5, rows[d]) for r in opened for d in _opened(r)]
    if places:
        axes.scatter(*zip(*places, strict=True), marker="*", s=42, color=INK, zorder=3, lw=0)
    every = max(1, len(found) // 15)
    axes.set_yticks(range(0, len(found), every), [str(d) for d in found[::every]])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.tick_params(length=0)
    axes.set_ylabel("found domain")


def _opened(record: Record) -> list[int]:
    """The domains that a batch opened: those to which it knew no distance."""
    assert record.decision is not None
    known = {domain for domain, _ in record.decision.distances}
    return [d for d, _ in chosen(record) if d not in known] or [record.decision.domain]


def _draw_distances(axes: Any, records: Sequence[Record]) -> None:
    told = [(r.index + 0.5, r.decision.distance) for r in records if r.decision is not None]
    known = [(x, y) for x, y in told if y is not None]
    small = len(records) <= 200
    if known:
        axes.plot(
            *zip(*known, strict=True), ls="", marker="o", ms=3.4 if small else 1.8, color=FAINT,
            mec=INK, mew=0.6 if small else 0.2, rasterized=len(known) > 600,
        )  # fmt: skip
    limits = [(r.index, r.decision.threshold) for r in records if r.decision is not None]
    drawn = [(x, y) for x, y in limits if y is not None]
    limit = max((y for _, y in drawn), default=None)
    if limit is not None:
        axes.step(
            [x for x, _ in drawn] + [drawn[-1][0] + 1], [y for _, y in drawn] + [drawn[-1][1]],
            where="post", color=WARN, lw=1.4, ls=(0, (4, 2)),
        )  # fmt: skip
        axes.annotate(
            f"threshold {drawn[-1][1]:g}", xy=(1, drawn[-1][1]),
            xycoords=axes.get_yaxis_transform(), xytext=(-4, 3), textcoords="offset points",
            ha="right", va="bottom", color=WARN, fontsize=11,
        )  # fmt: skip
    top = max([y for _, y in known] + [limit or 0.0])
    low = min([y for _, y in known] + [0.0])
    if limit is not None and top > 4 * limit:  # linear around the threshold, log far above it
        _stretch(axes, limit, top)
        axes.set_ylim(1.1 * low, 2 * top)
    else:
        axes.set_ylim(low - 0.04 * (top - low), 1.25 * top + 1e-9)  # room for the threshold's name
    axes.grid(axis="y")
    axes.set_ylabel("distance")
    axes.set_xlabel("batch")


def _stretch(axes: Any, limit: float, top: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("symlog", linthresh=2 * limit, linscale=2)
    tens = [10.0**power for power in range(-6, 9)]
    marks = [0.0, *(value for value in tens if 2 * limit < value <= top * 1.2)]
    axes.yaxis.set_major_locator(FixedLocator(marks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def pool_growth(variants: Sequence[Variant]) -> list[Part]:
    """How many domains were known after every batch."""
    deciding = [v for v in variants if v.first.decided]
    title = "Growth of the pool"
    if not deciding:
        return [Missing("pool", title, _NO_DECISIONS)]
    groups = by_stream(deciding)
    return [
        _growth(group, title, "" if len(groups) == 1 else f"-{place + 1}")
        for place, group in enumerate(groups)
    ]


def _growth(group: Sequence[Variant], title: str, ending: str) -> Figure:
    many, name = visits(longest(group)), f"pool{ending}"
    met = [len({v.domain for v in many[: place + 1]}) for place in range(len(many))]
    rows: list[tuple[Value, ...]] = []
    ends: list[End] = []
    alt = "Steps of the number of domains found: " + "; ".join(
        f"{v.label} ends at {domains_over_time(v.first.records)[-1]}" for v in group
    ) + f". The stream has {met[-1]}."  # fmt: skip
    with canvas(940, max(400, room_for(len(group) + 1) + 190)) as figure:
        axes = figure.subplots()
        draw_visits(axes, many)
        axes.step([v.start for v in many] + [many[-1].end], [*met, met[-1]], where="post",
                  color=FAINT, lw=1.2, ls=(0, (1, 1.5)))  # fmt: skip
        ends.append(End(met[-1], f"true domains {met[-1]}", INK))
        for variant in group:
            for run in variant.runs:
                counts = domains_over_time(run.records)
                xs = [*range(len(counts)), len(counts)]
                (line,) = axes.step(
                    xs, [*counts, counts[-1]], where="post", color=variant.colour,
                    ls=variant.dash, alpha=1.0 if run is variant.first else 0.45,
                )  # fmt: skip
                tip(line, f"{variant.label}, seed {run.seed}: {counts[-1]} domains")
                rows += [(variant.label, run.seed, r.index, r.round + 1, r.domain, k)
                         for r, k in zip(run.records, counts, strict=True)]  # fmt: skip
            last = domains_over_time(variant.first.records)[-1]
            ends.append(End(last, f"{variant.label}\u00a0{last}", variant.colour))
        axes.set_ylim(0, 1.06 * max(end.value for end in ends) + 0.3)
        axes.set_ylabel("domains found")
        axes.set_xlabel("batch")
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        label_ends(axes, ends)
        svg = to_svg(figure, name, alt)
    return Figure(
        name,
        title,
        "Domains found after every batch. A pool that stays flat once all domains were met "
        "recognises what returns. Domains that look alike may share one.",
        alt,
        svg,
        Data(("run", "seed", "batch", "round", "true domain", "domains found"), tuple(rows)),
        760,
    )
