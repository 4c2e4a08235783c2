"""Error per domain and round."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.report._heat import Cells, HeatMap
from ostinato.report._over_time import WORDS, heading
from ostinato.report._runs import Variant
from ostinato.report.figure import Data, Figure, Part
from ostinato.report.timeline import by_stream, readable


def error_per_domain(variants: Sequence[Variant]) -> list[Part]:
    """A heat map of every domain in every round, one panel per variant."""
    groups = by_stream(variants)
    return [
        _heat(group, "" if len(groups) == 1 else f"-{place + 1}")
        for place, group in enumerate(groups)
    ]


def _mean_cells(variant: Variant) -> Cells:
    """(round, domain) to the mean over seeds."""
    found: dict[tuple[int, str], list[float]] = {}
    for run in variant.runs:
        for cell in run.summary.cells:
            found.setdefault((cell.round, cell.domain), []).append(cell.value)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _heat(group: Sequence[Variant], ending: str) -> Figure:
    tables = [_mean_cells(variant) for variant in group]
    metric = group[0].first.summary.metric
    word, name = WORDS[metric], f"error-per-domain{ending}"
    domains = list(dict.fromkeys(domain for table in tables for _, domain in table))
    heat = HeatMap(group, tables, domains, metric)
    alt = heat.alt(word, "domains")
    return Figure(
        name,
        f"{heading(word)} per domain and round",
        f"{heading(word)} in percent, mean over seeds. Blue is better and orange worse "
        f"than {heat.words}, at most {heat.reach:.1f} points. A method that remembers gets better "
        "from left to right; one that forgets, worse.",
        alt,
        heat.draw(name, alt, [readable(domain) for domain in domains]),
        Data(("run", "round", "domain", word), heat.data()),
        720,
    )
