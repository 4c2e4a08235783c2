"""The maps of `attention` as a figure: images in rows, experts in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.report._runs import ATTENTION, Variant
from ostinato.report.attention import ExpertAttention
from ostinato.report.figure import Data, Figure, Missing, Part, Value, rounded
from ostinato.report.style import INK, canvas, to_svg
from ostinato.report.timeline import readable

IMAGES, EXPERTS = 6, 8
_TITLE = "Where the experts look"


def attention_maps(variants: Sequence[Variant]) -> list[Part]:
    """One figure for each variant that has maps in a run's folder."""
    found: list[Part] = []
    for variant in variants:
        path = next((r.path / ATTENTION for r in variant.runs if (r.path / ATTENTION).is_file()),
                    None)  # fmt: skip
        if path is not None:
            found.append(draw_attention(ExpertAttention.load(path), variant.label, len(found) + 1))
    note = f"No run keeps {ATTENTION}, the maps of its experts on chosen images."
    return found or [Missing("attention", _TITLE, note)]


def draw_attention(maps: ExpertAttention, label: str, number: int = 1) -> Figure:
    """The images, and beside each the map of every expert; active ones are framed."""
    count, experts = min(len(maps.images), IMAGES), min(len(maps.experts), EXPERTS)
    name = f"attention-{number}"
    values = maps.maps[:count, :experts]
    alt = (
        f"{label}: {count} images in rows, each with the attention maps of {experts} experts; "
        "the active domain's map is framed."
    )
    side = min(118, 900 // (experts + 1))
    with canvas(side * (experts + 1) + 90, (side + 20) * count + 30) as figure:
        grid = figure.subplots(count, experts + 1, squeeze=False)
        for row in range(count):
            _show(grid[row][0], maps.images[row])
            grid[row][0].set_ylabel(readable(maps.titles[row]).replace(" ", "\n"), rotation=0,
                                    ha="right", va="center")  # fmt: skip
            for column in range(experts):
                axes = grid[row][column + 1]
                _show(axes, values[row, column], cmap="magma")
                low, high = float(values[row, column].min()), float(values[row, column].max())
                axes.set_xlabel(f"{low:.2f} to {high:.2f}", fontsize=9.5, labelpad=2)
                if maps.active[row] == column:
                    _frame(axes)
        for column, title in enumerate(["image", *maps.experts[:experts]]):
            grid[0][column].set_title(title, fontweight="normal", loc="center")
        svg = to_svg(figure, name, alt)
    left = [
        f"{len(maps.images) - count} more images" if len(maps.images) > count else "",
        f"{len(maps.experts) - experts} more experts" if len(maps.experts) > experts else "",
    ]
    more = " Not drawn: " + " and ".join(part for part in left if part) + "." if any(left) else ""
    return Figure(
        name,
        f"{_TITLE}: {label}",
        "Cosine similarity of the class token to every patch token in each branch's output at "
        f"{maps.layer}; bright is near, and below each map stands its range. The framed map is of "
        "the domain that was active; the others were not, and answer to an image that is not "
        f"theirs.{more}",
        alt,
        svg,
        Data(("image", "title", "expert", "active", "row", "column", "similarity"),
             tuple(_rows(maps, count, experts))),
        min(760, side * (experts + 1)),
    )  # fmt: skip


def _show(axes: Any, picture: Any, **options: Any) -> Any:
    shown = axes.imshow(picture, interpolation="none", **options)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    return shown


def _frame(axes: Any) -> None:
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(INK)
        side.set_linewidth(2.6)


def _rows(maps: ExpertAttention, count: int, experts: int) -> list[tuple[Value, ...]]:
    return [
        (image, maps.titles[image], maps.experts[expert], int(maps.active[image] == expert),
         row, column, rounded(float(value), 3))
        for (image, expert, row, column), value in np.ndenumerate(maps.maps[:count, :experts])
    ]  # fmt: skip
