"""`ostinato trial`: from a model and a folder of images to a page."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console

from ostinato.data.datasets.base import check_severity
from ostinato.errors import ConfigError
from ostinato.models import VisionModel, count_outputs
from ostinato.ops.files import write_atomically
from ostinato.running.devices import resolve_device
from ostinato.running.provenance import describe_device
from ostinato.running.runner import Interrupted
from ostinato.trial._carry_out import Results, carry_out
from ostinato.trial._estimate import DEFAULT, fitting_limit, in_words, measure_pace, seconds
from ostinato.trial._images import Pictures, Taken, corrupted, own_domains, split, take_images
from ostinato.trial._page import Facts, render
from ostinato.trial._plan import Row, Traffic, all_traffic, rows
from ostinato.trial.setting import (
    Preparations,
    Request,
    check_same,
    question,
    read_question,
    write_question,
)

PAGE, REPORT = "trial.html", "report.html"


def trial(request: Request, home: Path, *, estimate_only: bool = False) -> Path | None:
    """Try our method and two peers on a user's model and images; returns the page's path.

    Args:
        request: what is asked.
        home: the trial's folder; a trial that was interrupted there goes on.
        estimate_only: say how long it would take, and stop.
    """
    console = Console(stderr=True)
    check_severity(request.severity)
    chosen = rows(request.peers)
    before = read_question(home)
    material = _Material.lay(request)
    asked = question(request, request.limit, material.digest, request.load())
    if before is not None:
        check_same(home, before, asked)
        _say(console, f"Going on with the trial in {home}.")
    limit = request.limit or (before or {}).get("limit")
    preparations = Preparations(home, request, material.clean)
    if limit is None:
        # What is prepared for the timing belongs to this question, which is kept from now on.
        write_question(home, asked)
        limit = _afford(request, preparations, material, chosen, console)
    if estimate_only:
        return None
    write_question(home, {**asked, "limit": limit})
    traffic = all_traffic(material.pictures(limit))
    try:
        results = carry_out(home, preparations, traffic, chosen, console)
    except Interrupted:
        _say(console, "\nInterrupted. The same command goes on where it stopped.")
        raise SystemExit(130) from None
    return _write(home, request, material, limit, traffic, results)


class _Material:
    """Everything that was read for a trial: clean images, shown images, own domains."""

    def __init__(
        self, request: Request, clean: Taken, shown: Taken, own: dict[str, Taken], outputs: int
    ) -> None:
        self.request, self.clean, self.shown, self.own = request, clean, shown, own
        self.outputs = outputs

    @classmethod
    def lay(cls, request: Request) -> _Material:
        """Read images with the model at hand; refuse what cannot be scored."""
        model = request.load()
        taken = take_images(request.images, model, request.normalize)
        clean, shown = split(taken)
        own = {
            name: take_images(place, model, request.normalize)
            for name, place in request.domains.items()
        }
        bare = [name for name, found in own.items() if not found.labelled]
        if bare:
            raise ConfigError(
                f"The images of {bare[0]} have no labels that fit the model's outputs "
                f"({own[bare[0]].note or 'no class folders'}), and without them nobody knows which "
                "answers are right. Sort them into class folders, or leave --domains out: "
                "corruptions of ordinary images need no labels."
            )
        vision = VisionModel(model, normalize=request.normalize)
        outputs = count_outputs(vision, taken.images[:1], request.model, "another model")
        return cls(request, clean, shown, own, outputs)

    @property
    def available(self) -> int:
        """Images that the smallest domain has."""
        return min([len(self.shown), *(len(taken) for taken in self.own.values())])

    @property
    def digest(self) -> str:
        """A hash of all images."""
        return "-".join(part.digest()[:8] for part in (self.clean, self.shown, *self.own.values()))

    def pictures(self, limit: int) -> Pictures:
        """The images of all domains, so many of each."""
        if self.own:
            return own_domains(self.shown, self.own, limit, self.outputs)
        return corrupted(self.shown, limit, self.request.severity, self.outputs)


def _afford(
    request: Request,
    preparations: Preparations,
    material: _Material,
    chosen: list[Row],
    console: Console,
) -> int:
    """How many images a domain fit into the time; says how long that takes."""
    most = min(material.available, DEFAULT)
    _say(console, "Timing a few batches of each method ...")
    probe = material.pictures(most)
    traffic = all_traffic(probe)
    shifted = probe.domain(probe.domains()[1]).indices
    shown = torch.stack([probe.image(int(i)) for i in shifted])
    pace = measure_pace(request, preparations, chosen, shown)
    whole = seconds(traffic, chosen, pace)
    limit = fitting_limit(material.available, request.minutes, whole, most)
    expected = whole * limit / most
    _say(
        console,
        f"{len(traffic)} kinds of traffic, {len(chosen)} methods, {limit} images a domain: "
        f"{in_words(expected)}. Ctrl-C keeps what is done; the same command goes on.",
    )
    return limit


def _write(
    home: Path,
    request: Request,
    material: _Material,
    limit: int,
    traffic: list[Traffic],
    results: Results,
) -> Path:
    from ostinato.report.command import write_report

    report = ""
    if results.folders.get("returning"):
        title = f"Trial of {request.model}: domains that return"
        write_report(list(results.folders["returning"]), home / REPORT, title)
        report = REPORT
    facts = Facts(
        request,
        material.shown.labelled,
        len(material.clean),
        limit,
        material.shown.note,
        describe_device(resolve_device(request.device)),
        report,
    )
    page = home / PAGE
    write_atomically(page, render(results, traffic, facts).encode())
    return page


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show(page: Path | None) -> None:
    """Print where the page lies."""
    if page is not None and sys.stdout is not None:
        print(page)
