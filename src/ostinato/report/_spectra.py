"""The batches' descriptors on a plane, with the domains that were found in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.report._runs import Run, Variant
from ostinato.report.figure import Data, Figure, Missing, Part, Value, rounded
from ostinato.report.style import FAINT, INK, MARKERS, canvas, fold, shade, to_svg
from ostinato.report.timeline import readable

_Array = NDArray[np.float64]
_PANELS = 6
_NAMES = 5
_DENSE = 600
"""Points above which they are drawn as pixels."""
_SIGMAS = 2.0


@dataclass(frozen=True)
class Projection:
    """A plane: the two directions in which points vary most.

    >>> plane = Projection.fit(np.array([[0.0, 0, 0], [2, 0, 0], [0, 1, 0], [2, 1, 0]]))
    >>> [round(float(share), 2) for share in plane.explained]
    [0.8, 0.2]
    """

    mean: _Array
    axes: _Array
    explained: _Array

    @classmethod
    def fit(cls, points: _Array) -> Projection:
        """Principal components by singular values; signs fixed, so that results repeat."""
        mean = points.mean(0)
        _, sizes, rows = np.linalg.svd(points - mean, full_matrices=False)
        rows, sizes = rows[:2], sizes[:2] ** 2 / max(float((sizes**2).sum()), 1e-30)
        if len(rows) < 2:
            rows = np.vstack([rows, np.zeros((2 - len(rows), points.shape[1]))])
            sizes = np.append(sizes, np.zeros(2 - len(sizes)))
        strongest = np.abs(rows).argmax(1)
        signs = np.where(rows[np.arange(2), strongest] < 0, -1.0, 1.0)
        return cls(mean, rows * signs[:, None], sizes)

    def __call__(self, points: _Array) -> _Array:
        """(N, d) to (N, 2)."""
        placed: _Array = (points - self.mean) @ self.axes.T
        return placed


class _Ellipse(NamedTuple):
    """Where a domain lies: centre, half axes, and the angle of the first in degrees.

    >>> _Ellipse((0.0, 0.0), (2.0, 1.0), 30.0).radii
    (2.0, 1.0)
    """

    centre: tuple[float, float]
    radii: tuple[float, float]
    angle: float


def ellipse(points: _Array, weights: _Array, sigmas: float = _SIGMAS) -> _Ellipse:
    """The weighted mean and `sigmas` standard deviations of points on the plane.

    >>> ellipse(np.array([[0.0, 1], [0, -1], [0, 1], [0, -1]]), np.ones(4)).radii
    (2.0, 0.0)
    """
    share = weights / weights.sum()
    centre = share @ points
    apart = points - centre
    sizes, axes = np.linalg.eigh((apart * share[:, None]).T @ apart)
    first = axes[:, 1]
    return _Ellipse(
        (float(centre[0]), float(centre[1])),
        (sigmas * math.sqrt(max(sizes[1], 0.0)), sigmas * math.sqrt(max(sizes[0], 0.0))),
        math.degrees(math.atan2(first[1], first[0])) % 180.0,
    )


class _Described(NamedTuple):
    """A run's batches on the plane."""

    points: _Array
    images: _Array
    found: list[int]
    true: list[str]
    rounds: list[int]
    batches: list[int]


def _describe(run: Run, plane: Projection) -> _Described:
    """Place every batch that has a descriptor and a decision."""
    kept = [r for r in run.records if r.descriptor and r.decision is not None]
    return _Described(
        plane(descriptors(run)),
        np.array([float(r.images) for r in kept]),
        [r.decision.domain for r in kept if r.decision is not None],
        [r.domain for r in kept],
        [r.round for r in kept],
        [r.index for r in kept],
    )


def descriptors(run: Run) -> _Array:
    """(batches, d): the mean descriptor of each batch with a decision."""
    rows = [r.descriptor for r in run.records if r.descriptor and r.decision is not None]
    return np.array(rows, dtype=np.float64)


