"""Run a table's rows, or find them done, and put measured and printed figures side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from ostinato.errors import ConfigError, MissingResource, OstinatoError, UnknownName
from ostinato.methods.contract import resolve_config
from ostinato.own import OURS, choose_method
from ostinato.registry import METHODS, TABLES
from ostinato.running.job import check_spec
from ostinato.running.spec import Spec, merge, split_label
from ostinato.scoring.summary import Summary
from ostinato.tables.cells import class_block, printed_row, value
from ostinato.tables.groups import by_stream, run_ahead, run_group
from ostinato.tables.naming import views_name, weights_name
from ostinato.tables.printed import printed
from ostinato.tables.render import ClassBlock, Heading, TableResult, TableRow
from ostinato.tables.request import Outcome, Request
from ostinato.tables.rows import Workers
from ostinato.tables.seeds import seed_note
from ostinato.tables.table import Measure, Part, Table, Variant
from ostinato.tables.tables import METHODS_FULL

PAPER = "paper"
_BESIDE = "img/s: up to {} rows ran side by side on one machine; alone, each is faster."


def build_table(name: str, request: Request, console: Console | None = None) -> TableResult:
    """Run what is missing and assemble the table."""
    table: Table = TABLES[name]
    if table.name == "parameters":
        from ostinato.tables.parameters import parameter_rows

        rows, skipped = parameter_rows(table, request)
        return _result(table, request, rows, skipped)
    variants, skipped = choose(table, request)
    console = console or Console(stderr=True)
    found, failed = run_all(table, variants, request, console)
    variants = [v for v in variants if v.label not in failed]
    if not variants:
        raise ConfigError(f"No row of {table.name} is finished in {request.out}.")
    skipped += [_left_out(label, error) for label, error in failed.items()]
    columns = [m for m in table.columns if m.kind != "gain" or _reference(table, variants)]
    table = replace(table, columns=_with_rounds(columns, found))
    rows = [_measured(table, v, found, request, variants) for v in variants]
    by_class = class_block(
        {v.label: found.get((v.label, table.parts[0].name), []) for v in variants}
    )
    shown = {part.name: spec_of(table, part, variants[0], request) for part in table.parts}
    return _result(table, request, rows, skipped, by_class, seed_note(shown))


def choose(table: Table, request: Request) -> tuple[list[Variant], list[str]]:
    """The rows that can run, checked before any of them starts, and why others are left out."""
    request.check_names(table)
    kept, skipped = [], []
    for variant in _candidates(table, request):
        try:
            for part in table.parts:
                for one in spec_of(table, part, variant, request).runs()[:1]:
                    check_spec(one)
                    _check_task(table, variant)
        except OstinatoError as error:
            if _insists(table, request):
                raise
            skipped.append(_left_out(variant.label, error))
            continue
        kept.append(variant)
    if not kept:
        raise ConfigError(f"No row of {table.name} can run. {' '.join(skipped)}")
    return kept, skipped


def _insists(table: Table, request: Request) -> bool:
    """Whether a row that cannot run is an error: it was named, or belongs to an ablation."""
    return bool(table.variants) or request.methods not in ((), ("all",))


def _left_out(label: str, error: OstinatoError) -> str:
    unknown = isinstance(error, UnknownName)
    reason = "not registered" if unknown else str(error).rstrip(".")
    return f"Left out: {label} ({reason})."


def _candidates(table: Table, request: Request) -> list[Variant]:
    if table.variants:
        if request.methods:
            raise ConfigError(f"{table.name} has rows of its own; choose a preset instead.")
        preset = request.preset or (PAPER if request.scale == "full" else "source-free")
        rows = [
            v if v.method == "source" or v.preset else replace(v, preset=preset)
            for v in table.variants
        ]
        return [replace(v, cosine=v.preset == PAPER) for v in rows]
    usual = table.methods or METHODS_FULL
    labels = request.methods or usual
    if labels == ("all",):
        others = [n for n in METHODS.names() if n not in {split_label(u)[0] for u in usual}]
        ours = [label for label in usual if split_label(label)[0] in OURS]
        labels = (*(u for u in usual if u not in ours), *others, *ours)
    found = []
    for label in labels:
        variant = _variant(table, label)
        found.append(variant)
        factor = (request.factors or {}).get(label_of(variant))
        if factor is not None and factor != 1:  # at 1 the row above is the searched one
            found.append(at_factor(variant, factor))
    return found


def label_of(variant: Variant) -> str:
    """A row's method as users type it."""
    return variant.method if variant.preset is None else f"{variant.method}:{variant.preset}"


def at_factor(variant: Variant, factor: float) -> Variant:
    """The same row, learning some times as fast."""
    return replace(variant, label=f"{variant.label}, rate × {factor:g}", factor=factor)


def _variant(table: Table, label: str) -> Variant:
    name, preset = split_label(label)
    if name in OURS and preset is not None:
        name, preset = choose_method(name, preset, statistics=True)
    if name not in METHODS:
        return Variant(label, name, preset)
    kind = METHODS[name]
    title = str(kind.info.title)
    if preset is None and table.preset in kind.presets:
        preset = table.preset
    elif preset != table.preset and preset is not None and name not in OURS:
        title = f"{title}, {preset}"  # beside its row under the table's own preset
    if name in OURS:
        title = f"{title} {preset or ''}".strip()
    return Variant(title, name, preset, cosine=preset == PAPER)


