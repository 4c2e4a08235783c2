"""The page of a soak: one file without scripts, drawings in plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from ostinato.soak._tenths import MOST_ERROR, Piece, Sum, faults, kinds, tenths, verdicts

WIDTH, HEIGHT, EDGE = 720, 220, 56
_HEADS = ("batches", "images", "error %", "source %", "difference", "updates", "domains")
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Ostinato soak</title>
<style>
:root { --paper: #fff; --ink: #1c2026; --faint: #8d949e; --line: #d9dde3; --mark: #0a66a8;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e6e8eb; --line: #343b44; --mark: #6cb6f0; }
}
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 50rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; } .bad { color: #c0392b; font-weight: 700; }
svg { display: block; width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif;
  fill: var(--ink); } .axis { stroke: var(--line); } .most { stroke: #c0392b;
  stroke-dasharray: 4 4; } .line { fill: none; stroke: var(--mark); stroke-opacity: .7; }
.bar { fill: var(--mark); } .over { fill: #c0392b; }
</style>
</head>
<body>
<h1>Ostinato soak: $batches batches of $size</h1>
<p>$what. In turn: domains that return, all domains mixed, two classes of one domain, and a hostile
stream (a new style with every batch, images of nothing, refused input). The method is saved,
unwrapped and loaded once a lap; its process is killed and resumed: $lives lives in all.</p>
$verdicts
<h2>Error against the source</h2>
<p>Percentage points above the source model's error on the same images, by tenths; the dashed line
is $most.</p>
$gaps
<h2>Memory</h2>
<p>Megabytes of each process over the batches of its piece. Its growth is told of the ends of laps,
where all has just been loaded anew and what the allocator held idle has gone back to the system,
and of all blocks (peaks).</p>
$memory
<p>What the memory of $first is made of at its most, in megabytes: libraries and files that are
mapped, what the allocator has handed out (tensors, above all), what it holds on to, and the rest
(Python's own objects and libraries').</p>
$parts
<h2>Domains</h2>
<p>Domains that the method holds, over the batches of each piece.</p>
$domains
<h2>Tenths</h2>
$tenths
<h2>Kinds of traffic</h2>
$kinds
<h2>Pieces</h2>
$pieces
<h2>Faults</h2>
$faults
</body>
</html>
""")


def render(pieces: Sequence[Piece]) -> str:
    """The page's HTML."""
    by_tenth = tenths(pieces)
    plan = pieces[0].plan
    named = plan.method + (f", preset {plan.preset}" if plan.preset else "")
    found = faults(pieces)
    return _PAGE.substitute(
        batches=f"{sum(p.batches for p in pieces):,}",
        size=plan.batch_size,
        what=escape(f"{named} on the embedded model, {len(pieces)} pieces"),
        lives=sum(p.lives for p in pieces),
        most=MOST_ERROR,
        verdicts=_verdicts(pieces),
        gaps=bars([one.gap for one in by_tenth], MOST_ERROR),
        memory=lines([[(b.end, b.memory / 2**20) for b in p.blocks] for p in pieces]),
        first=escape(pieces[0].name),
        parts=table(
            ("tenth", "all", "mapped", "handed out", "held idle", "rest"),
            [_parts(n, one) for n, one in enumerate(pieces[0].parts(), 1)],
        ),
        domains=lines([[(b.end, float(b.domains)) for b in p.blocks] for p in pieces]),
        tenths=table(("tenth", *_HEADS), [_row(one) for one in by_tenth]),
        kinds=table(("kind", *_HEADS), [_row(one) for one in kinds(pieces)]),
        pieces=table(
            (
                "piece",
                "seed",
                "batches",
                "lives",
                "memory growth %",
                "of its peaks",
                "repeats that differ",
            ),
            [_piece(p) for p in pieces],
        ),
        faults="<ul>" + "".join(f"<li>{escape(text)}</li>" for text in found[:200]) + "</ul>"
        if found
        else "<p>None.</p>",
    )


def _piece(p: Piece) -> tuple[str, ...]:
    return (
        p.name, str(p.plan.seed), f"{p.batches:,}", str(p.lives), f"{100 * p.growth:+.1f}",
        f"{100 * p.peak_growth:+.1f}",
        str(len(p.differing)),
    )  # fmt: skip


def _parts(tenth: int, one: dict[str, int]) -> tuple[str, ...]:
    total, *parts = one.values()
    return str(tenth), *(f"{size / 2**20:.0f}" for size in (total, *parts, total - sum(parts)))


def _row(one: Sum) -> tuple[str, ...]:
    errors = (f"{one.error:.2f}", f"{one.source:.2f}", f"{one.gap:+.2f}")
    counts = (f"{one.batches:,}", f"{one.images:,}")
    return one.name, *counts, *errors, f"{one.updates:,}", str(one.domains)


def _verdicts(pieces: Sequence[Piece]) -> str:
    rows = []
    for name, (holds, text) in verdicts(pieces).items():
        mark = "holds" if holds else '<span class="bad">does not hold</span>'
        rows.append(f"<tr><td>{escape(name)}</td><td>{mark}</td><td>{escape(text)}</td></tr>")
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Words in rows and columns."""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def bars(values: Sequence[float], most: float) -> str:
    """One bar each, and a dashed line that none should pass.

    >>> bars([-1.0, 0.5], 0.3).count("<rect")
    2
    """
    low, high = min(0.0, *values), max(most, *values)
    step = (WIDTH - EDGE) / len(values)
    drawn = [_frame(low, high, "error minus the source's, by tenths")]
    for n, value in enumerate(values):
        top, foot = sorted((_y(value, low, high), _y(0, low, high)))
        kind = "over" if value > most else "bar"
        place = f'x="{EDGE + (n + 0.15) * step:.1f}" width="{0.7 * step:.1f}"'
        drawn.append(
            f'<rect class="{kind}" {place} y="{top:.1f}" height="{max(foot - top, 0.5):.1f}"/>'
        )
    y = _y(most, low, high)
    drawn.append(f'<line class="most" x1="{EDGE}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return "".join((*drawn, "</svg>"))


def lines(curves: Sequence[Sequence[tuple[float, float]]]) -> str:
    """One curve a piece, from nought up.

    >>> lines([[(1, 2.0), (2, 4.0)], [(1, 1.0), (2, 1.0)]]).count("<polyline")
    2
    """
    far = max(x for curve in curves for x, _ in curve)
    high = max(max(y for curve in curves for _, y in curve), 1.0)
    drawn = [_frame(0, high, "over the batches of each piece")]
    for curve in curves:
        shown = curve[:: max(1, len(curve) // 500)]
        points = (
            f"{EDGE + x / far * (WIDTH - EDGE):.1f},{_y(value, 0, high):.1f}" for x, value in shown
        )
        drawn.append(f'<polyline class="line" points="{" ".join(points)}"/>')
    return "".join((*drawn, "</svg>"))


def _frame(low: float, high: float, label: str) -> str:
    marks = []
    for value in (low, 0.0, high) if low < 0 else (low, high):
        y = _y(value, low, high)
        marks.append(f'<line class="axis" x1="{EDGE}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{EDGE - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    opened = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return opened + "".join(marks)


def _y(value: float, low: float, high: float) -> float:
    """Where a value lies, from the top down."""
    return 12 + (high - value) / max(high - low, 1e-9) * (HEIGHT - 24)
