"""`ostinato demo`: run, table, report."""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ostinato.demo._folder import Job, choose_home, prepare
from ostinato.demo._live import watcher
from ostinato.demo._plan import ROUNDS, Plan, Row
from ostinato.demo._workers import run_all
from ostinato.scoring.summary import Summary

_WIDE = 96


def demo(quick: bool = False, out: Path | None = None) -> None:
    """Run the plan, print the table, write the report; its path comes last."""
    home, reason = choose_home(out)
    again = "ostinato demo" + " --quick" * quick
    again += f" --out {home}" if out is not None or reason is not None else ""
    console = Console(stderr=True)
    if reason is not None:
        _note(console, reason)
    try:
        _show(Plan.make(quick), home, console)
    except KeyboardInterrupt:
        _note(console, f"\nInterrupted. To go on: {again}")
        raise SystemExit(130) from None


def _show(plan: Plan, home: Path, console: Console) -> Path:
    """The demo of one plan in a folder that is ready for it; returns the report's path."""
    started = time.perf_counter()
    jobs, begun = prepare(plan, home)
    if begun:
        _note(console, f"Going on with the demo in {home}.")
    _note(console, plan.describe())
    run_all(jobs, watcher(console))
    _say(_table_text(plan, jobs, _columns()))
    page = _report(jobs, home / plan.page)
    _say(f"{time.perf_counter() - started:.0f} s in all. Report: {page}")
    return page


def _table_text(plan: Plan, jobs: list[Job], width: int = 100) -> str:
    """The table as text: error per round, mean, RF, domains found and speed, over all seeds.

    It is plain text, without any control characters; below 96 columns its gaps get smaller.
    """
    many = len(plan.seeds) > 1
    table = Table(
        title="Error in %" + (", mean ± spread over seeds" if many else ""),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, int(width >= _WIDE)),
    )
    columns = [f"round {number + 1}" for number in range(ROUNDS)]
    columns += ["mean", "RF", "domains", "images/s"]
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in plan.rows:
        table.add_row(*_cells(row, [job.summary() for job in jobs if job.row == row]))
    plain = Console(width=100, color_system=None, force_terminal=False, highlight=False)
    with plain.capture() as kept:
        plain.print(table)
    return "\n".join(line.rstrip() for line in kept.get().strip().splitlines())


def _cells(row: Row, runs: list[Summary]) -> list[str]:
    cells = [row.title]
    for number in range(ROUNDS):
        cells.append(_spread([run.rounds[number].by_images for run in runs]))
    cells.append(_spread([run.mean for run in runs]))
    cells.append(_spread([run.rf or 0.0 for run in runs], sign=True))
    found = sorted({run.domains_found for run in runs if run.domains_found is not None})
    cells.append("–".join(map(str, found[:1] + found[1:][-1:])) if found else "")
    cells.append(f"{statistics.mean(run.cost.images_per_second or 0 for run in runs):.0f}")
    return cells


def _spread(values: list[float], sign: bool = False) -> str:
    mean = f"{statistics.mean(values):{'+' if sign else ''}.1f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.1f}"


def _report(jobs: list[Job], page: Path) -> Path:
    from ostinato.report.command import write_report

    # Without a home of its own it makes a temporary one, and says so at length.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    return write_report([job.folder().path for job in jobs], page, title="Ostinato demo").resolve()


def _columns() -> int:
    """Columns of the terminal that shows the table; a file has room enough."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _WIDE
    except (OSError, ValueError, AttributeError):
        return _WIDE


def _note(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _say(text: str) -> None:
    """Print, whatever reads it: a reader that has gone away, or one without these letters."""
    if sys.stdout is None:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        # What follows, the flush at exit too, goes nowhere; the report is written all the same.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
