"""IoU of every class in every round, for segmentation runs."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.report._heat import Cells, HeatMap
from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Part
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
    first, name = group[0].first, f"iou-per-class{ending}"
    order = class_names(first.path, max(r.classes for r in first.records))
    known = {name for table in tables for _, name in table}
    classes = [name for name in order if name in known]
    heat = HeatMap(group, tables, classes, "miou")
    alt = heat.alt("IoU", "classes")
    return Figure(
        name,
        "IoU per class and round",
        "Intersection over union of each class in percent, over all pixels of a round, mean over "
        f"seeds. Blue is better and orange worse than {heat.words.replace('domain', 'class')}, at "
        f"most {heat.reach:.1f} points. A class that no pixel of a round has, and that nothing was "
        "taken for, is left empty.",
        alt,
        heat.draw(name, alt, classes),
        Data(("run", "round", "class", "IoU"), heat.data()),
        720,
    )
