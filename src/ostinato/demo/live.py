"""Running the demo's jobs on all cores, and showing where each of them is.

Workers write records into their run's folder; the screen is drawn from those folders alone, so
that nothing has to be sent between processes, and an interrupted demo goes on where it was.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ostinato.bench.record import Record
from ostinato.bench.spec import Spec
from ostinato.demo.plan import Row

BAR = 16


@dataclass
class Job:
    """One run of the demo and its own folder."""

    row: Row
    spec: Spec
    home: Path
    batches: int
    done: int = 0
    wrong: int = 0
    seen: int = 0
    last: Record | None = None
    _read: int = 0

    def look(self) -> None:
        """Take in the records written since the last look."""
        for path in self.home.glob("*/records.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                record = Record.from_line(line.decode())
                self.done += 1
                self.wrong += record.counted - record.correct
                self.seen += record.counted
                self.last = record


def run_all(jobs: list[Job], console: Console) -> None:
    """Run every job; on Ctrl-C stop the workers, whose folders can be resumed."""
    cores = _cores()
    workers = max(1, min(cores, len(jobs), 8))
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_start, initargs=(max(1, cores // workers),)
    )
    try:
        futures = [pool.submit(run_one, job.spec, str(job.home)) for job in jobs]
        _watch(jobs, futures, console)
        for future in futures:
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def run_one(spec: Spec, home: str) -> None:
    """One run, in a worker; the robust row also keeps its experts' attention."""
    from ostinato.bench.runner import run

    wanted = spec.preset == "robust"
    run(spec, out=home, quiet=True, finish=_keep_attention if wanted else None)


def _start(threads: int) -> None:
    """A worker's own share of the cores; Ctrl-C reaches the runner, not a traceback."""
    import torch

    torch.set_num_threads(threads)


def _keep_attention(method: Any, stream: Any, folder: Any) -> None:
    """The first image of three domains through all experts, for the report."""
    from ostinato.report.attention import write_attention

    chosen: dict[str, tuple[Any, int]] = {}
    for record in folder.records():
        if record.decision is not None and record.domain not in chosen:
            chosen[record.domain] = (stream[record.index].images[0], record.decision.domain)
    few = dict(list(chosen.items())[:3])
    if not few:
        return
    import torch

    images = torch.stack([image for image, _ in few.values()])
    owners = [domain for _, domain in few.values()]
    if set(owners) <= set(method.pool.domains):
        write_attention(method, images, folder.path, domains=owners, titles=list(few))


def _watch(jobs: list[Job], futures: list[Future[None]], console: Console) -> None:
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while _pending(futures, 0.5):
                live.update(_picture(jobs))
        return
    told: set[int] = set()
    while True:
        pending = _pending(futures, 1.0)
        for number, job in enumerate(jobs):
            job.look()
            if job.done >= job.batches and number not in told:
                told.add(number)
                console.print(
                    f"{job.row.title:16} seed {job.spec.seed}  "
                    f"error {100 * job.wrong / max(job.seen, 1):.1f} %"
                )
        if not pending:
            return


def _pending(futures: list[Future[None]], seconds: float) -> bool:
    done, pending = wait(futures, timeout=seconds)
    for future in done:
        future.result()  # a failed run ends the demo at once
    return bool(pending)


def _picture(jobs: list[Job]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("method", "seed", "", "error so far", "domain shown", "domain found"):
        table.add_column(name)
    for job in jobs:
        job.look()
        full = BAR * job.done // max(job.batches, 1)
        bar = "━" * full + "╺" * (0 < job.done < job.batches) + " " * (BAR - full)
        error = f"{100 * job.wrong / job.seen:5.1f} %" if job.seen else ""
        shown = "" if job.last is None or job.done >= job.batches else job.last.domain
        found = ""
        if job.last is not None and job.last.decision is not None:
            found = f"{job.last.decision.domain}{' new' if job.last.decision.is_new else ''}"
        table.add_row(job.row.title, str(job.spec.seed), f"[green]{bar}[/]", error, shown, found)
    return table


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def finished(home: Path) -> bool:
    """Whether a job's run is complete."""
    return any(home.glob("*/summary.json"))


def stamp(path: Path) -> None:
    """Mark a folder as a demo's, so that a later demo may clear it."""
    marker = {"made by": "ostinato demo", "at": time.strftime("%Y-%m-%d %H:%M")}
    (path / "demo.json").write_text(json.dumps(marker) + "\n", encoding="utf-8")
