"""Runs over one stream after another, each row in turn; `together` runs them side by side."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from ostinato.data.kept import keep
from ostinato.data.streams import Stream
from ostinato.errors import OstinatoError
from ostinato.running.job import open_stream
from ostinato.running.runner import finished, run
from ostinato.running.spec import Spec
from ostinato.tables.request import Engine, Outcome, Request, spec_key


def run_rows(
    specs: Mapping[str, Spec],
    *,
    out: Path,
    again: bool = False,
    finished_alone: bool = False,
    memory: float = 1.0,
    console: Console | None = None,
) -> dict[str, Outcome]:
    """Run specs of one seed and one stream by label. A row that fails is returned as its error.

    Args:
        specs: what to run; all of them see the first one's stream, which is made once.
        out: where runs are kept.
        again: run even what is done.
        finished_alone: run nothing, and leave out what is not done.
        memory: GiB of made batches to keep for the rows that follow.
        console: where progress goes.
    """
    console = console or Console(stderr=True)
    stream = open_stream(next(iter(specs.values())))
    found = {} if again else find_done(specs, out, stream)
    if finished_alone:
        return found
    todo = {label: spec for label, spec in specs.items() if label not in found}
    kept = keep(stream, memory)
    found |= {label: run_one(spec, out, again, kept, console) for label, spec in todo.items()}
    return {label: found[label] for label in specs}


def find_done(specs: Mapping[str, Spec], out: Path, stream: Stream) -> dict[str, Outcome]:
    """Rows that need not run, found before any batch is made, on whatever device they ran."""
    found: dict[str, Outcome] = {}
    for label, spec in specs.items():
        with suppress(OstinatoError):  # which its own turn brings up again
            folder = finished(spec, out, stream)
            if folder is not None:
                found[label] = folder.summary()
    return found


def run_one(spec: Spec, out: Path, again: bool, stream: Stream, console: Console | None) -> Outcome:
    """One run, quiet without a console; its error where it fails."""
    quiet = console is None
    try:
        (folder,) = run(spec, out=out, again=again, console=console, quiet=quiet, stream=stream)
    except OstinatoError as error:
        return error
    except Exception as error:  # one row's defect should not cost the others their hours
        traceback.print_exc()
        return OstinatoError(f"{type(error).__name__}: {str(error)[:200]}")
    return folder.summary()


def by_stream(specs: Mapping[str, Spec]) -> list[dict[str, Spec]]:
    """Rows that see the same batches, together."""
    groups: dict[str, dict[str, Spec]] = {}
    shown = {"stream", "data", "roots", "seeds", "batch_size", "device"}
    for label, spec in specs.items():
        groups.setdefault(spec.model_dump_json(include=shown), {})[label] = spec
    return list(groups.values())


def run_group(
    specs: Mapping[str, Spec],
    request: Request,
    console: Console,
    ahead: Mapping[str, Outcome],
) -> dict[str, list[Outcome]]:
    """Rows of one stream, seed by seed; what became of each."""
    outcomes: dict[str, list[Outcome]] = {label: [] for label in specs}
    for seed in next(iter(specs.values())).seeds:
        rows = {
            label: spec.replace(seeds=(seed,))
            for label, spec in specs.items()
            if not any(isinstance(one, OstinatoError) for one in outcomes[label])
        }
        if ahead:  # everything has run already
            for label, spec in rows.items():
                outcomes[label].append(ahead[spec_key(spec)])
            continue
        made = run_rows(
            rows,
            out=request.out,
            again=request.again,
            finished_alone=request.finished,
            memory=request.memory,
            console=console,
        )
        for label, outcome in made.items():
            outcomes[label].append(outcome)
    return outcomes


def run_ahead(
    engine: Engine, specs: Sequence[Spec], request: Request, console: Console
) -> Mapping[str, Outcome]:
    """Runs of one seed each at once, wherever the engine runs them."""
    return engine.run(
        specs, out=request.out, again=request.again, memory=request.memory, console=console
    )
