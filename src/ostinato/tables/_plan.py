"""What a table is going to run, resolved once: rows, each with a complete spec for every stream.

A plan is made before anything starts, carried out (`assemble.run_all`) and shown; whoever needs a
row's spec or settings takes them from the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ostinato.errors import ConfigError, OstinatoError, UnknownName
from ostinato.methods.contract import choose_method, is_own, resolve_config
from ostinato.registry import METHODS
from ostinato.running.job import check
from ostinato.running.spec import CheckedSpec, Spec, merge, split_label
from ostinato.tables._table import Part, Table, Variant
from ostinato.tables.printed import PrintedTable, printed
from ostinato.tables.request import Request
from ostinato.tables.tables import METHODS_FULL


@dataclass(frozen=True)
class PlannedRow:
    """One row: what it is, and its spec on each of the table's streams, with all seeds."""

    variant: Variant
    specs: MappingProxyType[str, CheckedSpec]

    @property
    def label(self) -> str:
        """How the table calls it."""
        return self.variant.label


@dataclass(frozen=True)
class Plan:
    """A table, what was asked of it, and its rows.

    Attributes:
        table: whose rows they are.
        request: what was asked.
        printed: the figures that were printed.
        rows: those that can run.
        skipped: why others are left out.
    """

    table: Table
    request: Request
    printed: PrintedTable
    rows: tuple[PlannedRow, ...]
    skipped: tuple[str, ...] = ()

    @property
    def variants(self) -> list[Variant]:
        """The rows as the table names them."""
        return [row.variant for row in self.rows]

    def only(self, labels: Iterable[str]) -> Plan:
        """The same plan with some of its rows."""
        kept = set(labels)
        return replace(self, rows=tuple(row for row in self.rows if row.label in kept))

    def leave_out(self, failed: Mapping[str, OstinatoError]) -> Plan:
        """Without rows that turned out not to run, which is said."""
        rest = self.only(row.label for row in self.rows if row.label not in failed)
        said = (_left_out(label, error) for label, error in failed.items())
        return replace(rest, skipped=(*self.skipped, *said))


def plan_table(table: Table, request: Request) -> Plan:
    """The rows that can run, checked before any of them starts, and why others are left out."""
    request.check_names(table)
    plan = plan_rows(table, _candidates(table, request), request)
    if not plan.rows:
        raise ConfigError(f"No row of {table.name} can run. {' '.join(plan.skipped)}")
    return plan


def plan_rows(table: Table, variants: Sequence[Variant], request: Request) -> Plan:
    """Rows of one's own choice, each with its specs."""
    figures = printed(table.name)
    rows, skipped = [], []
    for variant in variants:
        try:
            specs = {part.name: spec_of(table, part, variant, request) for part in table.parts}
            _check_task(figures, variant)
        except OstinatoError as error:
            if insists(table, request):
                raise
            skipped.append(_left_out(variant.label, error))
            continue
        rows.append(PlannedRow(variant, MappingProxyType(specs)))
    return Plan(table, request, figures, tuple(rows), tuple(skipped))


def insists(table: Table, request: Request) -> bool:
    """Whether a row that cannot run is an error: it was named, or belongs to an ablation."""
    return bool(table.variants) or request.methods not in ((), ("all",))


def _left_out(label: str, error: OstinatoError) -> str:
    """What a table says of a row that is not there."""
    unknown = isinstance(error, UnknownName)
    reason = "not registered" if unknown else str(error).rstrip(".")
    return f"Left out: {label} ({reason})."


def _candidates(table: Table, request: Request) -> list[Variant]:
    if table.variants:
        if request.methods:
            raise ConfigError(f"{table.name} has rows of its own; choose a preset instead.")
        preset = request.preset or table.variant_presets[request.scale]
        rows = [
            v if v.preset or not METHODS[v.method].presets else replace(v, preset=preset)
            for v in table.variants
        ]
        return [replace(v, cosine=v.preset in METHODS[v.method].info.annealed) for v in rows]
    usual = table.methods or METHODS_FULL
    labels = request.methods or usual
    if labels == ("all",):
        others = [n for n in METHODS.names() if n not in {split_label(u)[0] for u in usual}]
        ours = [label for label in usual if is_own(split_label(label)[0])]
        labels = (*(u for u in usual if u not in ours), *others, *ours)
    found = []
    for label in labels:
        variant = _variant(table, label)
        factor = (request.factors or {}).get(label_of(variant), 1.0)
        if factor == 1 or not request.searched:
            found.append(variant)
        if factor != 1:  # at 1 the authors' row is the searched one
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
    if is_own(name) and preset is not None:
        name, preset = choose_method(name, preset, statistics=True)
    if name not in METHODS:
        return Variant(label, name, preset)
    kind = METHODS[name]
    title = str(kind.info.title)
    if preset is None and table.preset in kind.presets:
        preset = table.preset
    elif preset != table.preset and preset is not None and not kind.info.own:
        title = f"{title}, {preset}"  # beside its row under the table's own preset
    if kind.info.own:
        title = f"{title} {preset or ''}".strip()
    return Variant(title, name, preset, cosine=preset in kind.info.annealed)


def _check_task(figures: PrintedTable, variant: Variant) -> None:
    task = "segmentation" if figures.metric == "miou" else "classification"
    if task not in METHODS[variant.method].info.tasks:
        raise ConfigError(f"does not do {task}")


def spec_of(table: Table, part: Part, variant: Variant, request: Request) -> CheckedSpec:
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
    names = (part.name, variant.method, label)
    both = (f"{part.name}/{name}" for name in names[1:])
    values = merge({**base, **own}, request.changes_of(*names, *both))
    if request.seeds:
        values["seeds"] = request.seeds
    spec = check(Spec.parse(values))
    needs = kind.needs(spec.config)
    # Help that a row does not need is not part of its spec, so that equal runs are found equal.
    unused = {
        key: None
        for key, need in (("statistics", "source statistics"), ("prepared", "prepared file"))
        if need not in needs
    }
    if len(unused) == 2:
        unused["clean"] = None
    return spec.without(**unused)
