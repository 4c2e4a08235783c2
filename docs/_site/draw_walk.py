"""Draw docs/images/walk.svg: what happens to one batch, step by step, as an animated picture.

    python docs/_site/draw_walk.py docs/images/walk.svg

The picture needs no script; whoever asks for less motion sees all steps at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 920, 470
STEPS = (
    (
        "1  Describe",
        "369 numbers from each image's pixels: texture, tone, steps between neighbours",
    ),
    (
        "2  Route",
        "near clean images: the source; near a known domain: that one; near none: the source",
    ),
    ("3  Answer", "one forward; each image carries its own domain's maps through every block"),
    ("4  Count in", "images are added to their domains; maps that are due are computed again"),
    ("5  Learn", "a domain with 50 new images and a trusted map takes one step (robust)"),
    ("6  Publish", "what is known now becomes the version that answers the next batch"),
)
SECONDS = 3.0
"""That each step is shown."""
# Okabe and Ito's colours for two domains; grey is the source.
GREY, BLUE, ORANGE = "#8a8f98", "#0a71b1", "#ad5c15"
BATCH = (BLUE, GREY, ORANGE, BLUE, ORANGE, GREY, BLUE, ORANGE)
LANES = {GREY: 96, BLUE: 196, ORANGE: 316}
NAMES = {GREY: "source", BLUE: "domain 1: fog", ORANGE: "domain 2: noise"}
BLOCKS = (400, 466, 532, 598)


def main(path: Path) -> None:
    """Write the picture."""
    path.write_text(draw(), encoding="utf-8")


def draw() -> str:
    """The whole picture; the same text whenever it is called."""
    parts = [*_frame(), *_batch(), *_descriptors(), *_lanes(), *_blocks(), *_answers(), *_state()]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(_alt(), {chr(34): "&quot;"})}">\n<style>\n{_style()}</style>\n'
        f"{body}\n</svg>\n"
    )


def _alt() -> str:
    return "One batch in six steps. " + " ".join(f"{title}: {text}." for title, text in STEPS)


def _style() -> str:
    """Each step's group is visible during its share of the time, faint before and after."""
    total = SECONDS * len(STEPS)
    lines = [
        "text { font: 15px system-ui, sans-serif; fill: #1c2026; }",
        ".title { font-weight: 700; font-size: 17px; }",
        ".small { font-size: 12.5px; fill: #4a505a; }",
        ".paper { fill: #ffffff; }",
        ".line { stroke: #c3c9d1; stroke-width: 1.5; fill: none; }",
    ]
    share = 100 / len(STEPS)
    for number in range(len(STEPS)):
        start, end = number * share, (number + 1) * share
        after = "" if number == len(STEPS) - 1 else f" {end:.2f}%, 100% {{ opacity: 0; }}"
        lines.append(
            f"@keyframes show{number} {{ 0%, {start:.2f}% {{ opacity: 0; }} "
            f"{start + 1:.2f}%, {end - 0.5:.2f}% {{ opacity: 1; }}{after} }}"
        )
        lines.append(
            f"@keyframes stay{number} {{ 0%, {start:.2f}% {{ opacity: 0.12; }} "
            f"{start + 2:.2f}%, 100% {{ opacity: 1; }} }}"
        )
        lines.append(f".say{number} {{ animation: show{number} {total:g}s infinite; }}")
        lines.append(f".part{number} {{ animation: stay{number} {total:g}s infinite; }}")
    for number, colour in enumerate(BATCH):
        drop, place = LANES[colour] - _row(number), BATCH[:number].count(colour)
        lines.append(
            f"@keyframes go{number} {{ 0%, {share:.2f}% {{ transform: translate(0, 0); }} "
            f"{2 * share - 4:.2f}%, {2 * share:.2f}% "
            f"{{ transform: translate({205 + 42 * place}px, {drop}px); }} "
            f"{3 * share - 4:.2f}%, 100% "
            f"{{ transform: translate({650 + 30 * place}px, {drop}px); }} }}"
        )
        lines.append(f".image{number} {{ animation: go{number} {total:g}s infinite; }}")
    lines.append(
        "@media (prefers-reduced-motion: reduce) { * { animation: none !important; } "
        + " ".join(
            f".say{n} {{ transform: translate({125 * n}px, 0); }}" for n in range(len(STEPS))
        )
        + " .about { display: none; } }"
    )
    return "\n".join(lines) + "\n"


