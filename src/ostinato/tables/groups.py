"""Rows that see one stream, run together: in processes of this machine, or by an engine ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from ostinato.errors import OstinatoError
from ostinato.running.spec import Spec
from ostinato.tables.request import Engine, Outcome, Request, spec_key
from ostinato.tables.rows import Workers, run_rows


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
    workers: Workers,
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
        if ahead:  # an engine has run everything already
            for label, spec in rows.items():
                outcomes[label].append(ahead[spec_key(spec)])
            continue
        made = run_rows(
            rows,
            out=request.out,
            again=request.again,
            finished_alone=request.finished,
            memory=request.memory,
            workers=workers,
            console=console,
        )
        for label, outcome in made.items():
            outcomes[label].append(outcome)
    return outcomes


def run_ahead(
    engine: Engine, specs: Sequence[Spec], request: Request, console: Console
) -> Mapping[str, Outcome]:
    """Every seed of every row at once, wherever the engine runs them."""
    return engine.run(
        [one for spec in specs for one in spec.runs()],
        out=request.out,
        again=request.again,
        memory=request.memory,
        console=console,
    )
