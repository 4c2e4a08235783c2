"""The demo's runs on all cores: started, stopped by Ctrl-C, never left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from ostinato.demo._folder import Job
from ostinato.errors import OstinatoError
from ostinato.running.spec import Spec

_WORKERS = 3
"""At most: each takes 0.7 GiB, and a demo should stay within 3."""
_GRACE = 3.0
"""Seconds that runs have to save where they are after Ctrl-C."""

Watch = Callable[[list[Job], Callable[[float], bool]], None]
_stop: Event | None = None  # a worker's own: set when no further run is to start


def run_all(jobs: list[Job], watch: Watch) -> None:
    """Run every job that is not complete, while `watch` shows them.

    `watch` gets the jobs and a function that waits some seconds and says whether runs are left.
    On Ctrl-C the runs save where they are; whatever else ends this ends the workers too.
    """
    cores = _cores()
    count = max(1, min(cores, len(jobs), _WORKERS))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        count, context, initializer=_start, initargs=(max(1, cores // count), stop)
    )
    others = set(multiprocessing.active_children())
    # Workers start with Ctrl-C ignored, as here: pressed while they load, it would fill the screen
    # with their tracebacks.
    with _deaf():
        futures = [pool.submit(run_one, job.spec, str(job.home)) for job in jobs]
        workers = [child for child in multiprocessing.active_children() if child not in others]
    try:
        watch(jobs, lambda seconds: _pending(jobs, futures, seconds))
    except BaseException as error:
        _end(pool, futures, workers, stop, gently=isinstance(error, KeyboardInterrupt))
        raise
    pool.shutdown()


def run_one(spec: Spec, home: str) -> None:
    """One run, in a worker; the paper's row also keeps its experts' attention."""
    from ostinato.running.runner import run

    if _stop is not None and _stop.is_set():
        return
    finish = _keep_attention if spec.preset == "paper" else None
    try:
        run(spec, out=home, quiet=True, finish=finish)
    except OstinatoError:
        raise
    except Exception as error:  # not every exception can be sent between processes
        place = Path(home) / "failure.txt"
        try:
            place.write_text(traceback.format_exc(), encoding="utf-8")
            details = f"Details: {place}"
        except OSError:
            details = ""
        raise OstinatoError(f"{type(error).__name__}: {error}. {details}".strip()) from None


def _start(threads: int, stop: Event) -> None:
    """A worker's share of the cores; it ends when the demo ends, however that comes about."""
    global _stop
    import torch

    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner listens while it runs
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _pending(jobs: list[Job], futures: list[Future[None]], seconds: float) -> bool:
    done, pending = wait(futures, timeout=seconds)
    for job, future in zip(jobs, futures, strict=True):
        if future not in done:
            continue
        try:
            future.result()  # a failed run ends the demo at once
        except BrokenExecutor:
            raise OstinatoError(
                "A worker was stopped from outside, perhaps for want of memory. "
                "What is done is kept: run the same command again to go on."
            ) from None
        except OstinatoError as error:
            raise OstinatoError(f"{job.row.title}, seed {job.spec.seed}: {error}") from None
    return bool(pending)


def _end(
    pool: ProcessPoolExecutor,
    futures: list[Future[None]],
    workers: list[BaseProcess],
    stop: Event,
    gently: bool,
) -> None:
    try:
        stop.set()
        running = [future for future in futures if not future.cancel()]
        if gently:
            for worker in workers:  # they may not share our terminal
                _interrupt(worker)
            wait(running, timeout=_GRACE)
    except KeyboardInterrupt:
        pass  # a second Ctrl-C waits for nothing
    with _deaf():
        for worker in workers:
            worker.kill()  # safe at any batch: the run goes on from its last checkpoint
        pool.shutdown(cancel_futures=True)


def _interrupt(worker: BaseProcess) -> None:
    if worker.pid is not None and worker.is_alive():
        os.kill(worker.pid, signal.SIGINT)


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C does nothing here, nor in processes that start here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