def _check_task(table: Table, variant: Variant) -> None:
    task = "segmentation" if printed(table.name).metric == "miou" else "classification"
    if task not in METHODS[variant.method].info.tasks:
        raise ConfigError(f"does not do {task}")


def spec_of(table: Table, part: Part, variant: Variant, request: Request) -> Spec:
    """The spec of one row on one stream, with all its seeds."""
    base = dict(part.full if request.scale == "full" else part.small)
    label = label_of(variant)
    settings = dict(variant.settings)
    if label in part.rates:
        settings = {"lr": part.rates[label], **settings}
    kind = METHODS[variant.method]
    if variant.factor != 1:
        usual = resolve_config(kind, variant.preset, settings)
        settings |= kind.scaled(usual, variant.factor)
    own = {
        "method": variant.method,
        "preset": variant.preset,
        "settings": settings,
        "cosine": variant.cosine,
    }
    values = merge({**base, **own}, request.changes_of(part.name, variant.method, label))
    if request.seeds:
        values["seeds"] = request.seeds
    spec = Spec.parse(values)
    needs = kind.needs(check_spec(spec))
    # Help that a row does not need is not part of its spec, so that equal runs are found equal.
    unused = {
        key: None
        for key, need in (("statistics", "source statistics"), ("prepared", "prepared file"))
        if need not in needs
    }
    if len(unused) == 2:
        unused["clean"] = None
    return spec.replace(**unused)


Found = dict[tuple[str, str], list[Summary]]
"""Summaries by row and part, one per seed."""


def run_all(
    table: Table, variants: Sequence[Variant], request: Request, console: Console
) -> tuple[Found, dict[str, OstinatoError]]:
    """Every row on every stream and seed; rows that do not fit the model are told apart.

    Where only what is finished is asked for, a row needs all seeds of one part at least.
    """
    ahead: Mapping[str, Outcome] = {}
    if request.engine is not None and not request.finished:
        specs = [spec_of(table, part, v, request) for part in table.parts for v in variants]
        ahead = run_ahead(request.engine, specs, request, console)
    with Workers(request.jobs) as workers:
        found, failed = _run_parts(table, variants, request, workers, console, ahead)
    done = {label for label, _ in found}
    for variant in variants:
        if variant.label not in done:
            failed.setdefault(variant.label, MissingResource("not finished"))
    return found, failed


def _run_parts(
    table: Table,
    variants: Sequence[Variant],
    request: Request,
    workers: Workers,
    console: Console,
    ahead: Mapping[str, Outcome],
) -> tuple[Found, dict[str, OstinatoError]]:
    found: Found = {}
    failed: dict[str, OstinatoError] = {}
    for part in table.parts:
        specs = {v.label: spec_of(table, part, v, request) for v in variants}
        kept = {label: spec for label, spec in specs.items() if label not in failed}
        for group in by_stream(kept):
            for label, outcomes in run_group(group, request, workers, console, ahead).items():
                error = next((o for o in outcomes if isinstance(o, OstinatoError)), None)
                summaries = [o for o in outcomes if isinstance(o, Summary)]
                if error is not None and _insists(table, request):
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


def _reference(table: Table, variants: Sequence[Variant]) -> str | None:
    for variant in variants:
        if table.reference in (variant.method, variant.label):
            return variant.label
    return None


def _measured(
    table: Table,
    variant: Variant,
    found: Found,
    request: Request,
    variants: Sequence[Variant],
) -> TableRow:
    reference = _reference(table, variants)
    values = []
    for column in table.columns:
        part = column.part or table.parts[0].name
        runs, base = found.get((variant.label, part), []), found.get((reference or "", part), [])
        same = [s.images for s in runs] == [s.images for s in base]
        values.append(value(column, runs, base if same else []))
    facts = facts_of(table, variant, request, found)
    return TableRow(label=variant.label, origin="measured", values=tuple(values), facts=facts)


def facts_of(table: Table, variant: Variant, request: Request, found: Found) -> dict[str, str]:
    """What a row says about itself: model, data, help, and when it predicts."""
    spec = spec_of(table, table.parts[0], variant, request)
    config = check_spec(spec)
    kind = METHODS[variant.method]
    runs = [found.get((variant.label, part.name)) for part in table.parts]
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
    if printed(table.name).metric == "miou":
        facts["Views"] = views_name(spec, config)
    return facts


def _result(
    table: Table,
    request: Request,
    rows: Sequence[TableRow],
    skipped: Sequence[str],
    per_class: ClassBlock | None = None,
    seeds: str | None = None,
) -> TableResult:
    source = printed(table.name)
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
        rows=(*rows, *(printed_row(table, row) for row in source.rows)),
        notes=(*small, *filter(None, (seeds,)), *table.notes, *beside, *skipped),
        per_class=per_class,
    )
