"""A search for each method's learning rate: the same few factors for all of them, recorded.

What it chooses is a file of factors, which a table then takes for second rows. The images it runs
on should not be those that the table reports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ostinato.errors import ConfigError
from ostinato.ops.files import make_folder, write_atomically
from ostinato.registry import METHODS, TABLES
from ostinato.tables._plan import Plan, at_factor, label_of, plan_rows, plan_table
from ostinato.tables._render import Heading, TableResult, TableRow, Value
from ostinato.tables._table import Table, Variant
from ostinato.tables.assemble import Found, facts_of, run_all
from ostinato.tables.printed import printed
from ostinato.tables.request import Request

FACTORS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""An authors' rate for another architecture can be a hundred times too large or too small."""
SUFFIX = "-factors.json"
_RESAMPLES = 2000


def search(
    name: str,
    request: Request,
    factors: Sequence[float] = FACTORS,
    console: Console | None = None,
) -> tuple[TableResult, dict[str, float]]:
    """Run every method of a table at every factor of its own rate.

    Returns:
        The errors by method and factor, and the best factor of each method by its label.
    """
    table: Table = TABLES[name]
    if table.variants or not table.parts or table.name == "parameters":
        raise ConfigError(f"{name} compares variants of one method: search a table of methods.")
    if len(set(factors)) < 2 or min(factors) <= 0:
        raise ConfigError("A search needs two or more different factors above 0.")
    usual = plan_table(table, request)
    shown = _columns(factors, usual.variants)
    trials = {v.label: _trials(v, factors) for v in usual.variants}
    plan = _with_trials(usual, [trial for some in trials.values() for trial in some])
    found, failed = run_all(plan, console or Console(stderr=True))
    skipped = list(plan.skipped)
    skipped += [f"Left out: {label} ({error})." for label, error in failed.items()]
    chosen: dict[str, float] = {}
    rows = []
    for variant in usual.variants:
        done = [t for t in trials[variant.label] if _is_whole(t, found, table)]
        if not done:
            continue
        best = _best(done, found, table)
        if len(done) > 1:
            chosen[label_of(variant)] = best.factor
        rows.append(_row(plan, variant, done, best, shown, found))
    return _result(table, request, rows, shown, skipped), chosen


def _with_trials(usual: Plan, trials: Sequence[Variant]) -> Plan:
    """A plan of all trials, in which a row at its own rate is the usual one."""
    other = plan_rows(usual.table, [t for t in trials if t.factor != 1], usual.request)
    known = {row.label: row for row in (*usual.rows, *other.rows)}
    rows = tuple(known[trial.label] for trial in trials if trial.label in known)
    return replace(usual, rows=rows, skipped=(*usual.skipped, *other.skipped))


def _columns(factors: Sequence[float], variants: Sequence[Variant]) -> Sequence[float]:
    """The factors, and 1 as well where a row that learns nothing has to stand somewhere."""
    still = any(not METHODS[variant.method].rates for variant in variants)
    return sorted((*factors, 1.0)) if still and 1 not in factors else factors


def _trials(variant: Variant, factors: Sequence[float]) -> list[Variant]:
    """The row at each factor; once, where nothing is learned."""
    if not METHODS[variant.method].rates:
        return [variant]
    return [variant if f == 1 else at_factor(variant, f) for f in factors]


def _is_whole(trial: Variant, found: Found, table: Table) -> bool:
    return all((trial.label, part.name) in found for part in table.parts)


def _score(trial: Variant, found: Found, table: Table) -> float:
    """Lower is better; the mean over the table's parts and seeds."""
    summaries = [s for part in table.parts for s in found[trial.label, part.name]]
    mean = sum(s.mean for s in summaries) / len(summaries)
    return -mean if summaries[0].metric == "miou" else mean


def _best(trials: Sequence[Variant], found: Found, table: Table) -> Variant:
    """The lowest error; of equal ones the factor nearest to 1."""
    return min(trials, key=lambda t: (_score(t, found, table), abs(math.log(t.factor))))


def _holds(trials: Sequence[Variant], best: Variant, found: Found, table: Table) -> float:
    """In how many percent of resamples of domains and rounds no other factor is better."""
    scores = np.array([_cells(trial, found, table) for trial in trials])
    draws = np.random.default_rng(0).integers(scores.shape[1], size=(_RESAMPLES, scores.shape[1]))
    means = scores[:, draws].mean(-1)
    chosen = means[list(trials).index(best)]
    return 100.0 * float((chosen <= means.min(0) + 1e-9).mean())  # equal ones are no better


def _cells(trial: Variant, found: Found, table: Table) -> list[float]:
    """The scores of every domain in every round, lower is better; the same order for all."""
    many = [s for part in table.parts for s in found[trial.label, part.name]]
    return [-c.value if s.metric == "miou" else c.value for s in many for c in s.cells]


def _row(
    plan: Plan,
    variant: Variant,
    trials: Sequence[Variant],
    best: Variant,
    factors: Sequence[float],
    found: Found,
) -> TableRow:
    table = plan.table
    planned = {row.label: row for row in plan.rows}
    by_factor = {trial.factor: abs(_score(trial, found, table)) for trial in trials}
    cells = [Value(value=by_factor.get(factor)) for factor in factors]
    learns = len(trials) > 1
    picked = Value(text=f"× {best.factor:g}") if learns else Value(text="—")
    holds = Value(value=_holds(trials, best, found, table), digits=0) if learns else Value()
    return TableRow(
        label=variant.label,
        origin="measured",
        values=(*cells, picked, holds),
        facts=facts_of(plan, planned[best.label], found),  # the row itself need not have run
    )


def _result(
    table: Table,
    request: Request,
    rows: Sequence[TableRow],
    factors: Sequence[float],
    skipped: Sequence[str],
) -> TableResult:
    names = [f"× {factor:g}" for factor in factors]
    return TableResult(
        name=f"{table.name}-search",
        title=f"{table.title}, at factors of each method's own learning rate",
        scale=request.scale,
        command=request.command,
        metric=printed(table.name).metric,
        headings=tuple(Heading(name=name) for name in (*names, "Best", "Holds")),
        rows=tuple(rows),
        notes=(
            "Every method gets the same factors of the rate that its authors, or its preset, set; "
            "a method with several online rates has all of them scaled. The best has the lowest "
            "mean over all rounds. Holds: in how many percent of resamples of domains and rounds "
            "no other is better.",
            *skipped,
        ),
    )


def write_factors(path: Path, chosen: Mapping[str, float], command: str) -> None:
    """Keep what a search chose, with the command that made it."""
    make_folder(path.parent)
    content = {"command": command, "factors": dict(chosen)}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def read_factors(path: Path) -> dict[str, float]:
    """The factors in a file that a search wrote."""
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))["factors"]
        return {str(label): float(factor) for label, factor in stored.items()}
    except FileNotFoundError:
        raise ConfigError(
            f"There is no {path}: make it with 'ostinato search TABLE --save DIR'."
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is no file of factors ({error!r}).") from None
