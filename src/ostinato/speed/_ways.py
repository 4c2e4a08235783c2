"""The ways to handle a batch whose speed is compared, each on its own copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, collect_statistics
from ostinato.errors import ConfigError, did_you_mean
from ostinato.methods.base import Method
from ostinato.methods.ostinato import maps
from ostinato.models import Normalize, VisionModel
from ostinato.ops.precision import Precision, products
from ostinato.registry import METHODS
from ostinato.speed._traffic import Traffic

_CLEAN = 100
"""Clean images that statistics are taken from."""
SETTLED = 300
"""Images of a shift that our method meets before it counts as settled there."""
NEW = 200
"""Images for which a domain counts as new."""
WARM_DOMAINS = 3
"""New domains before the clock starts: the pass that makes maps is captured the second time."""
_OWN = ("predict", "learn", "both", "forward-only", "new", "new robust")
USUAL = ("forward", "compiled", "tent", *_OWN)


@dataclass(frozen=True)
class Setting:
    """What all ways share.

    Attributes:
        make_model: gives a fresh copy of the model, on the device to measure.
        traffic: where images come from.
        batch_size: images a batch.
        precision: fp32, tf32 products, or bf16 under autocast.
        normalize: the model's input convention.
        domains: how many shifts our method has met.
        mixed: whether every batch holds images of up to 15 of them.
        compile: whether ours compiles blocks on a GPU; otherwise it is as by default.
    """

    make_model: Callable[[], nn.Module]
    traffic: Traffic
    batch_size: int = 50
    precision: Precision = "fp32"
    normalize: Normalize = "model"
    domains: int = 1
    mixed: bool = False
    compile: bool = True

    def batch(self) -> Tensor:
        """A new batch of the traffic that is measured."""
        if self.mixed:
            return self.traffic.mixed(self.batch_size, min(self.domains, 15))
        return self.traffic.shifted(0, self.batch_size)


@dataclass
class Way:
    """One way to handle a batch.

    Attributes:
        name: what the table calls it.
        step: what is timed; says by True that something was learned.
        before: what a batch needs that is not timed.
        method: the method, where there is one.
        mean: whether batches differ by design, so that their mean counts and not their median.
        warm: batches before the clock starts, beside those that all ways have: what a process
            makes once, such as a capture, is made then.
    """

    name: str
    step: Callable[[Tensor], Any]
    before: Callable[[Tensor], Any] | None = None
    method: Method | None = None
    mean: bool = False
    warm: int = 0


def make_way(name: str, setting: Setting) -> Way:
    """A way by name: one of `USUAL`, or a registered method that needs no prepared file."""
    if name in ("forward", "compiled"):
        return Way(name, _forward(setting, compiled=name == "compiled"))
    if name in _OWN:
        return _own(name, setting)
    if name not in METHODS:
        raise ConfigError(f"There is no way {name!r}. {did_you_mean(name, [*USUAL, *METHODS])}")
    return _peer(name, setting)


def _forward(setting: Setting, *, compiled: bool) -> Callable[[Tensor], Any]:
    model = setting.make_model()
    vision: Any = VisionModel(model, normalize=setting.normalize).eval()
    device = next(model.parameters()).device.type
    if compiled:
        vision = torch.compile(vision, dynamic=False)

    def step(batch: Tensor) -> None:
        half = torch.autocast(device, torch.bfloat16, enabled=setting.precision == "bf16")
        with torch.no_grad(), products(setting.precision), half:
            vision(batch)

    return step


def _peer(name: str, setting: Setting) -> Way:
    kind, model = METHODS[name], setting.make_model()
    preset = "imagenet-c" if "imagenet-c" in kind.presets else next(iter(kind.presets), None)
    needs = kind.needs(kind.Config.parse(kind.presets.get(preset, {})))
    if needs - {"source statistics"}:
        raise ConfigError(f"{name} needs {', '.join(sorted(needs))}: its speed cannot be measured.")
    more: dict[str, Any] = {}
    if needs:
        clean = setting.traffic.clean(_CLEAN)
        more["statistics"] = collect_statistics(model, clean, normalize=setting.normalize)
    adapted = adapt(
        model,
        name,
        preset=preset,
        normalize=setting.normalize,
        precision=setting.precision,
        **more,
    )
    return Way(name, _updating(adapted), method=adapted)


def _updating(adapted: Method) -> Callable[[Tensor], Any]:
    return lambda batch: adapted.step(batch).updated


def ours(setting: Setting, preset: str, *, settled: bool = True, **settings: Any) -> Method:
    """Our method with statistics of clean traffic, and settled in every shift if asked."""
    model = setting.make_model()
    statistics = collect_statistics(
        model, setting.traffic.clean(_CLEAN), normalize=setting.normalize
    )
    adapted = adapt(
        model,
        preset=preset,
        statistics=statistics,
        normalize=setting.normalize,
        precision=setting.precision,
        max_domains=max(32, setting.domains),
        compile=True if setting.compile else "auto",
        **settings,
    )
    if settled:
        for domain in range(min(setting.domains, 15)):
            for _ in range(-(-SETTLED // 50)):
                adapted(setting.traffic.shifted(domain, 50))
        crowd(adapted, setting.domains)
    return adapted


@contextmanager
def trusting() -> Iterator[None]:
    """Inside, experts act whatever the model thinks of them: random weights trust nobody."""
    before = maps.TRUSTED
    maps.TRUSTED = float("inf")
    try:
        yield
    finally:
        maps.TRUSTED = before


def crowd(adapted: Any, domains: int) -> None:
    """Let it know so many domains: copies of the last one's expert, far from all traffic."""
    router, bank = adapted.router, adapted.bank
    draw = torch.Generator().manual_seed(0)
    while 0 < len(bank.domains) < domains:
        last = next(reversed(bank.domains))
        number = router.next_id
        router.next_id += 1
        router.ids.append(number)
        away = torch.randn(router.sums.shape[1], generator=draw, dtype=router.sums.dtype)
        far = SETTLED * (router.sums[:1] + 100 * away)
        rows = {"sums": far, "counts": SETTLED, "mix": 0, "spreads": 1, "untested": 0}
        for name, row in rows.items():
            known = getattr(router, name)
            added = row if isinstance(row, Tensor) else torch.full((1,), row, dtype=known.dtype)
            setattr(router, name, torch.cat([known, added]))
        copied = type(bank.domains[last])(**vars(bank.domains[last]))
        copied.recent, copied.arrived, copied.waiting, copied.published = [], [], 0, None
        copied.branches = copy.copy(copied.branches)
        copied.move("cpu")  # as those not used lately are
        bank.domains[number] = copied
    router._view = None
    adapted._republish()


def _own(name: str, setting: Setting) -> Way:
    if name.startswith("new"):
        return _new(name, setting)
    if name == "forward-only":
        adapted = ours(setting, "forward-only")
    else:
        adapted = ours(setting, "robust", spare=0)  # so that every batch is learned from
    if name == "predict":

        def answer(batch: Tensor) -> bool:
            with adapted.frozen():
                adapted.predict(batch)
            return False

        return Way(name, answer, method=adapted)
    if name == "learn":
        return Way(name, lambda batch: adapted.learn(), before=adapted.predict, method=adapted)
    return Way(name, _updating(adapted), method=adapted)


def _new(name: str, setting: Setting) -> Way:
    adapted = ours(setting, "robust" if "robust" in name else "forward-only", settled=False)
    seen = 0

    def begin(batch: Tensor) -> None:
        nonlocal seen
        if seen >= NEW:
            adapted.reset()
            seen = 0
        seen += len(batch)

    warm = WARM_DOMAINS * -(-NEW // setting.batch_size)
    return Way(name, _updating(adapted), before=begin, method=adapted, mean=True, warm=warm)
