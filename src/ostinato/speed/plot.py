"""The ratios of `ostinato speed` as a picture that any browser shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ostinato.speed.measure import Speed

LEFT, WIDTH, ROW, HEAD = 150, 560, 22, 34


def speed_figure(found: Mapping[str, Sequence[Speed]]) -> str:
    """One panel a setting and one bar a way, as long as a batch takes in forwards: SVG.

    >>> one = Speed("forward", 100.0, 10.0, 1.0, 10.0, 10.0)
    >>> speed_figure({"batch 1": [one]}).count("<rect")
    1
    """
    largest = max((one.ratio for rows in found.values() for one in rows), default=1.0)
    unit = (WIDTH - LEFT - 60) / largest
    parts, top = [], 0
    for title, rows in found.items():
        parts.append(f'<text x="4" y="{top + 22}" font-weight="bold">{escape(title)}</text>')
        parts += [_bar(one, top + HEAD + ROW * k, unit) for k, one in enumerate(rows)]
        bottom = top + HEAD + ROW * len(rows)
        parts.append(
            f'<path d="M{LEFT + unit:.1f} {top + HEAD - 4}V{bottom}" stroke="#777" '
            'stroke-dasharray="3 3"/>'
        )
        top = bottom + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" '
        'aria-label="Forwards that a batch takes" font-family="sans-serif" font-size="13">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(one: Speed, top: int, unit: float) -> str:
    length = max(1.0, unit * one.ratio)
    return (
        f'<text x="{LEFT - 6}" y="{top + 13}" text-anchor="end">{escape(one.name)}</text>'
        f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{ROW - 6}" fill="#0a7fc0"/>'
        f'<text x="{LEFT + length + 5:.1f}" y="{top + 13}">{one.ratio:.2f}</text>'
    )
