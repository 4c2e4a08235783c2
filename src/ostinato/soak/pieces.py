"""Several soaks side by side, each with its own seed and folder."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

from ostinato.soak._supervisor import SHOWN, progress, soak
from ostinato.soak.plan import Plan, settle_plan


def run_pieces(
    out: Path, plan: Plan, jobs: int, *, batches: int | None, seconds: float | None, kills: int
) -> tuple[Path, ...]:
    """Run the pieces of a soak until all are done; the folders that hold them.

    One piece lies in `out` itself, several in folders below it. Whatever ends one of them with an
    error, or Ctrl-C, ends all of them; what is done is kept.
    """
    folders = (out,) if jobs == 1 else tuple(out / f"piece-{n:02d}" for n in range(jobs))
    plans = [plan.replace(seed=plan.seed + n) for n in range(jobs)]
    for folder, one in zip(folders, plans, strict=True):
        settle_plan(folder, one)  # refused before any of them starts
    share = None if batches is None else -(-batches // jobs)
    stop = Event()
    with ThreadPoolExecutor(jobs) as pool:  # threads that wait; the work is in processes
        running = [
            pool.submit(
                soak,
                folder,
                one,
                batches=share,
                seconds=seconds,
                kills=0 if jobs > 1 and n == 0 else kills,
                stop=stop,
            )
            for n, (folder, one) in enumerate(zip(folders, plans, strict=True))
        ]
        try:
            _watch(running, folders, share)
        finally:
            stop.set()
    return folders


def _watch(running: list[Future[None]], folders: tuple[Path, ...], share: int | None) -> None:
    """Show how it goes; the first error ends the waiting."""
    shown = time.monotonic()
    pending = set(running)
    while pending:
        done, pending = wait(pending, timeout=0.2)
        for one in done:
            one.result()
        if time.monotonic() - shown > SHOWN or not pending:
            shown = time.monotonic()
            for folder in folders:
                print(f"{folder.name}: {progress(folder, share)}", flush=True)
