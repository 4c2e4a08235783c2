"""Run a table's rows, or find them done, and put measured and printed figures side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from ostinato.errors import ConfigError, MissingResource, OstinatoError
from ostinato.registry import METHODS, TABLES
from ostinato.scoring.summary import Summary
from ostinato.tables._cells import (
    class_block,
    printed_row,
    seed_note,
    value,
    views_name,
    weights_name,
)
from ostinato.tables._plan import Plan, PlannedRow, insists, plan_table
from ostinato.tables._render import ClassBlock, Heading, TableResult, TableRow
from ostinato.tables._rows import by_stream, run_ahead, run_group
from ostinato.tables._table import Measure, Table
from ostinato.tables._together import Workers, run_together
from ostinato.tables.request import Outcome, Request

_BESIDE = "img/s: up to {} rows ran side by side on one machine; alone, each is faster."


def build_table(name: str, request: Request, console: Console | None = None) -> TableResult:
    """Plan the table, run what is missing, and put it together."""
    table: Table = TABLES[name]
    if table.name == "parameters":
        from ostinato.tables._parameters import parameter_rows

        return _result(*parameter_rows(table, request))
    if request.parts:
        table = table.of_parts(request.parts)
    plan = plan_table(table, request)
    found, failed = run_all(plan, console or Console(stderr=True))
    plan = plan.leave_out(failed)
    if not plan.rows:
        raise ConfigError(f"No row of {table.name} is finished in {request.out}.")
    columns = [m for m in table.columns if m.kind != "gain" or _reference(plan)]
    plan = replace(plan, table=replace(table, columns=_with_rounds(columns, found)))
    rows = [_measured(plan, row, found) for row in plan.rows]
    first = table.parts[0].name
    by_class = class_block({row.label: found.get((row.label, first), []) for row in plan.rows})
    return _result(plan, rows, by_class, seed_note(plan.rows[0].specs))


Found = dict[tuple[str, str], list[Summary]]
"""Summaries by row and part, one per seed."""


def run_all(plan: Plan, console: Console) -> tuple[Found, dict[str, OstinatoError]]:
    """Every row on every stream and seed; rows that do not fit the model are told apart.

    Where only what is finished is asked for, a row needs all seeds of one part at least.
    """
    found, failed = _run_parts(plan, console, _run_ahead(plan, console))
    done = {label for label, _ in found}
    for row in plan.rows:
        if row.label not in done:
            failed.setdefault(row.label, MissingResource("not finished"))
    return found, failed


def _run_ahead(plan: Plan, console: Console) -> Mapping[str, Outcome]:
    """Every row, stream and seed at once, where an engine or several processes do it."""
    request = plan.request
    if request.finished or (request.engine is None and request.jobs == 1):
        return {}
    specs = [row.specs[part.name] for part in plan.table.parts for row in plan.rows]
    runs = [one for spec in specs for one in spec.runs()]
    if request.engine is not None:
        return run_ahead(request.engine, runs, request, console)
    with Workers(request.jobs) as workers:
        return run_together(runs, request, workers, console)


def _run_parts(
    plan: Plan, console: Console, ahead: Mapping[str, Outcome]
) -> tuple[Found, dict[str, OstinatoError]]:
    found: Found = {}
    failed: dict[str, OstinatoError] = {}
    for part in plan.table.parts:
        specs = {row.label: row.specs[part.name] for row in plan.rows}
        kept = {label: spec for label, spec in specs.items() if label not in failed}
        for group in by_stream(kept):
            made = run_group(group, plan.request, console, ahead)
            for label, outcomes in made.items():
                error = next((o for o in outcomes if isinstance(o, OstinatoError)), None)
                summaries = [o for o in outcomes if isinstance(o, Summary)]
                if error is not None and insists(plan.table, plan.request):
                    raise error
                if error is not None:
                    failed[label] = error
                elif len(summaries) == len(specs[label].seeds):
                    found[label, part.name] = summaries
    return found, failed


def _with_rounds(columns: Sequence[Measure], found: Found) -> tuple[Measure, ...]:
    """Where a table of one round was run over several, show each round's mean and RF as well."""
    rounds = max(len(summary.rounds) for runs in found.values() for summary in runs)
    scores = [m for m in columns if m.kind == "score"]
    if rounds < 2 or not scores or any(m.kind == "rf" for m in columns):
        return tuple(columns)
    first = [replace(m, group="R1") for m in scores]
    means = [Measure("Mean", "round mean", f"R{n + 1}", round=n) for n in range(rounds)]
    rest = [m for m in columns if m.kind != "score"]
    return (*first, *means, *rest, Measure("RF", "rf"))


def _reference(plan: Plan) -> str | None:
    for variant in plan.variants:
        if plan.table.reference in (variant.method, variant.label):
            return variant.label
    return None


def _measured(plan: Plan, row: PlannedRow, found: Found) -> TableRow:
    table, reference = plan.table, _reference(plan)
    values = []
    for column in table.columns:
        part = column.part or table.parts[0].name
        runs, base = found.get((row.label, part), []), found.get((reference or "", part), [])
        same = [s.images for s in runs] == [s.images for s in base]
        values.append(value(column, runs, base if same else []))
    facts = facts_of(plan, row, found)
    return TableRow(label=row.label, origin="measured", values=tuple(values), facts=facts)


def facts_of(plan: Plan, row: PlannedRow, found: Found) -> dict[str, str]:
    """What a row says about itself: model, data, help, and when it predicts."""
    parts = plan.table.parts
    spec = row.specs[parts[0].name]
    config = spec.config
    kind = METHODS[spec.method]
    runs = [found.get((row.label, part.name)) for part in parts]
    predicts = str(getattr(config, "predict", kind.info.predicts))
    facts = {
        "Model": spec.model.partition(".")[0],
        "Weights": weights_name(spec),
        "Input": "raw [0, 1]" if spec.normalize == "none" else "normalised",
        "Images": " / ".join(f"{many[0].images:,}" if many else "–" for many in runs),
        "Seeds": ", ".join(str(seed) for seed in spec.seeds),
        "Help": ", ".join(sorted(kind.needs(config))) or "none",
        "Predicts": predicts,
    }
    if spec.data.get("reset", "never") != "never":
        facts["Reset"] = f"every {spec.data['reset']}"
    if plan.printed.metric == "miou":
        facts["Views"] = views_name(spec, config)
    return facts


def _result(
    plan: Plan,
    rows: Sequence[TableRow],
    per_class: ClassBlock | None = None,
    seeds: str | None = None,
) -> TableResult:
    table, request, source = plan.table, plan.request, plan.printed
    small = table.small_notes if request.scale == "small" else ()
    timed = any(m.kind == "speed" for m in table.columns)
    beside = (_BESIDE.format(request.jobs),) if timed and request.jobs > 1 else ()
    if request.engine is not None:
        beside = (request.engine.said,)
    return TableResult(
        name=table.name,
        title=table.title,
        scale=request.scale,
        command=request.command or f"ostinato table {table.name} --scale {request.scale}",
        metric=source.metric,
        headings=tuple(
            Heading(name=m.heading, group=m.group, summary=m.kind != "score") for m in table.columns
        ),
        rows=(*rows, *(printed_row(table, source, row) for row in source.rows)),
        notes=(*small, *filter(None, (seeds,)), *table.notes, *beside, *plan.skipped),
        per_class=per_class,
    )
