"""The figures of all shards on one page for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families


def merged(pages: Mapping[int, str], front: Any) -> bytes:
    """Pages by shard as one, with the front's own figures.

    >>> from types import SimpleNamespace
    >>> page = "# TYPE x gauge\\nx 1.0\\n"
    >>> text = merged({0: page, 3: page}, SimpleNamespace(seats=[], counts={}, flying={}))
    >>> [line for line in text.decode().splitlines() if line.startswith("x")]
    ['x{shard="0"} 1.0', 'x{shard="3"} 1.0']
    """
    families: dict[str, Metric] = {}
    for shard, page in pages.items():
        for family in text_string_to_metric_families(page):
            known = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {**sample.labels, "shard": str(shard)}
                known.add_sample(sample.name, labels, sample.value)
    registry = CollectorRegistry()
    registry.register(_Given([*families.values(), *_own(front)]))
    return bytes(generate_latest(registry))


def _own(front: Any) -> list[Metric]:
    """What the front itself counts."""
    up = GaugeMetricFamily("ostinato_shard_up", "Whether the shard answers", labels=["shard"])
    starts = CounterMetricFamily(
        "ostinato_shard_starts", "Times that the shard has started", labels=["shard"]
    )
    for seat in front.seats:
        up.add_metric([str(seat.number)], float(seat.up.is_set()))
        starts.add_metric([str(seat.number)], float(seat.starts))
    asked = CounterMetricFamily(
        "ostinato_front_requests", "Requests by route and status", labels=["route", "status"]
    )
    for (route, status), count in list(front.counts.items()):
        asked.add_metric([route, str(status)], float(count))
    held = GaugeMetricFamily(
        "ostinato_front_flying", "Requests on their way", value=float(sum(front.flying.values()))
    )
    return [up, starts, asked, held]


class _Given:
    """Metrics that are there already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self.metrics
