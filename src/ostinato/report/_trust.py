"""Trust over time: how far experts were let act, and how often the source model answered."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Missing, Part, Value, rounded
from ostinato.report.style import End, canvas, label_ends, room_for, tip, to_svg
from ostinato.report.timeline import by_stream, draw_visits, longest, visits
from ostinato.scoring.record import Record

_TITLE = "Trust over time"


def trust_over_time(variants: Sequence[Variant]) -> list[Part]:
    """One figure for each stream, with all variants whose records tell their trust."""
    telling = [v for v in variants if any(r.trust for r in v.first.records)]
    if not telling:
        return [Missing("trust", _TITLE, "None of these runs has experts that are trusted or not.")]
    groups = by_stream(telling)
    return [
        _curves(group, "" if len(groups) == 1 else f"-{place + 1}")
        for place, group in enumerate(groups)
    ]


def mean_trust(record: Record) -> float:
    """Mean over a batch's images; 0 where the source model answered all of them.

    >>> row = dict(run="a", index=0, domain="fog", images=2, correct=0, counted=2, hits="00")
    >>> mean_trust(Record(trust=(0.2, 0.0), **row))
    0.1
    """
    return sum(record.trust) / len(record.trust) if record.trust else 0.0


def source_share(record: Record) -> float:
    """Share of a batch's images that the source model answered."""
    return sum(value == 0 for value in record.trust) / len(record.trust) if record.trust else 1.0


def _curves(group: Sequence[Variant], ending: str) -> Figure:
    many, name = visits(longest(group)), f"trust{ending}"
    rows: list[tuple[Value, ...]] = []
    ends: list[End] = []
    means = {v.label: _mean([mean_trust(r) for r in v.first.records]) for v in group}
    alt = "Mean trust over the whole stream: " + "; ".join(
        f"{label} {value:.2f}" for label, value in means.items()
    )
    with canvas(940, max(430, room_for(len(group)) + 330)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.2, 1))
        draw_visits(upper, many)
        draw_visits(lower, many, names=False)
        for variant in group:
            records = variant.first.records
            trust, share = [mean_trust(r) for r in records], [source_share(r) for r in records]
            xs = [r.index + 0.5 for r in records]
            look = {"color": variant.colour, "ls": variant.dash}
            (line,) = upper.plot(xs, trust, **look)
            tip(line, f"{variant.label}: mean trust {means[variant.label]:.2f}")
            lower.plot(xs, [100 * value for value in share], **look)
            ends.append(End(100 * share[-1], variant.label, variant.colour))
            rows += [
                (variant.label, r.index, r.round + 1, r.domain, rounded(t), rounded(s))
                for r, t, s in zip(records, trust, share, strict=True)
            ]
        upper.set_ylabel("mean trust")
        upper.set_ylim(bottom=0)
        lower.set_ylabel("source answers, %")
        lower.set_ylim(-2, 102)
        lower.set_xlabel("batch")
        for axes in (upper, lower):
            axes.grid(axis="y")
        label_ends(lower, ends)
        svg = to_svg(figure, name, alt)
    return Figure(
        name,
        _TITLE,
        "Trust is the share of the way that a domain's map moves tokens towards the source's, "
        "chosen by how sure the answers are; at 0 the source model answers. Above: its mean over "
        "the images of each batch. Below: images that the source model answered, because they are "
        "like the clean ones or because no map was worth trusting.",
        alt,
        svg,
        Data(("run", "batch", "round", "true domain", "mean trust", "source answers"), tuple(rows)),
        760,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
