"""The drawings of a trial's page: gain by kind of traffic, and gain by domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.report.figure import Data, Figure, rounded
from ostinato.report.style import FAINT, INK, PALETTE, canvas, fold, to_svg
from ostinato.report.timeline import readable
from ostinato.scoring.compare import Interval
from ostinato.trial._advice import Outcome
from ostinato.trial._plan import Traffic

OURS, OTHERS = PALETTE[0], (PALETTE[1], PALETTE[4], PALETTE[2], PALETTE[3])


def _colours(rows: Sequence[str], ours: str) -> dict[str, str]:
    """A colour for every method; ours keeps its own."""
    others = [row for row in rows if row != ours]
    return {ours: OURS} | {row: OTHERS[n % len(OTHERS)] for n, row in enumerate(others)}


def gain_by_traffic(outcomes: Sequence[Outcome], traffic: Sequence[Traffic], ours: str) -> Figure:
    """Points gained over the source model, one line per kind of traffic and method."""
    title, name = "Gain by kind of traffic", "gain-by-traffic"
    known = [one for one in outcomes if one.gain is not None]
    rows = list(dict.fromkeys(one.row for one in known))
    shade = _colours(rows, ours)
    alt = "; ".join(
        f"{kind.title}: " + ", ".join(_said(one) for one in known if one.traffic == kind.name)
        for kind in traffic
    )
    height = 70 + sum(28 + 24 * sum(o.traffic == k.name for o in known) for k in traffic)
    with canvas(820, height) as figure:
        axes = figure.subplots()
        place, ticks = -0.2, []
        heads = {kind.title for kind in traffic}
        for kind in traffic:
            place += 1.2
            ticks.append((place, kind.title))
            for one in (o for o in known if o.traffic == kind.name):
                place += 1
                assert one.gain is not None
                _draw_interval(axes, one.gain, place, shade[one.row])
                ticks.append((place, one.row))
        axes.axvline(0, color=FAINT, lw=1.2, zorder=1)
        axes.set_yticks([at for at, _ in ticks], [fold(row, 26) for _, row in ticks])
        for label in axes.get_yticklabels():  # among the rows, where no line crosses them
            label.set_fontweight("bold" if label.get_text() in heads else "normal")
        axes.set_ylim(place + 0.8, 0.2)
        axes.set_xlabel("points gained over the source model (right is better)")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        svg = to_svg(figure, name, alt)
    return Figure(
        name,
        title,
        "Dots are gains, lines their 95 % intervals from drawing images anew. A line that crosses "
        "zero may be chance.",
        alt,
        svg,
        Data(
            ("traffic", "method", "error", "gain", "low", "high"),
            tuple(
                (o.traffic, o.row, rounded(o.error), *_numbers(o.gain))
                for o in known
                if o.gain is not None
            ),
        ),
        560,
    )


def gain_by_domain(outcome: Outcome) -> Figure:
    """Points that our method gains on every domain where domains return, best first."""
    title, name = f"Where it is gained: {outcome.row}", "gain-by-domain"
    order = sorted(outcome.domains.items(), key=lambda pair: -pair[1].estimate)
    alt = "; ".join(f"{readable(d)} {gain.estimate:+.1f} points" for d, gain in order)
    with canvas(820, 80 + 27 * len(order)) as figure:
        axes = figure.subplots()
        for place, (_, gain) in enumerate(order):
            axes.barh(place, gain.estimate, color=OURS if gain.estimate >= 0 else OTHERS[0],
                      height=0.62, alpha=0.55, lw=0)  # fmt: skip
            _draw_interval(axes, gain, place, INK, dot=False)
        axes.axvline(0, color=FAINT, lw=1.2)
        axes.set_yticks(range(len(order)), [readable(domain) for domain, _ in order])
        axes.set_ylim(len(order) - 0.4, -0.6)
        axes.set_xlabel("points gained over the source model")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        svg = to_svg(figure, name, alt)
    rows = tuple((domain, *_numbers(gain)) for domain, gain in order)
    return Figure(
        name,
        title,
        "Both rounds together. Intervals of single domains rest on few images and are wide.",
        alt,
        svg,
        Data(("domain", "gain", "low", "high"), rows),
        560,
    )


def _draw_interval(axes: Any, gain: Interval, place: float, colour: str, dot: bool = True) -> None:
    axes.hlines(place, gain.low, gain.high, color=colour, lw=2.2 if dot else 1.2)
    if dot:
        axes.scatter([gain.estimate], [place], s=52, color=colour, zorder=3, lw=0)


def _numbers(gain: Interval) -> tuple[float | None, float | None, float | None]:
    return rounded(gain.estimate), rounded(gain.low), rounded(gain.high)


def _said(one: Outcome) -> str:
    assert one.gain is not None
    return f"{one.row} {one.gain.estimate:+.1f} points"
