"""`ostinato demo`: run, table, report."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ostinato.bench.results import RunFolder
from ostinato.bench.summary import Summary
from ostinato.demo.live import Job, finished, run_all, stamp
from ostinato.demo.plan import BATCH, DOMAINS, ROUNDS, Plan, Row
from ostinato.errors import ConfigError

HOME = "ostinato-demo"


def demo(quick: bool = False, out: Path | None = None) -> None:
    """Run the plan, print the table, write the report; its path comes last."""
    started = time.perf_counter()
    console = Console(stderr=True)
    plan = Plan.make(quick)
    home = _home(out, console)
    jobs = _jobs(plan, home)
    if all(finished(job.home) for job in jobs):
        for job in jobs:  # a demo that was seen to its end starts anew
            shutil.rmtree(job.home)
        jobs = _jobs(plan, home)
    elif any(job.home.exists() for job in jobs):
        console.print(f"Going on with the demo in {home}.", highlight=False)
    console.print(plan.describe(), highlight=False)
    try:
        run_all(jobs, console)
    except KeyboardInterrupt:
        again = "ostinato demo" + " --quick" * quick + (f" --out {out}" if out else "")
        console.print(f"\nInterrupted. To go on: {again}", highlight=False)
        raise SystemExit(130) from None
    print(table_text(plan, jobs))
    page = _report(jobs, home)
    print(f"{time.perf_counter() - started:.0f} s in all. Report: {page}")


def _home(out: Path | None, console: Console) -> Path:
    home = out or Path(HOME)
    try:
        home.mkdir(parents=True, exist_ok=True)
        stamp(home)
    except OSError as error:
        if out is not None:
            raise ConfigError(f"Cannot write to {out}: {error.strerror}. Choose --out.") from None
        home = Path(tempfile.mkdtemp(prefix="ostinato-demo-"))
        console.print(f"This folder cannot be written to; using {home}.", highlight=False)
    return home


def _jobs(plan: Plan, home: Path) -> list[Job]:
    per_domain = -(-plan.images // BATCH)
    jobs = []
    for row, spec in plan.specs():
        name = f"{row.title.lower().replace(' ', '-')}-{spec.seed}-{plan.images}"
        jobs.append(Job(row, spec, home / "runs" / name, per_domain * len(DOMAINS) * ROUNDS))
    return jobs


def table_text(plan: Plan, jobs: list[Job]) -> str:
    """The table as text: error per round, mean, RF, domains found and speed, over all seeds."""
    wide = Console(width=100, no_color=not sys.stdout.isatty(), highlight=False)
    many = len(plan.seeds) > 1
    table = Table(
        title="Error in %" + (", mean ± spread over seeds" if many else ""),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    columns = ["round 1", "round 2", "round 3", "mean", "RF", "domains", "images/s"]
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in plan.rows:
        mine = [_summary(job) for job in jobs if job.row == row]
        table.add_row(*_cells(row, mine))
    with wide.capture() as kept:
        wide.print(table)
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


def _summary(job: Job) -> Summary:
    return RunFolder.open(next(job.home.glob("*/summary.json")).parent).summary()


def _report(jobs: list[Job], home: Path) -> Path:
    from ostinato.report.command import write_report

    runs = [next(job.home.glob("*/summary.json")).parent for job in jobs]
    return write_report(runs, home / "report.html", title="Ostinato demo").resolve()
