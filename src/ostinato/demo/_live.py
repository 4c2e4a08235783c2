"""Showing where each of the demo's runs is.

Workers write records into their run's folder; the screen is drawn from those folders alone, so
that nothing has to be sent between processes, and an interrupted demo goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ostinato.demo._folder import Job
from ostinato.demo._plan import DOMAINS

_BAR = 12
# Widths that stay as they are while names come and go.
COLUMNS = {
    "method": 21,
    "seed": 4,
    "": _BAR,
    "error": 7,
    "domain": max(map(len, DOMAINS)),
    "found as": 8,
}


def watcher(console: Console) -> Callable[[list[Job], Callable[[float], bool]], None]:
    """A live picture on a terminal, plain lines elsewhere."""
    live = console.is_terminal and not console.is_dumb_terminal

    def watch(jobs: list[Job], pending: Callable[[float], bool]) -> None:
        (_draw if live else _tell)(jobs, pending, console)

    return watch


def _draw(jobs: list[Job], pending: Callable[[float], bool], console: Console) -> None:
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while pending(0.5):
            live.update(picture(jobs))


def _tell(jobs: list[Job], pending: Callable[[float], bool], console: Console) -> None:
    told: set[int] = set()
    left = True
    while left:
        left = pending(1.0)
        for number, job in enumerate(jobs):
            job.look()
            if len(job.records) >= job.batches and number not in told:
                told.add(number)
                text = f"{job.row.title:16} seed {job.spec.seed}  error {job.error or 0:.1f} %"
                console.print(text, highlight=False, soft_wrap=True)


def picture(jobs: list[Job]) -> Table:
    """One line per run: how far it is, its error so far, and the domain it is in."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name, width in COLUMNS.items():
        table.add_column(name, no_wrap=True, min_width=width)
    for job in jobs:
        job.look()
        table.add_row(*_line(job))
    return table


def _line(job: Job) -> list[str]:
    done = len(job.records)
    full = _BAR * done // max(job.batches, 1)
    bar = ("━" * full + "╺" * (done > 0)).ljust(_BAR)[:_BAR]
    error = "" if job.error is None else f"{job.error:5.1f} %"
    shown = found = ""
    if 0 < done < job.batches:
        last = job.records[-1]
        shown = last.domain.replace("_", " ")
        if last.decision is not None:
            found = f"{last.decision.domain}{' new' if last.decision.is_new else ''}"
    return [job.row.title, str(job.spec.seed), f"[green]{bar}[/]", error, shown, found]
