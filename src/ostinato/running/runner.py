"""The only evaluation loop: a stream's batches through a method, one record each.

A run lives in its folder. It is checked before it starts, can be killed at any batch and
resumed, and then gives the same records; a run that is complete is not run again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from ostinato.data.streams import Stream
from ostinato.errors import ConfigError
from ostinato.methods.base import Method
from ostinato.ops.views import innermost
from ostinato.running._wide import Leader, follow, same_start, started_processes, widened
from ostinato.running.job import Job, check, open_job, resolve
from ostinato.running.progress import Listener, RunProgress
from ostinato.running.provenance import Provenance, hash_tensors, spec_hash
from ostinato.running.results import RunFolder, find_run
from ostinato.running.samples import SampleKeeper, write_diagnostics
from ostinato.running.spec import Spec
from ostinato.scoring.metrics import peak_memory, record_step, reset_peak
from ostinato.scoring.summary import summarise
from ostinato.types import Batch

_RUNS = "runs"
_PREPARED = "prepared"
"""Below the runs' folders: preparations that several runs share."""
EVERY = 50
_AFRESH = "started afresh for a new domain"
"""What a record says where the stream's `reset` took the method back to its start."""
_DESCRIPTOR = 1089
"""The longest descriptor that records keep."""


_Finish = Callable[[Method, Stream, RunFolder], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C arrived; the run's folder holds everything that was done.

    >>> issubclass(Interrupted, KeyboardInterrupt)
    True
    """


def run(
    spec: Spec,
    *,
    out: str | Path = _RUNS,
    again: bool = False,
    every: int = EVERY,
    console: Console | None = None,
    quiet: bool = False,
    stream: Stream | None = None,
    finish: _Finish | None = None,
    leader: Leader | None = None,
    listener: Listener | None = None,
) -> list[RunFolder]:
    """Run a spec, once for each of its seeds; what is complete already is only opened.

    Args:
        spec: what to run.
        out: where the runs' folders lie.
        again: run even what is complete, in a new folder.
        every: batches between checkpoints.
        console: where progress goes.
        quiet: show nothing.
        stream: the spec's stream where it is open already (a table shares one).
        finish: called with method, stream and folder after the last batch, before the run counts
            as complete; a place to look into the adapted model.
        leader: where several processes do the run together, what this one tells the others.
        listener: told of every batch and checkpoint.
    """
    if every < 1:
        raise ConfigError(f"every = {every}: a checkpoint comes after 1 batch or more.")
    console = console or Console(stderr=True)
    if stream is not None and len(spec.seeds) > 1:
        raise ConfigError("A stream that is open already belongs to one seed: pass spec.runs().")
    spec = check(spec)
    # One job at a time, so that only one model is in memory.
    lead = leader or Leader()
    return [
        _run_job(
            open_job(one, stream),
            Path(out),
            again,
            every,
            console,
            quiet,
            lead,
            finish,
            listener,
        )
        for one in spec.runs()
    ]


def finished(spec: Spec, out: str | Path = _RUNS, stream: Stream | None = None) -> RunFolder | None:
    """The complete run of a spec of one seed, wherever it was made; None where there is none."""
    resolved, _, _ = resolve(spec, stream)
    found = find_run(Path(out), spec_hash(resolved.stored()))
    folder = None if found is None else RunFolder.open(found)
    return folder if folder is not None and folder.is_complete else None


def resume(
    path: str | Path,
    *,
    every: int = EVERY,
    console: Console | None = None,
    quiet: bool = False,
    leader: Leader | None = None,
) -> RunFolder:
    """Go on with the run in a folder, or open it where it is complete."""
    folder = RunFolder.open(path)
    if folder.is_complete:
        return folder
    job = open_job(as_asked(folder.spec))
    digest = spec_hash(job.spec.stored())
    if digest != folder.hash:
        raise ConfigError(
            f"{path} was begun with settings that this version reads differently ({folder.hash}, "
            f"now {digest}): run its spec anew."
        )
    _check_same_source(job, folder)
    console = console or Console(stderr=True)
    return _loop(job, folder, every, console, quiet, leader or Leader())


def as_asked(stored: dict[str, Any]) -> Spec:
    """A run's spec; domains that were not named are kept as an empty list."""
    data = stored.get("data")
    if isinstance(data, dict) and not data.get("domains", True):
        stored = {**stored, "data": {k: v for k, v in data.items() if k != "domains"}}
    return Spec.parse(stored)


def _folder_name(spec: Spec, digest: str) -> str:
    """A run's folder: method, preset, stream and seed for people, the hash for certainty."""
    parts = [spec.method, spec.preset, spec.stream, str(spec.seed), digest[:8]]
    return "-".join(part for part in parts if part)


def _run_job(
    job: Job,
    out: Path,
    again: bool,
    every: int,
    console: Console,
    quiet: bool,
    leader: Leader,
    finish: _Finish | None = None,
    listener: Listener | None = None,
) -> RunFolder:
    digest = spec_hash(job.spec.stored())
    tell = None if quiet else lambda text: _say(console, text)
    found = find_run(out, digest, tell, begun=again)
    if found is not None:
        folder = RunFolder.open(found)
        if not (again and folder.is_complete):
            _check_same_source(job, folder)
        if not folder.is_complete:
            return _loop(job, folder, every, console, quiet, leader, finish, None, listener)
        if not again:
            if not quiet:
                _say(console, f"{found} is complete already")
            return folder
    place = _free(out / _folder_name(job.spec, digest))
    weights = _weights(job)
    leader.begin(job)
    # A method that does not fit the model leaves no folder behind.
    method = job.adapt(cache=out / _PREPARED, processes=leader.processes)
    provenance = Provenance.collect(
        weights=weights,
        data=job.stream.fingerprint(),
        seeds={"method": job.spec.seed, "stream": job.stream.config.seed},
        device=job.spec.device,
    )
    folder = RunFolder.create(place, job.spec.stored(), provenance)
    job.stream.write_artifacts(place / "data")
    job.keep_prepared(method, place)
    return _loop(job, folder, every, console, quiet, leader, finish, method, listener)


def _weights(job: Job) -> str:
    return hash_tensors(innermost(job.model).state_dict())


def _check_same_source(job: Job, folder: RunFolder) -> None:
    """Refuse to go on, or to answer, with a run of other weights or images under the same names."""
    known = folder.provenance()
    for what, then, now in (
        ("weights", known.weights, _weights(job)),
        ("images", known.data, job.stream.fingerprint()),
    ):
        if then is not None and then != now:
            raise ConfigError(
                f"{folder.path} was run with other {what} ({then}, now {now}). Name the ones it "
                "was begun with, or choose another --out for a run of its own."
            )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _loop(
    job: Job,
    folder: RunFolder,
    every: int,
    console: Console,
    quiet: bool,
    leader: Leader,
    finish: _Finish | None = None,
    method: Method | None = None,
    listener: Listener | None = None,
) -> RunFolder:
    """All batches that are still to come."""
    if method is None:
        leader.begin(job)
        method = job.adapt(folder.path, processes=leader.processes)
    job = widened(job, leader.processes)
    start = same_start(leader.processes, folder.resume_point())
    if start.state is not None:
        method.import_state(start.state)
    stream, title = job.stream, f"{job.spec.label} {job.spec.stream} {job.spec.seed}"
    listener = listener or Listener()
    told = "domain labels" in method.needs(method.config)
    samples = SampleKeeper(job, folder.path)
    with folder, RunProgress(title, len(stream), console, quiet) as progress, _gently() as stop:
        progress.skip(folder.records())
        listener.begun(folder, start.next_index, len(stream))
        for index in range(start.next_index, len(stream)):
            batch = stream[index]
            reset_peak(method.model.device)
            if afresh := stream.resets(index):
                method.reset()
            output = method.step(
                batch.images, classes=batch.classes, oracle=_names(method, batch) if told else None
            )
            if afresh:
                output.events = (_AFRESH, *output.events)
            record = record_step(
                folder.hash,
                batch,
                output,
                trained=method.trained(),
                peak_memory=peak_memory(method.model.device),
                descriptor=_descriptor(method),
            )
            samples.keep(batch, output.logits)
            folder.append(record)
            progress.show(record)
            listener.batch(record)
            if leader.processes.any(stop.is_set()):
                folder.checkpoint(method.export_state())
                listener.saved(folder)
                raise Interrupted(
                    f"Stopped after batch {index + 1} of {len(stream)}. Go on with: "
                    f"ostinato run {folder.path}"
                )
            if (index + 1) % every == 0 and index + 1 < len(stream):
                folder.checkpoint(method.export_state())
                listener.saved(folder)
        if finish is not None:
            finish(method, stream, folder)
        write_diagnostics(folder, method.diagnose())
        folder.complete(summarise(folder.records(), names=stream.class_names))
    leader.end()
    folder.state_path.unlink(missing_ok=True)  # large, and of no use to a finished run
    return folder


def _names(method: Method, batch: Batch) -> str | tuple[str, ...]:
    """What a method is told of a batch's true domains."""
    by_image = batch.image_domains if method.told_by_image else None
    return by_image or batch.domain


def _descriptor(method: Method) -> tuple[float, ...]:
    """The batch's mean descriptor, where the method made one that is short enough to keep."""
    evidence: Any = getattr(method, "evidence", None)
    found = getattr(evidence, "descriptors", None)
    if not isinstance(found, torch.Tensor) or found.shape[-1] > _DESCRIPTOR:
        return ()
    return tuple(round(value, 3) for value in found.detach().float().mean(0).tolist())


def _free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is not taken."""
    number, place = 2, path
    while (place / "spec.json").exists():
        place = path.with_name(f"{path.name}-{number}")
        number += 1
    return place


def together(
    work: Callable[[Leader], list[RunFolder]], device: str | None = None
) -> list[RunFolder]:
    """Do runs with all processes that torchrun started: the first does the work, the others help.

    Args:
        work: does the runs, and passes the leader on to them.
        device: as the runs are told, where that is known.
    """
    with started_processes(device) as processes:
        if processes.rank == 0:
            with Leader(processes) as leader:
                return work(leader)
        with _gently() as stop:
            follow(processes, stop.is_set, as_asked)
        return []


@contextmanager
def _gently() -> Iterator[threading.Event]:
    """The first Ctrl-C lets the batch finish; the second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread receives signals
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