def descriptor_map(variants: Sequence[Variant]) -> list[Part]:
    """Descriptors by principal components, one panel per variant."""
    name, title = "descriptors", "Descriptors and the domains found in them"
    able = [v for v in variants if v.first.decided and len(descriptors(v.first)) >= 3]
    if not able:
        return [
            Missing(name, title, "These records keep no descriptors, so they cannot be placed.")
        ]
    shown = able[:_PANELS]
    planes: dict[tuple[str, int], Projection] = {}
    panels = []
    for variant in shown:
        points = descriptors(variant.first)
        key = (str(descriptor_of(variant.first)), points.shape[1])
        planes.setdefault(key, Projection.fit(points))
        panels.append((variant, planes[key], _describe(variant.first, planes[key])))
    alt = "; ".join(f"{v.label}: {len(set(d.found))} clusters of batches" for v, _, d in panels)
    columns = 1 if len(panels) == 1 else 2
    lines = math.ceil(len(panels) / columns)
    with canvas(620 if columns == 1 else 940, (460 if columns == 1 else 400) * lines) as figure:
        grid = figure.subplots(lines, columns, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(panels):
                _draw_map(axes, *panels[place])
            else:
                axes.axis("off")
        svg = to_svg(figure, name, alt)
    left = f" {len(able) - _PANELS} more are not drawn." if len(able) > _PANELS else ""
    return [
        Figure(
            name,
            title,
            "Each mark is a batch, placed by the two principal components of the batches' mean "
            "descriptors; colour and shape are the domain it was given to, × its centre and the "
            f"ellipse {_SIGMAS:g} standard deviations of its batches. Above each stand the "
            f"true domains in it. Panels with the same descriptor share their plane.{left}",
            alt,
            svg,
            Data(
                ("run", "batch", "round", "true domain", "found domain", "images",
                 "component 1", "component 2"),
                tuple(row for v, _, d in panels for row in _rows(v.label, d)),
            ),
            640,
        )
    ]  # fmt: skip


def descriptor_of(run: Run) -> Any:
    """Which descriptor the discriminator used, where the spec tells."""
    return run.setting("discriminator", "descriptor")


def _rows(label: str, placed: _Described) -> list[tuple[Value, ...]]:
    columns = zip(
        placed.batches, placed.rounds, placed.true, placed.found, placed.images, placed.points,
        strict=True,
    )  # fmt: skip
    return [
        (label, at, number + 1, true, found, int(images), rounded(x), rounded(y))
        for at, number, true, found, images, (x, y) in columns
    ]


def _draw_map(axes: Any, variant: Variant, plane: Projection, placed: _Described) -> None:
    from matplotlib.patches import Ellipse as Patch

    found = np.array(placed.found)
    for row, domain in enumerate(sorted(set(placed.found))):
        chosen = found == domain
        points = placed.points[chosen]
        axes.scatter(
            points[:, 0], points[:, 1], s=22, lw=0, alpha=0.75, color=shade(row),
            marker=MARKERS[row % len(MARKERS)], rasterized=len(found) > _DENSE,
        )  # fmt: skip
        place = ellipse(points, placed.images[chosen])
        axes.add_patch(
            Patch(
                place.centre, 2 * place.radii[0], 2 * place.radii[1], angle=place.angle,
                fill=False, ec=shade(row), lw=1.4,
            )
        )  # fmt: skip
        axes.plot(*place.centre, marker="x", color=INK, ms=8, mew=1.8, zorder=4)
    axes.margins(0.14, 0.2)
    first, second = (100 * float(share) for share in plane.explained)
    axes.set_xlabel(f"component 1 ({first:.0f} % of the variance)")
    axes.set_ylabel(f"component 2 ({second:.0f} %)")
    axes.set_title(fold(f"{variant.label}: {len(set(placed.found))} domains", 46))
    _name_true(axes, placed)


def _members(placed: _Described) -> dict[int, list[str]]:
    """The true domains that lie in each discovered one, a fifth of their batches or more."""
    true, found = np.array(placed.true), np.array(placed.found)
    names = dict.fromkeys(placed.true)
    return {
        domain: [n for n in names if (found[true == n] == domain).mean() >= 0.2]
        for domain in sorted(set(placed.found))
    }


def _name_true(axes: Any, placed: _Described) -> None:
    """The true domains of each cluster, above it, or where there is room nearby."""
    found = np.array(placed.found)
    notes = []
    for domain, names in _members(placed).items():
        chosen = found == domain
        place = ellipse(placed.points[chosen], placed.images[chosen])
        tilt = math.radians(place.angle)
        reach = math.hypot(place.radii[0] * math.sin(tilt), place.radii[1] * math.cos(tilt))
        more = [f"+ {len(names) - _NAMES} more"] if len(names) > _NAMES else []
        text = "\n".join([*map(readable, names[:_NAMES]), *more])
        if text:
            notes.append(
                axes.annotate(
                    text, xy=(place.centre[0], place.centre[1] + reach), xytext=(0, 3),
                    textcoords="offset points", ha="center", va="bottom", fontsize=10.5,
                    linespacing=1.0, zorder=5, annotation_clip=False,
                    arrowprops={"arrowstyle": "-", "color": FAINT, "lw": 0.8, "shrinkB": 0},
                )
            )  # fmt: skip
    _move_apart(axes, notes)


def _move_apart(axes: Any, notes: Sequence[Any]) -> None:
    """Move each name to the nearest place where it covers no other one and stays in view."""
    from matplotlib.text import Text

    axes.figure.draw_without_rendering()
    view, taken = axes.get_window_extent(), list[Any]()
    steps = sorted(
        ((15 * across, 14 * up) for across in range(-7, 8) for up in range(-9, 10)),
        key=lambda move: math.hypot(0.6 * move[0], move[1]),
    )
    for note in sorted(notes, key=lambda one: one.xy[1]):
        own = Text.get_window_extent(note).padded(1.5)
        free = (
            move
            for move in steps
            if view.x0 <= own.x0 + move[0] and own.x1 + move[0] <= view.x1
            and view.y0 <= own.y0 + move[1] and own.y1 + move[1] <= view.y1
            and not any(own.translated(*move).overlaps(other) for other in taken)
        )  # fmt: skip
        across, up = next(free, (0, 0))
        note.set_position((across, 3 + up))
        taken.append(own.translated(across, up))
