"""What segmentation runs saw: image, label, and predictions before and after adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Missing, Part, rounded
from ostinato.report.style import canvas, to_svg
from ostinato.report.timeline import readable
from ostinato.running.samples import Sample, read_samples
from ostinato.scoring.classes import class_names

_TITLE = "Predictions before and after"
UNLABELED = "#9a9a9a"
DOMAINS, ROUNDS = 8, 5
# Neighbours in a street differ in lightness as well as in hue, for those who see few hues.
_STREET = {
    "sky": "#a9d8f5", "building": "#e2bf95", "road": "#4b3f72", "pavement": "#d9a3d4",
    "tree": "#1d7a3e", "car": "#0b5cad", "pole": "#f5e663", "sign": "#f28e1c",
    "fence": "#6b4a26", "pedestrian": "#ff5c70", "bicyclist": "#8e0f2f", "wall": "#b08d6e",
    "terrain": "#a8d66d", "traffic light": "#ffc145", "truck": "#06304f", "bus": "#138a8a",
    "train": "#5fd3c4", "motorcycle": "#7f4fc9", "bicycle": "#c8409a",
}  # fmt: skip
_SAME = {"sidewalk": "pavement", "vegetation": "tree", "person": "pedestrian",
         "rider": "bicyclist", "traffic sign": "sign"}  # fmt: skip
_OTHERS = (
    *("#0a7fc0", "#e08214", "#009e73", "#d1495b", "#b565a7", "#4db3e6", "#8c6d31", "#6f6fd1"),
    *("#f5e663", "#06304f", "#ff9da7", "#5fd3c4", "#4b3f72", "#c8c8a9"),
)


def predictions_in_pictures(variants: Sequence[Variant]) -> list[Part]:
    """One figure for each variant that adapts and keeps samples; for the source model if alone."""
    if not any(r.task == "segmentation" for v in variants for r in v.first.records):
        return []  # whole images have one class each, which a picture would not show
    kept = [(v, samples) for v in variants if (samples := _first(v))]
    adapting = [(v, s) for v, s in kept if v.first.spec.get("method") != "source"]
    found: list[Part] = [
        _draw_pictures(samples, variant, number + 1)
        for number, (variant, samples) in enumerate(adapting or kept)
    ]
    note = "No run keeps samples yet: they are written in the middle of each domain's stretch."
    return found or [Missing("pictures", _TITLE, note)]


def _first(variant: Variant) -> list[Sample]:
    """The samples of the first seed that has some."""
    return next((found for run in variant.runs if (found := read_samples(run.path))), [])


def colours_of(names: Sequence[str]) -> list[str]:
    """A colour for each class, by its name where that is usual in a street.

    >>> colours_of(["road", "sidewalk", "cat"])
    ['#4b3f72', '#d9a3d4', '#0a7fc0']
    """
    usual = [_STREET.get(_SAME.get(name, name)) for name in names]
    left = iter([c for c in _OTHERS if c not in usual] * (1 + len(names) // 8))
    return [colour or next(left) for colour in usual]


def painted(classes: NDArray[np.uint8], colours: Sequence[str]) -> NDArray[np.uint8]:
    """Classes as colours; whatever is no class is grey.

    >>> painted(np.array([[0, 255]], np.uint8), ["#ff0000"]).tolist()
    [[[255, 0, 0], [154, 154, 154]]]
    """
    table = np.tile(_rgb(UNLABELED), (256, 1))
    table[: len(colours)] = [_rgb(colour) for colour in colours]
    return table[classes]


def _draw_pictures(samples: Sequence[Sample], variant: Variant, number: int = 1) -> Figure:
    """Domains in rows; image, label, the source model, and the method in every round."""
    name, label = f"pictures-{number}", variant.label
    domains = list(dict.fromkeys(s.domain for s in samples))[:DOMAINS]
    rounds = sorted({s.round for s in samples})[:ROUNDS]
    by_place = {(s.domain, s.round): s for s in samples}
    run, count = variant.first, max(r.classes for r in variant.first.records)
    names = class_names(run.path, count)
    colours = colours_of(names)
    heads = ["image", "label", "before", *(f"round {n + 1}" for n in rounds)]
    alt = (
        f"{label}: one image of each of {len(domains)} domains with its label, the prediction "
        f"before adaptation, and the predictions in {len(rounds)} rounds."
    )
    height, width = samples[0].image.shape[:2]
    side = min(190, 850 // len(heads))
    tall = side * height / width
    present = _present(samples, count)
    lines = -(-(len(present) + 1) // 6)
    with canvas(side * len(heads) + 80, (tall + 24) * len(domains) + 30 + 20 * lines) as figure:
        grid = figure.subplots(len(domains), len(heads), squeeze=False)
        for row, domain in enumerate(domains):
            _draw_row(grid[row], domain, [by_place.get((domain, n)) for n in rounds], colours)
        for column, head in enumerate(heads):
            grid[0][column].set_title(head, fontweight="normal", loc="center")
        _legend(figure, [(names[c], colours[c]) for c in present])
        svg = to_svg(figure, name, alt)
    left = len({s.domain for s in samples}) - len(domains)
    return Figure(
        name,
        f"{_TITLE}: {label}",
        "The image in the middle of each domain's stretch; before is the source model, and the "
        "rounds show what the method answered when the image came. The number below each "
        "prediction is its mIoU in percent on this image alone; grey pixels have no label."
        + (f" Not drawn: {left} more domains." if left > 0 else ""),
        alt,
        svg,
        Data(("run", "domain", "round", "image", "before", "after"), tuple(
            (label, s.domain, s.round + 1, s.key, rounded(s.before_iou), rounded(s.after_iou))
            for s in samples
        )),
        min(760, side * len(heads)),
    )  # fmt: skip


def _draw_row(
    row: Sequence[Any], domain: str, samples: Sequence[Sample | None], colours: Sequence[str]
) -> None:
    """One domain; a round that the run has not reached stays empty."""
    first = next(s for s in samples if s is not None)
    _show(row[0], first.image)
    _show(row[1], painted(first.label, colours))
    _show(row[2], painted(first.before, colours), first.before_iou)
    row[0].set_ylabel(readable(domain).replace(" ", "\n"), rotation=0, ha="right", va="center")
    for axes, sample in zip(row[3:], samples, strict=True):
        if sample is None:
            axes.axis("off")
        else:
            _show(axes, painted(sample.after, colours), sample.after_iou)


def _show(axes: Any, picture: NDArray[np.uint8], score: float | None = None) -> None:
    axes.imshow(picture, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    if score is not None:
        axes.set_xlabel(f"{score:.1f}", fontsize=10, labelpad=2)


def _present(samples: Sequence[Sample], count: int) -> list[int]:
    """The classes that some picture shows."""
    seen = {int(c) for s in samples for m in (s.label, s.before, s.after) for c in np.unique(m)}
    return [number for number in range(count) if number in seen]


def _legend(figure: Any, entries: Sequence[tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in entries]
    handles.append(Patch(color=UNLABELED, label="no label"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False,
        fontsize=11, handlelength=1.1, handleheight=1.1, columnspacing=1.4,
    )  # fmt: skip


def _rgb(colour: str) -> NDArray[np.uint8]:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.uint8)
