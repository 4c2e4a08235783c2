"""IoU of every class in every round, for segmentation runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.report.figure import Data, Figure, Part, rounded
from ostinato.report.over_time import names_of
from ostinato.report.per_domain import Cells, panel, reference
from ostinato.report.runs import Variant
from ostinato.report.style import canvas, fold, to_svg
from ostinato.report.timeline import by_stream
from ostinato.scoring.classes import class_names, class_scores


def iou_per_class(variants: Sequence[Variant]) -> list[Part]:
    """A heat map of every class in every round, one panel per variant; nothing for whole images."""
    pixels = [v for v in variants if all(r.task == "segmentation" for r in v.first.records)]
    groups = by_stream(pixels) if pixels else []
    return [
        _heat(group, "" if len(groups) == 1 else f"-{place + 1}")
        for place, group in enumerate(groups)
    ]


def mean_classes(variant: Variant) -> Cells:
    """(round, class name) to IoU in percent, the mean over seeds."""
    found: dict[tuple[int, str], list[float]] = {}
    for run in variant.runs:
        names = class_names(run.path, max(r.classes for r in run.records))
        for (number, place), value in class_scores(run.records).items():
            found.setdefault((number, names[place]), []).append(value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _heat(group: Sequence[Variant], ending: str) -> Figure:
    tables = [mean_classes(variant) for variant in group]
    numbers = sorted({number for table in tables for number, _ in table})
    first = group[0].first
    order = class_names(first.path, max(r.classes for r in first.records))
    known = {name for table in tables for _, name in table}
    classes = [name for name in order if name in known]
    base, words = reference(group, tables)
    apart = [abs(v - b.get(k, v)) for t, b in zip(tables, base, strict=True) for k, v in t.items()]
    reach = max([*apart, 1.0])
    columns = max(1, min(len(group), 15 // max(len(numbers), 1), 5))
    lines = math.ceil(len(group) / columns)
    name = f"iou-per-class{ending}"
    alt = (
        f"A table of IoU for {len(classes)} classes in {len(numbers)} rounds, coloured by the "
        f"difference to {words}, for {names_of(group)}."
    )
    with canvas(940, lines * (25 * len(classes) + 84)) as figure:
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for place, axes in enumerate(grid.flat):
            if place >= len(group):
                axes.axis("off")
                continue
            panel(axes, tables[place], base[place], numbers, classes, reach, "miou")
            axes.set_title(fold(group[place].label, 105 // columns), color=group[place].colour)
            axes.set_yticks(range(len(classes)), classes)
        grid[0][0].set_ylim(len(classes) - 0.5, -0.5)
        svg = to_svg(figure, name, alt)
    rows = tuple(
        (variant.label, number + 1, one, rounded(value))
        for variant, table in zip(group, tables, strict=True)
        for (number, one), value in table.items()
    )
    return Figure(
        name,
        "IoU per class and round",
        "Intersection over union of each class in percent, over all pixels of a round, mean over "
        f"seeds. Blue is better and orange worse than {words.replace('domain', 'class')}, at most "
        f"{reach:.1f} points. A class that no pixel of a round has, and that nothing was taken "
        "for, is left empty.",
        alt,
        svg,
        Data(("run", "round", "class", "IoU"), rows),
        720,
    )
