"""Figures for Prometheus; per-stream ones are read from the streams when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from ostinato.serve.fleet import Fleet

LATENCY = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PER_STREAM = (
    ("domains", "Domains that the stream knows", False),
    ("answered_images", "Images answered since the start", True),
    ("learned_requests", "Requests learned from, over all lives", True),
    ("skipped_requests", "Requests not learned from, for lack of time", True),
    ("founded_domains", "Domains founded since the start", True),
    ("rollbacks", "Times that learned state was undone", True),
    ("waiting_requests", "Requests that wait to be learned from", False),
    ("learning_lag_seconds", "How long the oldest of them has waited", False),
    ("trust", "Mean trust of recent answers", False),
    ("distance", "Mean distance of recent images to their domain; 1 is usual", False),
    ("unknown_share", "Share of recent images that no domain explains", False),
    ("differing_share", "Share of recent answers that differ from the source's", False),
    ("estimated_accuracy", "Mean top probability of recent answers, no labels needed", False),
    ("alarms", "Things that a person should look at", False),
)


class Metrics(Collector):
    """Counts what the server does.

    Args:
        fleet: whose streams are read.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "ostinato_requests", "Requests by route and status", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.latency = Histogram(
            "ostinato_request_seconds", "From request to answer", ["route"],
            buckets=LATENCY, registry=registry,
        )  # fmt: skip
        self.wait = Histogram(
            "ostinato_answer_seconds", "From decoded images to their answer",
            buckets=LATENCY, registry=registry,
        )  # fmt: skip
        self.images = Histogram(
            "ostinato_forward_images", "Images of a common forward",
            buckets=SIZES, registry=registry,
        )  # fmt: skip
        self.together = Histogram(
            "ostinato_forward_requests", "Requests of a common forward",
            buckets=SIZES, registry=registry,
        )  # fmt: skip
        self.forward = Counter(
            "ostinato_forward_seconds", "Time spent in forwards", registry=registry
        )
        registry.register(self)

    def ran(self, requests: int, images: int, seconds: float) -> None:
        """A common forward was run."""
        self.together.observe(requests)
        self.images.observe(images)
        self.forward.inc(seconds)

    def waited(self, seconds: float) -> None:
        """A request was answered."""
        self.wait.observe(seconds)

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return bytes(generate_latest(self.registry))

    def describe(self) -> list[Any]:
        """Nothing in advance: the registry then asks for nothing while the fleet is built."""
        return []

    def collect(self) -> Iterator[Any]:
        """Figures of the server and of every stream."""
        fleet = self.fleet
        for name, text, value in (
            ("streams", "Streams there are", len(fleet.streams)),
            ("waiting_images", "Images that wait for an answer", fleet.batcher.waiting),
            ("storage_ok", "Whether the data folder can be written", fleet.storage() == "whole"),
        ):
            yield GaugeMetricFamily(f"ostinato_{name}", text, value=float(value))
        for name, text, total in (
            ("learning_seconds", "Time spent learning", fleet.learner.seconds),
            ("dropped_rows", "Events and answers given up", fleet.writer.dropped),
        ):
            yield CounterMetricFamily(f"ostinato_{name}", text, value=float(total))
        rows = [(stream.name, _figures(stream)) for stream in list(fleet.streams.values())]
        for at, (name, text, counts) in enumerate(PER_STREAM):
            family = CounterMetricFamily if counts else GaugeMetricFamily
            metric = family(f"ostinato_stream_{name}", text, labels=["stream"])
            for stream, figures in rows:
                figure = figures[at]
                if figure is not None:
                    metric.add_metric([stream], float(figure))
            yield metric


def _figures(stream: Any) -> tuple[float | None, ...]:
    watch, summary = stream.watch, stream.watch.summary()
    return (
        len(stream.method.bank.domains),
        watch.answered,
        stream.learned,
        stream.skipped,
        watch.founded,
        stream.rollbacks,
        stream.waiting,
        stream.lag(),
        summary["trust"],
        summary["distance"],
        summary["unknown"],
        summary["differing"],
        summary["confidence"],
        len(watch.alarms()),
    )
