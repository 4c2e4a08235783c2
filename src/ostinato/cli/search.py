"""`ostinato search`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from ostinato.cli._command import command
from ostinato.cli._engine import Address, Asked, Where, engine_of
from ostinato.cli._interrupts import gently
from ostinato.cli._tables import Form, changes_of, show, spoken
from ostinato.cli._words import (
    Amount,
    Count,
    Factors,
    Folder,
    Named,
    Names,
    Out,
    Place,
    Seeds,
    Weights,
    Words,
)


@command("search", "TABLE: each method's learning rate, the same budget for all", "benchmark")
def search_command(
    name: Named,
    /,
    *,
    factors: Factors = (),
    scale: Literal["small", "full"] = "small",
    methods: Names = (),
    seeds: Seeds = (),
    root: Folder = None,
    weights: Weights = None,
    set: Words = (),
    only: Words = (),
    format: Form = "terminal",
    save: Place = None,
    out: Out = Path("runs"),
    finished: bool = False,
    memory: Amount = 1.0,
    jobs: Count = 1,
    engine: Where = "local",
    address: Address = None,
    resources: Asked = (),
) -> None:
    """Search each method's learning rate on a table's stream; the same factors for all of them.

    Args:
        name: a table whose rows are methods.
        factors: what every method's own rate is multiplied by, in place of
            0.01 0.1 0.3 1 3 10 100.
        scale: small runs on the package's own model and images, full is the paper's setting.
        methods: name or name:preset each; all for every registered one.
        seeds: in place of 2025 2026 2027.
        root: the folder that holds the data sets (full scale).
        weights: the model's checkpoint (full scale).
        set: any setting of the runs' spec; choose images that the table does not report.
        only: such settings of one method alone, as foa:data.limit=100.
        format: what is printed.
        save: a folder that gets the errors, and the chosen factors for 'ostinato table --factors'.
        out: where the runs' folders go.
        finished: run nothing, choose among what is complete.
        memory: GiB of made batches to keep for the rows that follow.
        jobs: rows that run side by side, each in a process of its own.
        engine: local, or ray: rows as tasks of a Ray cluster (docs/scale.md).
        address: of that cluster; one of this machine alone is started unless given.
        resources: of one row there, as cpu=4 gpu=0.5 memory=16 (GiB).
    """
    from ostinato.tables.request import Request, parse_only
    from ostinato.tables.search import FACTORS, SUFFIX, search, write_factors

    request = Request(
        scale=scale,
        methods=methods,
        seeds=seeds,
        changes=changes_of(root, weights, set),
        only=parse_only(only),
        out=out,
        finished=finished,
        memory=memory,
        jobs=jobs,
        command=spoken(),
        engine=engine_of(engine, address, resources),
    )
    result, chosen = gently(lambda: search(name, request, factors or FACTORS))
    show(result, format, save)
    if save is not None:
        path = save / f"{name}-{scale}{SUFFIX}"
        write_factors(path, chosen, request.command)
        print(f"wrote {path}", file=sys.stderr)
