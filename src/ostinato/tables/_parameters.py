"""The parameters table: what each method adds to a model and what one step moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ostinato.api import adapt, collect_statistics, prepare
from ostinato.errors import OstinatoError
from ostinato.methods.base import Method
from ostinato.models.loading import load_model
from ostinato.registry import METHODS
from ostinato.running.spec import CheckedSpec
from ostinato.tables._cells import weights_name
from ostinato.tables._plan import Plan, plan_table
from ostinato.tables._render import TableRow, Value
from ostinato.tables._table import Table, Variant
from ostinato.tables.request import Request

_DOMAINS = 7
"""The paper's K on ImageNet-C."""


def parameter_rows(table: Table, request: Request) -> tuple[Plan, list[TableRow]]:
    """One row a method. Sizes do not depend on values, so full scale takes random weights."""
    if request.scale == "full":
        changes = {"weights": "random", **(request.changes or {})}
        request = replace(request, changes=changes)
    rows = []
    plan = plan_table(table, request)
    failed: dict[str, OstinatoError] = {}
    for row in plan.rows:
        spec = row.specs[table.parts[0].name].replace(device="cpu")
        try:
            method = _build(spec, load_model(spec))
        except (OstinatoError, RuntimeError) as error:
            failed[row.label] = OstinatoError(str(error))
            continue
        facts = {"Model": spec.model.partition(".")[0], "Weights": weights_name(spec)}
        rows.append(_row(row.variant, method, facts))
    return plan.leave_out(failed), rows


def _row(variant: Variant, method: Method, facts: dict[str, str]) -> TableRow:
    source = sum(p.numel() for p in method._flags.parameters())
    added, trained = method.added(_DOMAINS), method.trained()
    values = (
        Value(value=100 * added / source, digits=2),
        Value(value=100 * trained / source, digits=2),
        Value(value=added / 1e6, digits=3),
        Value(value=trained / 1e6, digits=3),
    )
    needs = ", ".join(sorted(method.needs(method.config))) or "none"
    return TableRow(
        label=variant.label,
        origin="measured",
        values=values,
        facts={**facts, "Help": needs, "Predicts": str(method.predicts)},
    )


def _build(spec: CheckedSpec, model: torch.nn.Module) -> Method:
    """The method with whatever help it needs, taken from a few random images."""
    kind, config = METHODS[spec.method], spec.config
    needs = kind.needs(config)
    given: dict[str, Any] = {}
    size = tuple(getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224)))
    images = torch.rand(8, *size, generator=torch.Generator().manual_seed(0))
    if "source statistics" in needs:
        given["statistics"] = collect_statistics(model, images)
    if "prepared file" in needs:
        labels = torch.arange(len(images))
        given["prepared"] = prepare(model, spec.method, images, labels, **config.model_dump())
    return adapt(model, spec.method, **given, **config.model_dump())
