"""A trial's page: the advice first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ostinato import __version__
from ostinato.report.page import page_style, read_template
from ostinato.report.style import plotting
from ostinato.trial._advice import Advice, Outcome, advise
from ostinato.trial._carry_out import Results
from ostinato.trial._figures import gain_by_domain, gain_by_traffic
from ostinato.trial._plan import BATCH, FORWARD, ROBUST, SOURCE, Traffic
from ostinato.trial.setting import Request

_TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Facts:
    """What the page says about the trial itself.

    Attributes:
        request: what was asked.
        labelled: whether labels are the user's.
        clean: images that statistics are of.
        shown: images of a domain.
        note: what was to be said about the labels.
        device: what computed.
        report: the file with every figure of the returning runs; empty where there is none.
    """

    request: Request
    labelled: bool
    clean: int
    shown: int
    note: str
    device: str
    report: str = ""

    @property
    def word(self) -> str:
        """What is counted."""
        return "error" if self.labelled else "disagreement"


class Cell(NamedTuple):
    """One cell of the table.

    >>> Cell("21.4", "+5.0", True).best
    True
    """

    text: str
    gain: str
    best: bool


class _Line(NamedTuple):
    """One line of the table.

    >>> _Line("One by one", [Cell("31.7", "", False)]).title
    'One by one'
    """

    title: str
    cells: list[Cell]


def render(results: Results, traffic: Sequence[Traffic], facts: Facts) -> str:
    """The page's HTML."""
    plotting()
    template = read_template("ostinato.trial", _TEMPLATE)
    advice = advise(results.outcomes, ROBUST.title, results.extra, facts.word)
    found = dict.fromkeys(one.row for one in results.outcomes)
    first = [row.title for row in (SOURCE, ROBUST, FORWARD) if row.title in found]
    rows = [*first, *(row for row in found if row not in first)]  # ours in view on a phone, too
    text: str = template.render(
        title=f"Trial of {facts.request.model}",
        style=page_style(),
        about=_about(facts, traffic),
        advice=advice,
        word=facts.word,
        rows=rows,
        lines=[_line(kind, rows, results.outcomes) for kind in traffic],
        figures=_figures(results, traffic),
        costs=_costs(results.outcomes),
        batch=BATCH,
        device=facts.device,
        code=code(facts.request, advice),
        code_note=_code_note(facts),
        traffic=traffic,
        notes=_notes(facts),
        refused=results.refused,
        version=__version__,
        runs=", ".join(f"runs/{name}" for name in results.folders),
        report=facts.report,
    )
    return text


def _about(facts: Facts, traffic: Sequence[Traffic]) -> str:
    images = sum(kind.stream.images for kind in traffic)
    what = "own domains" if facts.request.domains else f"severity {facts.request.severity}"
    return (
        f"Images from {facts.request.images}: {facts.clean} of them for statistics, {facts.shown} "
        f"others shown in every domain ({what}). Each method gave {images:,} answers in all."
    )


def _line(kind: Traffic, rows: Sequence[str], outcomes: Sequence[Outcome]) -> _Line:
    mine = {one.row: one for one in outcomes if one.traffic == kind.name}
    errors = [one.error for one in mine.values()]
    best = min(errors) if len(set(errors)) > 1 else None
    cells = []
    for row in rows:
        one = mine.get(row)
        if one is None:
            cells.append(Cell("–", "", False))
            continue
        gain = "" if one.gain is None else f"{one.gain.estimate:+.1f}"
        cells.append(Cell(f"{one.error:.1f}", gain, one.error == best))
    return _Line(kind.title, cells)


def _figures(results: Results, traffic: Sequence[Traffic]) -> list[object]:
    drawn: list[object] = []
    if any(one.gain is not None for one in results.outcomes):
        drawn.append(gain_by_traffic(results.outcomes, traffic, ROBUST.title))
    for one in results.outcomes:
        if one.traffic == "returning" and one.row == ROBUST.title and one.domains:
            drawn.append(gain_by_domain(one))
    return drawn


def _costs(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    mine = [one for one in outcomes if one.traffic == "returning"]
    base = next((one.milliseconds for one in mine if one.row == SOURCE.title), None)
    lines: list[tuple[str, ...]] = []
    for one in mine:
        time = "–" if one.milliseconds is None else f"{one.milliseconds:.1f}"
        ratio = "–" if not base or one.milliseconds is None else f"{one.milliseconds / base:.1f}"
        found = "–" if one.found is None else str(one.found)
        lines.append((one.row, time, ratio, f"{one.trained:,}".replace(",", "\u202f"), found))
    return lines


def code(request: Request, advice: Advice) -> str:
    """The lines that a user adds to a program with a model of their own."""
    if advice.preset is None:
        return ""
    extra = "" if request.normalize == "model" else f', normalize="{request.normalize}"'
    preset = "" if advice.preset == "robust" else f', preset="{advice.preset}"'
    return (
        f"statistics = ostinato.collect_statistics(model, clean_images{extra})\n"
        f"adapted = ostinato.adapt(model, statistics=statistics{preset}{extra})\n"
        "logits = adapted(images)"
    )


def _code_note(facts: Facts) -> str:
    return (
        "clean_images and images are (batch, 3, height, width), uint8 or float in [0, 1], before "
        "normalisation. The statistics of this trial are kept beside the page in "
        "statistics.safetensors: adapt takes that path too."
    )


def _notes(facts: Facts) -> list[tuple[str, str]]:
    count = (
        "Labels are yours: error is the share of wrong answers."
        if facts.labelled
        else "No labels fit the model's outputs, so the source model's answer to the ordinary "
        "image stands for the truth: disagreement is how often an answer to a shifted "
        "image differs from it. It says what a shift changes, not whether the model is right."
    )
    notes = [("What is counted", count)]
    if facts.note:
        notes.append(("About the labels", facts.note))
    if not facts.request.domains:
        notes.append(
            (
                "The domains",
                "The 15 common corruptions, made of your images. Your own traffic is not among "
                "them: where you have images of it, name them with --domains NAME=DIR.",
            )
        )
    notes.append(
        (
            "The peers",
            "They run at their authors' settings, chosen for ImageNet and larger models. Where "
            "they hardly move, another learning rate may help: 'ostinato search' looks for it.",
        )
    )
    notes.append(
        (
            "What chance leaves open",
            "Intervals come from drawing the images anew, 2,000 times; one seed, one order of "
            "domains. A trial is short: methods that learn slowly gain more in longer streams.",
        )
    )
    return notes
