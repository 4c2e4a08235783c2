"""How far each block of each domain lies from the source, before and after its expert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ostinato.report._domains import chosen
from ostinato.report._runs import Run, Variant
from ostinato.report.figure import Data, Figure, Missing, Part, Value, rounded
from ostinato.report.style import canvas, fold, to_svg
from ostinato.report.timeline import readable

_TITLE = "Distance of every block to the source"
PANELS, DOMAINS = 3, 30
"""Most variants, and domains of each, that are drawn."""


def distance_to_source(variants: Sequence[Variant]) -> list[Part]:
    """One figure for each variant whose run kept the distances of its domains."""
    able = [v for v in variants if v.first.diagnostics.get("blocks")]
    if not able:
        note = "No run kept distances of its domains: methods without maps have none."
        return [Missing("distance", _TITLE, note)]
    drawn: list[Part] = [_panels(v, place) for place, v in enumerate(able[:PANELS])]
    if len(able) > PANELS:
        note = f"{len(able) - PANELS} more runs are not drawn."
        drawn.append(Missing("distance-more", _TITLE, note))
    return drawn


def usual_names(run: Run) -> dict[int, str]:
    """For each found domain the true one that most of its images are of."""
    counts: dict[int, Counter[str]] = {}
    for record in run.records:
        true = record.domains()
        owners = () if record.decision is None else record.decision.per_sample or ()
        for domain, name in zip(owners, true, strict=False):
            counts.setdefault(domain, Counter())[name] += 1
        if not owners:
            for domain, share in chosen(record):
                counts.setdefault(domain, Counter())[record.domain] += round(share * record.images)
    return {domain: found.most_common(1)[0][0] for domain, found in counts.items() if found}


def _panels(variant: Variant, place: int) -> Figure:
    run, name = variant.first, f"distance-{place + 1}"
    blocks: Mapping[str, Any] = run.diagnostics["blocks"]
    names = usual_names(run)
    # The farthest first: what a shift does shows at a glance.
    order = sorted(blocks, key=lambda key: -float(np.mean(blocks[key]["before"])))[:DOMAINS]
    tables = {
        side: np.array([[float(v) for v in blocks[key][side]] for key in order])
        for side in ("before", "after")
    }
    labels = [_label(key, names, blocks[key]["trust"]) for key in order]
    top = max(float(tables["before"].max()), 1e-9)
    means = [float(tables[side].mean()) for side in ("before", "after")]
    alt = (
        f"{variant.label}: mean distance of {len(order)} domains to the source {means[0]:.2f} "
        f"before and {means[1]:.2f} after their experts."
    )
    with canvas(940, 26 * len(order) + 120) as figure:
        grid = figure.subplots(1, 2, sharey=True)
        for axes, (side, table) in zip(grid, tables.items(), strict=True):
            _draw(axes, table, top)
            words = "source model alone" if side == "before" else "with the domain's expert"
            axes.set_title(fold(f"{words}: mean {float(table.mean()):.2f}", 40))
        grid[0].set_yticks(range(len(order)), labels)
        grid[0].set_ylim(len(order) - 0.5, -0.5)
        svg = to_svg(figure, name, alt)
    explained = (
        "Rows are found domains, named after the true one that most of their images are of, with "
        "their trust; columns are blocks, from the first to the last. A cell says how far the "
        "tokens of the domain's latest images lie from those of clean images, in units of the "
        "clean tokens' own spread. "
    )
    return Figure(
        name,
        f"{_TITLE}: {variant.label}",
        (explained if place == 0 else "") + "Paler on the right: the maps brought it nearer.",
        alt,
        svg,
        Data(
            ("found domain", "mostly", "trust", "block", "before", "after"),
            tuple(_rows(order, blocks, names)),
        ),
        720,
    )


def _label(key: str, names: Mapping[int, str], trust: float) -> str:
    mostly = readable(names.get(int(key), ""))
    return f"{key} {mostly} ({trust:g})" if mostly else f"{key} ({trust:g})"


def _rows(
    order: Sequence[str], blocks: Mapping[str, Any], names: Mapping[int, str]
) -> list[tuple[Value, ...]]:
    return [
        (int(key), names.get(int(key)), rounded(blocks[key]["trust"]), number + 1,
         rounded(before), rounded(after))
        for key in order
        for number, (before, after) in enumerate(
            zip(blocks[key]["before"], blocks[key]["after"], strict=True)
        )
    ]  # fmt: skip


def _draw(axes: Any, table: Any, top: float) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("distance", ("#f4f4f2", "#e8a35c", "#8e2f0c"))
    rows, columns = table.shape
    edges = [np.arange(count + 1) - 0.5 for count in (columns, rows)]
    axes.pcolormesh(*edges, table, cmap=colours, vmin=0, vmax=top, lw=0)
    if columns <= 14:
        for (row, column), value in np.ndenumerate(table):
            axes.text(
                column, row, f"{value:.{1 + (top < 2)}f}", ha="center", va="center", fontsize=10,
                color="#fafafa" if value > 0.6 * top else "#16181c",
            )  # fmt: skip
    axes.set_xticks(range(columns), [str(n + 1) for n in range(columns)])
    axes.set_xlabel("block")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
