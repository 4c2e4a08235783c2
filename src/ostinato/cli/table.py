"""`ostinato table`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ostinato.cli._command import command
from ostinato.cli._engine import Address, Asked, Where, engine_of
from ostinato.cli._interrupts import gently
from ostinato.cli._tables import Form, changes_of, show, spoken
from ostinato.cli._words import (
    Amount,
    Count,
    File,
    Folder,
    Name,
    Named,
    Names,
    Out,
    Place,
    Seeds,
    Weights,
    Words,
)


@command("table", "NAME: make one of the paper's tables", "benchmark")
def table_command(
    name: Named,
    /,
    *,
    scale: Literal["small", "full"] = "small",
    methods: Names = (),
    preset: Name = None,
    parts: Names = (),
    seeds: Seeds = (),
    root: Folder = None,
    weights: Weights = None,
    set: Words = (),
    only: Words = (),
    format: Form = "terminal",
    save: Place = None,
    out: Out = Path("runs"),
    again: bool = False,
    finished: bool = False,
    memory: Amount = 1.0,
    jobs: Count = 1,
    factors: File = None,
    searched: bool = False,
    engine: Where = "local",
    address: Address = None,
    resources: Asked = (),
) -> None:
    """Make one of the paper's tables: run what is missing, print it beside the printed figures.

    Args:
        name: a table; a wrong one lists them.
        scale: small runs on the package's own model and images, full is the paper's setting.
        methods: name or name:preset each; all for every registered one.
        preset: of an ablation's rows (small: source-free, full: paper, unless given).
        parts: the table's streams that are run and shown, all of them unless given.
        seeds: in place of 2025 2026 2027.
        root: the folder that holds the data sets (full scale).
        weights: the model's checkpoint (full scale).
        set: any setting of the runs' spec, such as device=cuda data.limit=500.
        only: such settings of one method or one of the table's streams, as foa:data.limit=100.
        format: what is printed.
        save: a folder that gets the table as Markdown, LaTeX, CSV and JSON.
        out: where the runs' folders go.
        again: run even what is complete already.
        finished: run nothing, show what is complete and leave out the rest.
        memory: GiB of made batches to keep for the rows that follow.
        jobs: rows that run side by side, each in a process of its own.
        factors: a file from 'ostinato search'; adds a row at the chosen rate to each method.
        searched: leave each method's other row out.
        engine: local, or ray: rows as tasks of a Ray cluster (docs/scale.md).
        address: of that cluster; one of this machine alone is started unless given.
        resources: of one row there, as cpu=4 gpu=0.5 memory=16 (GiB).
    """
    from ostinato.tables.assemble import build_table
    from ostinato.tables.request import Request, parse_only
    from ostinato.tables.search import read_factors

    request = Request(
        scale=scale,
        methods=methods,
        preset=preset,
        parts=parts,
        seeds=seeds,
        changes=changes_of(root, weights, set),
        only=parse_only(only),
        out=out,
        again=again,
        finished=finished,
        memory=memory,
        jobs=jobs,
        factors=None if factors is None else read_factors(factors),
        searched=searched,
        command=spoken(),
        engine=engine_of(engine, address, resources),
    )
    show(gently(lambda: build_table(name, request)), format, save)