def _frame() -> list[str]:
    parts = [f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>']
    for number, (title, text) in enumerate(STEPS):
        parts.append(
            f'<g class="say{number}"><text class="title" x="24" y="{HEIGHT - 52}">{title}</text>'
            f'<text class="small about" x="24" y="{HEIGHT - 26}">{escape(text)}</text></g>'
        )
    return parts


def _row(number: int) -> int:
    return 62 + 40 * number


def _batch() -> list[str]:
    parts = ['<text class="small" x="24" y="40">a batch</text>']
    for number, colour in enumerate(BATCH):
        parts.append(
            f'<g class="image{number}"><rect x="24" y="{_row(number)}" width="26" height="26" '
            f'rx="4" fill="{colour}"/></g>'
        )
    return parts


def _descriptors() -> list[str]:
    """Bars beside each image: its descriptor."""
    parts = ['<g class="part0"><text class="small" x="84" y="40">descriptor</text>']
    for number, colour in enumerate(BATCH):
        heights = [4 + (7 * (number + 3) * (bar + 2)) % 17 for bar in range(12)]
        bars = "".join(
            f'<rect x="{84 + 7 * bar}" y="{_row(number) + 24 - height}" width="4" '
            f'height="{height}" fill="{colour}" opacity="0.75"/>'
            for bar, height in enumerate(heights)
        )
        parts.append(bars)
    return [*parts, "</g>"]


def _lanes() -> list[str]:
    parts = ['<g class="part1">']
    for colour, place in LANES.items():
        parts.append(
            f'<rect x="215" y="{place - 8}" width="150" height="44" rx="8" fill="{colour}" '
            f'opacity="0.16"/><text x="228" y="{place - 16}">{NAMES[colour]}</text>'
        )
    return [*parts, "</g>"]


def _blocks() -> list[str]:
    parts = ['<g class="part2"><text class="small" x="400" y="40">the model\'s blocks</text>']
    for place in BLOCKS:
        parts.append(f'<rect class="line" x="{place}" y="76" width="40" height="286" rx="6"/>')
        for colour in (BLUE, ORANGE):
            at = LANES[colour]
            parts.append(
                f'<rect x="{place + 46}" y="{at}" width="14" height="26" rx="3" fill="{colour}"/>'
            )
    parts.append('<text class="small" x="400" y="388">coloured: a domain\'s map after each block; ')
    parts.append("the source's images have none</text>")
    return [*parts, "</g>"]


def _answers() -> list[str]:
    return [
        '<g class="part2"><text class="small" x="800" y="40">logits</text>'
        + "".join(
            f'<rect x="{800 + 16 * n}" y="{place + 24 - h}" width="11" height="{h}" '
            f'fill="{colour}"/>'
            for colour, place in LANES.items()
            for n, h in enumerate((7, 24, 5, 11))
        )
        + "</g>"
    ]


def _state() -> list[str]:
    """What is kept: images of domains, new maps, a learned branch, a version number."""
    parts = ['<g class="part3">']
    for colour in (BLUE, ORANGE):
        at = LANES[colour]
        parts.append(f'<text class="small" x="228" y="{at + 54}">+3 images, maps remade</text>')
    parts.append('</g><g class="part4"><text class="small" x="228" y="268">+1 step of its ')
    parts.append("branch</text></g>")
    parts.append('<g class="part5"><rect x="790" y="412" width="112" height="34" rx="8" ')
    parts.append(f'fill="{BLUE}" opacity="0.16"/><text x="806" y="434">version 42</text></g>')
    return parts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
