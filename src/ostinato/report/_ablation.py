"""What each descriptor brings, where runs differ in it alone."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.report._over_time import WORDS, heading
from ostinato.report._runs import Run, Variant
from ostinato.report._spectra import descriptor_of
from ostinato.report.figure import Data, Figure, Missing, Part, rounded
from ostinato.report.style import canvas, to_svg
from ostinato.scoring.forgetting import higher_is_better


def descriptor_ablation(variants: Sequence[Variant]) -> list[Part]:
    """What each descriptor brings, where runs differ in it alone."""
    name, title = "descriptor-ablation", "What images are described by"
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        if variant.first.decided and descriptor_of(variant.first) is not None:
            groups.setdefault(_rest(variant.first), []).append(variant)
    members = max(groups.values(), key=len, default=[])
    if len(members) < 2:
        return [Missing(name, title, "No two of these runs differ in the descriptor alone.")]
    metric = members[0].first.summary.metric
    word = WORDS["accuracy" if metric == "error" else metric]

    def value(mean: float) -> float:
        return mean if higher_is_better(metric) else 100.0 - mean

    members = sorted(members, key=lambda v: value(v.score))
    labels = [str(descriptor_of(v.first)) for v in members]
    alt = "; ".join(
        f"{label}: {value(v.score):.1f} % {word}" for label, v in zip(labels, members, strict=True)
    )
    with canvas(700, 70 + 44 * len(members)) as figure:
        axes = figure.subplots()
        for row, variant in enumerate(members):
            dots = [value(run.summary.mean) for run in variant.runs]
            axes.plot(value(variant.score), row, marker="|", ms=22, mew=2.4, color=variant.colour)
            axes.scatter(dots, [row] * len(dots), s=60, color=variant.colour, lw=0, zorder=3)
            axes.annotate(
                f"{value(variant.score):.1f} %, {variant.first.summary.domains_found} domains",
                xy=(max(dots), row), xytext=(9, 0), textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_yticks(range(len(members)), labels)
        axes.set_ylim(-0.6, len(members) - 0.4)
        points = [value(run.summary.mean) for v in members for run in v.runs]
        room = max(1.0, 0.25 * (max(points) - min(points)))
        axes.set_xlim(min(points) - room, max(points) + 2.2 * room)
        axes.set_xlabel(f"{word} in %")
        axes.grid(axis="x")
        svg = to_svg(figure, name, alt)
    rows = tuple(
        (label, run.seed, rounded(value(run.summary.mean)), run.summary.domains_found)
        for label, v in zip(labels, members, strict=True)
        for run in v.runs
    )
    return [
        Figure(
            name,
            title,
            f"{heading(word)} of runs that differ in the descriptor alone; one dot per "
            "seed. The axis does not start at zero.",
            alt,
            svg,
            Data(("descriptor", "seed", word, "domains found"), rows),
        )
    ]


def _rest(run: Run) -> str:
    """Everything that an ablation of the descriptor holds fixed."""
    settings = dict(run.spec.get("settings") or {})
    settings["discriminator"] = {**settings.get("discriminator", {}), "descriptor": None}
    data = {k: v for k, v in (run.spec.get("data") or {}).items() if k != "seed"}
    spec = {k: v for k, v in run.spec.items() if k not in ("seeds", "device")}
    return repr(sorted({**spec, "settings": settings, "data": data}.items()))
