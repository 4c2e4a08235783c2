"""How fast is a step, beside the forward it cannot do without? Measured in one run, interleaved."""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.api import adapt, collect_statistics
from ostinato.errors import ConfigError
from ostinato.methods.base import Method
from ostinato.models import Normalize, VisionModel
from ostinato.ops.precision import Precision, products

Step = Callable[[Tensor], Any]
WARM = 3
SETTLED = 6
"""Batches of a shift that our method meets before it is measured."""
"""Batches before the clock starts: the first ones pay for what is made once."""


@dataclass(frozen=True)
class Speed:
    """What one way to handle a batch costs.

    Attributes:
        name: "forward", or a method.
        images: per second, from the median batch.
        milliseconds: the median batch.
        ratio: to the forward alone.
        updates: share of the timed batches that moved something; a method may gather evidence,
            and a step without an update is cheap.
        memory: bytes at the peak of a batch: the model, what the method keeps, activations.
    """

    name: str
    images: float
    milliseconds: float
    ratio: float
    updates: float
    memory: int


def measure_speed(
    make_model: Callable[[], nn.Module],
    *,
    batch_size: int = 50,
    size: tuple[int, int, int] = (3, 224, 224),
    steps: int = 10,
    precision: Precision = "fp32",
    normalize: Normalize = "model",
) -> list[Speed]:
    """A forward, a TENT step, our step and our `predict`, each on its own copy of the model.

    Ours has met a shift and settled in it, so that experts act and learn. Batches alternate between
    the four, so that whatever else the machine does slows all alike.

    Args:
        make_model: gives a fresh copy of the model, on the device to measure.
        batch_size: images a batch.
        size: channels, height and width.
        steps: timed batches of each.
        precision: fp32, tf32 products, or bf16 under autocast.
        normalize: the model's input convention.

    >>> from ostinato.checks import small_model
    >>> found = measure_speed(small_model, batch_size=2, size=(3, 32, 32), steps=1)
    >>> [speed.name for speed in found], found[0].ratio
    (['forward', 'tent', 'ostinato', 'predict'], 1.0)
    """
    if min(batch_size, steps) < 1:
        raise ConfigError("batch_size and steps are at least 1.")
    draw = torch.Generator().manual_seed(0)
    device = next(make_model().parameters()).device
    images = torch.rand(max(batch_size, 2), *size, generator=draw).to(device)
    ways: dict[str, Step] = {}
    kept: dict[str, int] = {}
    makers = {"forward": _forward, "tent": _tent, "ostinato": _both, "predict": _predict}
    for name, make in makers.items():
        with _Kept(device) as memory:
            ways[name] = make(make_model(), images, precision, normalize)
            for number in range(WARM):
                ways[name](shifted(images, SETTLED + number)[:batch_size])
        kept[name] = memory.bytes
    times, moved = _interleaved(ways, images[:batch_size], steps)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return [
        Speed(
            name,
            images=batch_size / seconds,
            milliseconds=1e3 * seconds,
            ratio=seconds / medians["forward"],
            updates=moved[name] / steps,
            memory=kept[name] + _peak(ways[name], images[:batch_size]),
        )
        for name, seconds in medians.items()
    ]


def _forward(model: nn.Module, images: Tensor, precision: Precision, normalize: Normalize) -> Step:
    vision = VisionModel(model, normalize=normalize).eval()
    kind = images.device.type

    def step(batch: Tensor) -> Tensor:
        half = torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16")
        with torch.no_grad(), products(precision), half:
            logits: Tensor = vision(batch)
        return logits

    return step


def _tent(model: nn.Module, images: Tensor, precision: Precision, normalize: Normalize) -> Step:
    return adapt(model, "tent", preset="imagenet-c", normalize=normalize, precision=precision)


def _ours(model: nn.Module, images: Tensor, precision: Precision, normalize: Normalize) -> Method:
    """Adapted to a shift that it has settled in."""
    source = collect_statistics(model, images, normalize=normalize)
    adapted = adapt(model, statistics=source, normalize=normalize, precision=precision)
    for number in range(SETTLED):
        adapted(shifted(images, number)[: adapted.config.micro])
    return adapted


def _both(model: nn.Module, images: Tensor, precision: Precision, normalize: Normalize) -> Step:
    return _ours(model, images, precision, normalize)


def _predict(model: nn.Module, images: Tensor, precision: Precision, normalize: Normalize) -> Step:
    adapted = _ours(model, images, precision, normalize)

    def step(batch: Tensor) -> Tensor:
        with adapted.frozen():
            return adapted.predict(batch)

    return step


def shifted(images: Tensor, number: int) -> Tensor:
    """Another darkened and noisy copy of the images: one shift, new content every time."""
    draw = torch.Generator().manual_seed(number)
    noise = torch.rand(images.shape, generator=draw).to(images.device)
    return 0.2 * images.roll(number, 0) + 0.3 * noise


def _interleaved(
    ways: dict[str, Step], images: Tensor, steps: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of every batch, and how many of them moved something, by name."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    moved = dict.fromkeys(ways, 0)
    for number in range(steps):
        batch = shifted(images, SETTLED + WARM + number)
        for name, step in ways.items():
            _wait(images.device)
            started = time.perf_counter()
            step(batch)
            _wait(images.device)
            times[name].append(time.perf_counter() - started)
            last = getattr(step, "last", None)
            moved[name] += last is not None and last.updated
    return times, moved


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Kept:
    """How many bytes stay once the block is done: the model and what a method adds to it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0
        self._live = LiveTensors() if device.type != "cuda" else None

    def __enter__(self) -> _Kept:
        if self._live is not None:
            self._live.__enter__()
        else:
            self.bytes = -torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(self, *error: Any) -> None:
        gc.collect()
        if self._live is not None:
            self._live.__exit__(*error)
            self.bytes = self._live.now
        else:
            self.bytes += torch.cuda.memory_allocated(self.device)


def _peak(step: Step, images: Tensor) -> int:
    """Bytes that one batch needs at most beyond what stays."""
    if images.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(images.device)
        before = torch.cuda.memory_allocated(images.device)
        step(images)
        return int(torch.cuda.max_memory_allocated(images.device) - before)
    with LiveTensors() as live:
        step(images)
    return int(live.peak)


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors made inside, and their peak, where the device does not.

    What an operator takes and gives back before it returns is not seen.

    >>> with LiveTensors() as live:
    ...     a = torch.zeros(1000)
    ...     b = a + 1
    ...     del a, b
    ...     c = torch.zeros(10)
    >>> live.peak, live.now
    (8000, 40)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count what is new among its results."""
        known = {_place(t) for t in torch.utils._pytree.tree_leaves((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and _place(tensor) not in known:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, count: int) -> None:
        self.now -= count


def _place(tensor: Any) -> int | None:
    return tensor.untyped_storage()._cdata if isinstance(tensor, Tensor) else None
