"""The cells of a table: measured and printed values, and what a seed changes from run to run."""

from __future__ import annotations

import statistics as stats
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.data.streams import Stream
from ostinato.models.dense import usual_stride
from ostinato.models.loading import OWN
from ostinato.running.job import open_stream
from ostinato.running.spec import Spec
from ostinato.scoring.forgetting import gain
from ostinato.scoring.summary import Summary
from ostinato.tables._printed_rows import INPUTS
from ostinato.tables._render import ClassBlock, TableRow, Value
from ostinato.tables._table import Measure, Table
from ostinato.tables.printed import PrintedTable, Row


def value(column: Measure, runs: Sequence[Summary], reference: Sequence[Summary]) -> Value:
    """Mean and spread of a column over a row's runs."""
    numbers = []
    for at, summary in enumerate(runs):
        base = reference[at] if at < len(reference) else None
        number = measure(column, summary, base)
        if number is not None:
            numbers.append(number)
    if column.kind == "speed" and numbers:
        return Value(value=stats.mean(numbers), digits=0)
    found = _over_seeds(numbers)
    whole = column.kind == "count" and len(set(numbers)) == 1  # a number of domains, not a mean
    return found.replace(digits=0) if whole else found


def measure(column: Measure, summary: Summary, reference: Summary | None) -> float | None:
    """One column of one run."""
    kind, routing = column.kind, summary.routing
    if kind == "score":
        cells = {(c.round, c.domain): c.value for c in summary.cells}
        return cells.get((column.round or 0, column.domain))
    if kind == "round mean":
        means = {r.round: r.by_images for r in summary.rounds}
        return means.get(column.round or 0)
    if kind == "gain":
        return gain(summary.mean, reference.mean, summary.metric) if reference else None
    if kind == "diff":
        return summary.mean - reference.mean if reference else None
    if kind in ("purity", "ami"):
        return None if routing is None else 100.0 * float(getattr(routing, kind))
    if kind == "delay":
        return None if routing is None else routing.delay
    found = summary.domains_found
    plain: dict[str, float | None] = {
        "mean": summary.mean,
        "accuracy": 100.0 - summary.mean,
        "by domains": summary.mean_by_domains,
        "rf": summary.rf,
        "count": None if found is None else float(found),
        "ece": summary.calibration_error,
        "speed": summary.cost.images_per_second,
    }
    return plain[kind]


def class_block(found: Mapping[str, Sequence[Summary]]) -> ClassBlock | None:
    """Per-class IoU of rows by label, mean and spread over seeds; None for whole images."""
    scored = {label: [one.classes for one in runs if one.classes] for label, runs in found.items()}
    names = next((tuple(c.name for c in many[0]) for many in scored.values() if many), ())
    if not names:
        return None
    rows = []
    for label, many in scored.items():
        columns = zip(*((c.value for c in classes) for classes in many), strict=True)
        values = tuple(_over_seeds([v for v in column if v is not None]) for column in columns)
        rows.append(TableRow(label=label, origin="measured", values=values))
    return ClassBlock(names=names, rows=tuple(rows))


def _over_seeds(numbers: Sequence[float]) -> Value:
    if not numbers:
        return Value()
    spread = stats.stdev(numbers) if len(numbers) > 1 else None
    return Value(value=stats.mean(numbers), spread=spread)


def printed_row(table: Table, source: PrintedTable, row: Row) -> TableRow:
    """A row of the paper, in the columns of the measured table."""
    known = {}
    for heading, printed_cell in zip(source.columns, row.cells, strict=True):
        known[heading.heading, str(heading.kind), heading.round] = printed_cell
    values = []
    for column in table.columns:
        cell = known.get((column.heading, column.kind, column.round))
        values.append(
            Value()
            if cell is None or not cell.text
            else Value(value=cell.value, text=cell.text, note=cell.note)
        )
    place = "elsewhere" if row.origin == "elsewhere" else "the paper"
    note = row.note if row.origin == "paper" else f"Printed {place}. {row.note}".strip()
    facts = {"Help": ", ".join(row.needs), "Predicts": row.predicts}
    if table.name not in ("acdc", "cifar100-c"):
        facts |= {"Model": "vit_base_patch16_224", "Input": INPUTS[row.protocol]}
    return TableRow(
        label=row.method, origin="printed", values=tuple(values), facts=facts, note=note
    )


def weights_name(spec: Spec) -> str:
    """How tables call the weights."""
    if spec.model in OWN:
        return "vit_cifar10"
    if spec.weights is None:
        return spec.model.partition(".")[2] or "default"
    return Path(spec.weights).name


def views_name(spec: Spec, config: Any = None) -> str:
    """How tables call what a per-pixel model sees of an image.

    Args:
        spec: its window and views.
        config: the method's settings, which may name views of its own (a teacher's).

    >>> views_name(Spec(window=(512, 512), scales=(0.5, 1.0), flip=True))
    'windows of 512×512 every 384×384, 4 views'
    """
    parts = []
    if spec.window is not None:
        stride = spec.stride or usual_stride(spec.window)
        size, step = ("×".join(map(str, pair)) for pair in (spec.window, stride))
        parts.append(f"windows of {size} every {step}")
    if spec.scales or spec.flip:
        parts.append(f"{len(spec.scales or (1.0,)) * (1 + spec.flip)} views")
    own = getattr(config, "scales", ())
    if own:
        parts.append(f"{2 * len(own)} of the method")
    return ", ".join(parts) or "1"


def seed_note(specs: Mapping[str, Spec]) -> str | None:
    """What ± is over, for a table's parts by name; None where there is one seed."""
    pairs = {
        name: [open_stream(one) for one in spec.runs()[:2]]
        for name, spec in specs.items()
        if len(spec.seeds) > 1
    }
    if not pairs:
        return None
    order = [name for name, (one, two) in pairs.items() if _reordered(one, two)]
    drawn = [name for name, (one, two) in pairs.items() if _redrawn(one, two)]
    sets = ["what is random in the method"]
    if order:
        sets.append(f"which images{_of(order, pairs)} come when")
    if drawn:
        sets.append(f"the corruptions{_of(drawn, pairs)}, which are made on the way")
    listed = " and ".join(filter(None, (", ".join(sets[:-1]), sets[-1])))
    rest = "" if order else "; the images and their order are the same for all"
    return f"± is the standard deviation over seeds. A seed sets {listed}{rest}."


def _reordered(one: Stream, two: Stream) -> bool:
    """Whether two streams over the same files show other images, or in another order."""
    if len(one.segments) != len(two.segments):
        return True
    return not all(
        a.name == b.name and np.array_equal(a.which, b.which) and np.array_equal(a.where, b.where)
        for a, b in zip(one.segments, two.segments, strict=True)
    )


def _redrawn(one: Stream, two: Stream) -> bool:
    """Whether they corrupt images themselves, each with draws of its own."""
    made = any(part.corruption for segment in one.segments for part in segment.parts)
    return made and one.config.seed != two.config.seed


def _of(names: list[str], every: Mapping[str, object]) -> str:
    """Which parts of a table, where not all of them."""
    return "" if len(names) == len(every) else f" of {' and '.join(names)}"
