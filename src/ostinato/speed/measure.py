"""How fast is a step, beside the forward it cannot do without? Measured in one run, interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ostinato.domains.verdict import SOURCE
from ostinato.errors import ConfigError, did_you_mean
from ostinato.models import Normalize
from ostinato.ops.precision import Precision
from ostinato.speed._memory import Kept, LiveTensors, peak
from ostinato.speed._traffic import Traffic
from ostinato.speed._ways import (
    SETTLED,
    USUAL,
    Setting,
    Way,
    make_way,
    ours,
    trusting,
)

__all__ = ["LiveTensors", "Speed", "measure_routing", "measure_speed", "measure_stream"]

_STREAMED: dict[str, dict[str, Any]] = {
    "forward-only": {"preset": "forward-only"},
    "robust": {"preset": "robust"},
    "robust:spare=0": {"preset": "robust", "spare": 0},
}
_WARM = 3
"""Batches before the clock starts: the first ones pay for what is made once."""


@dataclass(frozen=True)
class Speed:
    """What one way to handle a batch costs.

    Attributes:
        name: "forward", "compiled", a part of our method, or a method.
        images: per second.
        milliseconds: a batch, the median; the mean where batches differ by design.
        ratio: to the eager forward alone, by the same average.
        p50: milliseconds that half of the batches stay below.
        p99: milliseconds that 99 of 100 batches stay below.
        learned: share of the timed batches that moved something; a method may gather evidence,
            and a step without an update is cheap.
        routed: share of images that went to a domain with a trusted expert, where there are any.
        memory: bytes at the peak of a batch: the model, what the method keeps, activations.

    >>> Speed("forward", images=500.0, milliseconds=100.0, ratio=1.0, p50=100.0, p99=120.0).ratio
    1.0
    """

    name: str
    images: float
    milliseconds: float
    ratio: float
    p50: float
    p99: float
    learned: float = 0.0
    routed: float | None = None
    memory: int = 0


@trusting()
def measure_speed(
    make_model: Callable[[], nn.Module],
    *,
    batch_size: int = 50,
    size: tuple[int, int, int] = (3, 224, 224),
    steps: int = 10,
    precision: Precision = "fp32",
    normalize: Normalize = "model",
    compile: bool = True,
    images_from: Path | None = None,
    ways: Sequence[str] | None = None,
    domains: int = 1,
    mixed: bool = False,
    profile: Callable[[Sequence[Way], Setting], None] | None = None,
) -> list[Speed]:
    """Forwards and steps, each on its own copy of the model, batches taken in turns.

    Ours has met a shift and settled in it, so that experts act and learn, except in the ways that
    are called new; its experts are always trusted here. Batches alternate, so that whatever else
    the machine does slows all alike.

    Args:
        make_model: gives a fresh copy of the model, on the device to measure.
        batch_size: images a batch.
        size: channels, height and width.
        steps: timed batches of each.
        precision: fp32, tf32 products, or bf16 under autocast.
        normalize: the model's input convention.
        compile: whether ours compiles blocks on a GPU; otherwise it is as by default.
        images_from: a folder of photographs to make batches of; drawn scenes unless given.
        ways: which ones; the usual ones where None. "forward" is always there. Any registered
            method may be named.
        domains: how many domains our method knows.
        mixed: let every batch hold images of up to 15 of them.
        profile: called with the ways once they were timed.

    >>> from ostinato.checks import small_model
    >>> names = ["predict", "tent"]
    >>> found = measure_speed(small_model, batch_size=2, size=(3, 32, 32), steps=1, ways=names)
    >>> [speed.name for speed in found], found[0].ratio
    (['forward', 'predict', 'tent'], 1.0)
    """
    if min(batch_size, steps, domains) < 1:
        raise ConfigError("batch_size, steps and domains are at least 1.")
    device = next(make_model().parameters()).device
    traffic = Traffic(size, device, images=images_from)
    setting = Setting(
        make_model, traffic, batch_size, precision, normalize, domains, mixed, compile
    )
    made: list[Way] = []
    kept: dict[str, int] = {}
    for name in dict.fromkeys(["forward", *(USUAL if ways is None else ways)]):
        with Kept(device) as memory:
            made.append(make_way(name, setting))
        kept[name] = memory.bytes
    for _ in range(_WARM):
        _round(made, setting, device)
    for way in made:
        for _ in range(way.warm):
            _timed(way, setting.batch(), device)
    rounds = [_round(made, setting, device) for _ in range(steps)]
    found = [
        _summarise(way, [one[k] for one in rounds], [one[0] for one in rounds], batch_size)
        for k, way in enumerate(made)
    ]
    for k, way in enumerate(made):
        if way.name != "compiled" or device.type == "cuda":  # counting on a CPU would recompile
            found[k] = replace(found[k], memory=kept[way.name] + _needed(way, setting, device))
    if profile is not None:
        profile(made, setting)
    return found


@trusting()
def measure_stream(
    make_model: Callable[[], nn.Module],
    *,
    batch_size: int = 50,
    size: tuple[int, int, int] = (3, 224, 224),
    precision: Precision = "fp32",
    normalize: Normalize = "model",
    compile: bool = True,
    images_from: Path | None = None,
    ways: Sequence[str] = (),
    domains: int = 15,
    images: int = 1200,
    rounds: int = 3,
) -> list[Speed]:
    """The mean cost of a batch over a recurring stream: domains in turn, several rounds.

    What a process makes once, captures and what is compiled, comes before the clock starts.

    Args:
        make_model: gives a fresh copy of the model, on the device to measure.
        batch_size: images a batch.
        size: channels, height and width.
        precision: fp32, tf32 products, or bf16 under autocast.
        normalize: the model's input convention.
        compile: whether ours compiles blocks on a GPU; otherwise it is as by default.
        images_from: a folder of photographs to make batches of; drawn scenes unless given.
        ways: which of our method's ways; all of them unless given.
        domains: shifts, each one of the usual corruptions.
        images: of a domain and round.
        rounds: how often every domain comes.
    """
    chosen = stream_ways(ways)
    device = next(make_model().parameters()).device
    traffic = Traffic(size, device, images=images_from)
    setting = Setting(make_model, traffic, batch_size, precision, normalize, compile=compile)
    made = [make_way("forward", setting)]
    for name in chosen:
        adapted = ours(setting, **_STREAMED[name], settled=False)
        _make_once(adapted, setting, domains)

        def step(batch: torch.Tensor, adapted: Any = adapted) -> bool:
            return bool(adapted.step(batch).updated)

        made.append(Way(f"{name}, stream", step, method=adapted, mean=True))
    for _ in range(_WARM):
        _timed(made[0], traffic.clean(batch_size), device)
    visits = [domain for _ in range(rounds) for domain in range(domains)]
    found = []
    for domain in visits:
        for _ in range(max(1, images // batch_size)):
            batch = traffic.shifted(domain, batch_size)
            found.append([_timed(way, batch, device) for way in made])
    return [
        _summarise(way, [one[k] for one in found], [one[0] for one in found], batch_size)
        for k, way in enumerate(made)
    ]


def stream_ways(names: Sequence[str]) -> tuple[str, ...]:
    """The ways that a stream is measured with: these, or all where none is named.

    >>> stream_ways(())
    ('forward-only', 'robust', 'robust:spare=0')
    """
    for name in names:
        if name not in _STREAMED:
            hint = did_you_mean(name, _STREAMED)
            raise ConfigError(f"No stream is measured with {name!r}. {hint}")
    return tuple(names) or tuple(_STREAMED)


def _make_once(adapted: Any, setting: Setting, domains: int) -> None:
    """Domains that last, forgotten again: what a process captures or compiles once is there then.

    On a GPU all of them, since each kind of pass is captured when it comes the second time.
    """
    captured = setting.traffic.device.type == "cuda"
    for domain in range(domains if captured else 1):
        for _ in range(-(-SETTLED // setting.batch_size)):
            adapted.step(setting.traffic.shifted(domain, setting.batch_size))
    adapted.reset()


@trusting()
def measure_routing(
    make_model: Callable[[], nn.Module],
    *,
    batch_size: int = 50,
    size: tuple[int, int, int] = (3, 224, 224),
    steps: int = 10,
    precision: Precision = "fp32",
    normalize: Normalize = "model",
    compile: bool = True,
    images_from: Path | None = None,
    domains: int = 1,
) -> list[Speed]:
    """What routing alone costs beside a forward.

    Describing and deciding stand on the way of an answer; observing takes in what arrived.
    """
    device = next(make_model().parameters()).device
    traffic = Traffic(size, device, images=images_from)
    setting = Setting(
        make_model, traffic, batch_size, precision, normalize, domains, compile=compile
    )
    adapted: Any = ours(setting, "forward-only")
    described: list[torch.Tensor] = []

    def describe(batch: torch.Tensor) -> None:
        described[:] = [adapted._described(batch)]

    def decide(batch: torch.Tensor) -> None:
        adapted.publisher.placed(adapted.version).routes(described[0])

    made = [
        make_way("forward", setting),
        Way("describe", describe),
        Way("decide", decide),
        Way("observe", lambda batch: bool(adapted.router.take(described[0].cpu()) is None)),
    ]
    for _ in range(_WARM):
        _round(made, setting, device)
    rounds = [_round(made, setting, device) for _ in range(steps)]
    return [
        _summarise(way, [one[k] for one in rounds], [one[0] for one in rounds], batch_size)
        for k, way in enumerate(made)
    ]


@dataclass(frozen=True)
class _Timed:
    """One batch: how long it took, whether it was learned from, who answered.

    >>> _Timed(0.02, learned=True, routed=None).learned
    True
    """

    seconds: float
    learned: bool
    routed: float | None


def _round(ways: Sequence[Way], setting: Setting, device: torch.device) -> list[_Timed]:
    batch = setting.batch()
    return [_timed(way, batch, device) for way in ways]


def _timed(way: Way, batch: torch.Tensor, device: torch.device) -> _Timed:
    if way.before is not None:
        way.before(batch)
    _wait(device)
    started = time.perf_counter()
    learned = way.step(batch)
    _wait(device)
    return _Timed(time.perf_counter() - started, bool(learned), _routed(way))


def _routed(way: Way) -> float | None:
    last = None if way.method is None else way.method.last
    if last is None or last.decision is None or not last.trust:
        return None
    return sum(
        owner != SOURCE and trust > 0
        for owner, trust in zip(last.decision.per_sample or (), last.trust, strict=False)
    ) / len(last.trust)


def _summarise(way: Way, found: Sequence[_Timed], forward: Sequence[_Timed], size: int) -> Speed:
    """A way's timed batches in a row, beside the forward's."""
    seconds = sorted(one.seconds for one in found)
    average = statistics.fmean if way.mean else statistics.median
    usual = average(seconds)
    routed = [one.routed for one in found if one.routed is not None]
    return Speed(
        way.name,
        images=size / usual,
        milliseconds=1e3 * usual,
        ratio=usual / average([one.seconds for one in forward]),
        p50=1e3 * statistics.median(seconds),
        p99=1e3 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
        learned=statistics.fmean(one.learned for one in found),
        routed=statistics.fmean(routed) if routed else None,
    )


def _needed(way: Way, setting: Setting, device: torch.device) -> int:
    """Bytes at the peak of one more batch, beyond what the way keeps."""
    batch = setting.batch()
    if way.before is not None:
        way.before(batch)
    return peak(lambda: way.step(batch), device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
