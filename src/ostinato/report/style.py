"""One look for all figures: colours, fonts, and SVG that follows the page's light or dark theme.

matplotlib draws ink, faint lines and paper in marker colours, which become the page's own
variables, so that one drawing fits both themes. Output depends on its input alone.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ostinato.errors import MissingResource

INK, FAINT, PAPER, BAND = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {INK: "--ink", FAINT: "--faint", PAPER: "--paper", BAND: "--band"}

GREY = "#6a7079"
# Sixteen hues that can be told apart; each is a name for a colour of the page's theme, which has
# one for light and one for dark, both with a contrast of 4.5 or more to the paper (page.css).
PALETTE = (
    *("#0a71b1", "#ad5c15", "#008053", "#c13b42", "#8e479d", "#1c7e92", "#785214", "#544ec5"),
    *("#737415", "#b83b76", "#006662", "#673ba2", "#8e3415", "#397421", "#515e75", "#782c5c"),
)
_VARIABLES |= {GREY: "--grey"} | {colour: f"--c{place}" for place, colour in enumerate(PALETTE)}
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))
WARN = PALETTE[3]
_TIP = "tip:"

_RC: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and selected
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": BAND,
    "grid.linewidth": 0.9,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 11.0,
    "ytick.labelsize": 11.0,
    "lines.linewidth": 1.8,
    "figure.dpi": 72,
    "savefig.dpi": 144,  # of the few parts that are pixels
}


def plotting() -> Any:
    """matplotlib's figure class, which needs neither a display nor global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingResource(
            "Reports are drawn with matplotlib, which is not installed: "
            "pip install 'ostinato[report]'"
        ) from None
    return Figure


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
    """A figure in the report's style; width and height in pixels of the page."""
    make = plotting()
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield make(figsize=(width / 72, height / 72), layout="constrained")


def to_svg(figure: Any, name: str, alt: str) -> str:
    """The figure as an SVG element for the inside of a page; the same input, the same text."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return _clean_svg(stream.getvalue(), alt)


def _clean_svg(text: str, alt: str) -> str:
    """Leave out what a page has no use for, and hand the marker colours to the page's theme."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.S)
    titled = rf"""<g id=(["']){_TIP}(.*?)\1([^>]*)>"""  # single quotes where a name has double ones
    text = re.sub(titled, r'<g class="tip"\3><title>\2</title>', text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # would repeat from figure to figure
    text = re.sub(r"; font-family:[^;\"]*|font-family:[^;\"]*;? ?", "", text)
    text = re.sub(r"font: ([^;\"']*?px) '[^;\"]*", r"font-size: \1", text)
    text = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", text)
    text = text.replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    safe = alt.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    start = f'<svg role="img" aria-label="{safe}" {box[0] if box else ""}>'
    return re.sub(r"\n\s*", "\n", start + body).strip()


def theme(colour: str) -> str:
    """A colour as the page's theme has it.

    >>> theme(PALETTE[2]), theme("#ffffff")
    ('var(--c2)', '#ffffff')
    """
    return f"var({_VARIABLES[colour]})" if colour in _VARIABLES else colour


def tip(artist: Any, text: str) -> Any:
    """Let a part of a drawing say something where the pointer is on it; returns the part."""
    artist.set_gid(f"{_TIP}{text}")
    return artist


def shade(index: int) -> str:
    """The colour of discovered domain `index`; they repeat after the palette's end."""
    return PALETTE[index % len(PALETTE)]


class End(NamedTuple):
    """A name for the end of a line, or for a point at `at`.

    >>> End(40.0, "TENT", PALETTE[1]).name
    'TENT'
    """

    value: float
    name: str
    colour: str
    at: float | None = None


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places for labels near where they are wanted, in the same order, `gap` apart.

    >>> _spread([1.0, 1.0, 5.0], 1.0)
    [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[int]] = []
    centre: list[float] = []
    for i in order:
        groups.append([i])
        centre.append(wanted[i])
        while len(groups) > 1:
            room = gap * (len(groups[-2]) + len(groups[-1])) / 2
            if centre[-1] - centre[-2] >= room:
                break
            merged = groups[-2] + groups[-1]
            groups[-2:], centre[-2:] = [merged], [sum(wanted[j] for j in merged) / len(merged)]
    result = [0.0] * len(wanted)
    for members, middle in zip(groups, centre, strict=True):
        for place, i in enumerate(members):
            result[i] = middle + gap * (place - (len(members) - 1) / 2)
    return result


def fold(text: str, width: int) -> str:
    """A name on several lines of at most about `width` characters.

    >>> fold("Ostinato robust, covariance none", 18)
    'Ostinato robust,\\ncovariance none'
    """
    return "\n".join(textwrap.wrap(text, width, break_long_words=False)) or text


def room_for(names: int) -> int:
    """Pixels that so many names take, one above the other; more than ten have one line each."""
    return 44 * names if names <= 10 else 17 * names


def label_ends(axes: Any, ends: Sequence[End], width: int | None = None) -> None:
    """Names right of the axes, moved apart where lines meet. Call when limits stand."""
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    height = axes.get_position().height * axes.figure.get_figheight() * 72
    width = width or (26 if len(ends) <= 10 else 44)  # many names have no room for two lines
    texts = [fold(end.name, width) for end in ends]
    lines = max(text.count("\n") + 1 for text in texts)
    gap = (13.5 * lines + 2) * (high - low) / height
    box = axes.get_position()
    top = low + (high - low) * (1 - box.y0) / box.height  # the figure's upper edge, as a value
    wanted = _spread([end.value for end in ends], gap)
    places = _within(wanted, gap, low + gap / 2, top - 0.75 * gap)
    widest = 0.0
    for end, text, place in zip(ends, texts, places, strict=True):
        note = axes.annotate(
            text,
            xy=(1 if end.at is None else end.at, end.value),
            xycoords=axes.get_yaxis_transform() if end.at is None else "data",
            xytext=(1.03, place),
            textcoords=axes.get_yaxis_transform(),
            color=end.colour,
            va="center",
            fontsize=11,
            fontweight="bold",
            linespacing=1.05,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": end.colour, "lw": 0.9, "relpos": (0, 0.5),
                "shrinkA": 1, "shrinkB": 0 if end.at is None else 5, "alpha": 0.7,
            },
        )  # fmt: skip
        note.set_in_layout(False)  # rising names must not push the axes down
        tip(note, end.name.replace("\u00a0", " "))
        widest = max(widest, _width(note))
    share = (widest + 0.03 * axes.get_window_extent().width) / axes.figure.bbox.width
    axes.figure.get_layout_engine().set(rect=(0, 0, 1 - share, 1))


def _within(places: Sequence[float], gap: float, least: float, most: float) -> list[float]:
    """The same places, moved as little as it takes to lie between two values, `gap` apart.

    Where there is no room for all, the lowest keep to `least`.

    >>> _within([0.0, 9.5, 10.5], 1.0, 1.0, 10.0)
    [1.0, 9.0, 10.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    found, limit = list(places), most
    for i in reversed(order):
        found[i] = min(found[i], limit)
        limit = found[i] - gap
    limit = least
    for i in order:
        found[i] = max(found[i], limit)
        limit = found[i] + gap
    return found


def _width(note: Any) -> float:
    """How wide a text is, without the line that leads to it."""
    from matplotlib.text import Text

    return float(Text.get_window_extent(note).width)
