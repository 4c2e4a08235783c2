"""Memory and time of an adaptation step on SegFormer, by default B5 at ACDC's 960 × 540.

    python benchmarks/segformer.py --device cuda                       # B5, bf16, all methods
    python benchmarks/segformer.py --size b0 --height 64 --width 96 --device cpu --steps 1

The weights are random, which changes neither memory nor time. Source statistics come from random
images. New domains are accepted on one image, so that every step updates; as shipped, `robust`
and `paper` differ in when they do.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor, nn

import ostinato
from ostinato.models import VisionModel
from ostinato.running.devices import resolve_device
from ostinato.running.provenance import describe_device
from ostinato.speed.measure import LiveTensors

Size = Literal["b0", "b1", "b2", "b3", "b4", "b5"]
Name = Literal["paper", "robust", "tent", "cotta"]
Precision = Literal["fp32", "bf16"]

SMALL, LARGE = (32, 64, 160, 256), (64, 128, 320, 512)
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "b0": ((2, 2, 2, 2), SMALL, 256),
    "b1": ((2, 2, 2, 2), LARGE, 256),
    "b2": ((3, 4, 6, 3), LARGE, 768),
    "b3": ((3, 4, 18, 3), LARGE, 768),
    "b4": ((3, 8, 27, 3), LARGE, 768),
    "b5": ((3, 6, 40, 3), LARGE, 768),
}
"""Depths and widths of the four stages, and the decoder's width."""
CLASSES = 19
GIB = 2**30


@dataclass(frozen=True)
class Cost:
    """What one method costs.

    Attributes:
        name: "forward", or a method.
        memory: GiB at the peak of a step, model and optimizer included.
        seconds: the median step.
        ratio: to the forward alone.
        updates: steps that moved something, of those timed.
        layers: feed-forward layers with experts.
    """

    name: str
    memory: float
    seconds: float
    ratio: float
    updates: int
    layers: int


def build(size: Size = "b5", classes: int = CLASSES, seed: int = 0) -> nn.Module:
    """SegFormer of a published shape with random weights, in eval mode.

    Its logits are scaled up: predictions as even as random weights make them would not pass the
    entropy filter, and nothing would be learned.
    """
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    depths, widths, decoder = SHAPES[size]
    config = SegformerConfig(
        num_labels=classes,
        depths=list(depths),
        hidden_sizes=list(widths),
        decoder_hidden_size=decoder,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SegformerForSemanticSegmentation(config).eval()
    with torch.no_grad():
        model.decode_head.classifier.weight.mul_(100)
    return model


def plain(model: nn.Module, precision: Precision) -> Callable[[Tensor], Any]:
    """The model's own prediction."""
    vision = VisionModel(model)

    def forward(batch: Tensor) -> Tensor:
        enabled = precision == "bf16"
        with torch.no_grad(), torch.autocast(batch.device.type, torch.bfloat16, enabled=enabled):
            return vision(batch)

    return forward


def adapted(name: Name, model: nn.Module, images: Tensor, precision: Precision) -> Any:
    """The method around the model."""
    if name in ("tent", "cotta"):
        return ostinato.adapt(model, name, preset="acdc", precision=precision)
    source = None
    if name == "robust":
        source = ostinato.collect_statistics(model, images, batch_size=1)
    return ostinato.adapt(
        model,
        preset=name,
        statistics=source,
        precision=precision,
        **({} if name == "robust" else {"discriminator": {"evidence": 1, "correction": False}}),
    )


@contextmanager
def peak(device: torch.device) -> Iterator[list[float]]:
    """GiB of tensors at their highest inside, in the list's only place."""
    found = [0.0]
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        found[0] = torch.cuda.max_memory_allocated(device) / GIB
        return
    with LiveTensors() as live:
        yield found
    found[0] = live.peak / GIB


def timed(step: Callable[[Tensor], Any], images: Tensor, steps: int) -> tuple[float, int]:
    """Median seconds of a step, and how many updated; the first, which warms up, is left out."""
    seconds, updates = [], 0
    for number in range(steps + 1):
        wait(images.device)
        started = time.perf_counter()
        step(images[number % len(images)][None])
        wait(images.device)
        if number:
            seconds.append(time.perf_counter() - started)
            last = getattr(step, "last", None)
            updates += last is not None and last.updated
    return statistics.median(seconds), updates


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    names: tuple[Name, ...],
    *,
    size: Size,
    height: int,
    width: int,
    precision: Precision,
    device: str,
    steps: int,
) -> list[Cost]:
    """Forward alone, then every method on a model of its own."""
    where = torch.device(device)
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, height, width, generator=draw).to(where)
    costs: list[Cost] = []
    with peak(where) as memory:
        forward = plain(build(size).to(where), precision)
        forward(images[:1])
    base, _ = timed(forward, images, steps)
    costs.append(Cost("forward", memory[0], base, 1.0, 0, 0))
    del forward
    for name in names:
        with peak(where) as memory:
            method = adapted(name, build(size).to(where), images, precision)
            for image in images[:2]:  # the second step has the optimizer's state beside it
                method.step(image[None])
        seconds, updates = timed(method, images, steps)
        hooks = getattr(method, "hooks", None)
        layers = len(method.pool.layers) if hasattr(method, "pool") else 0
        layers = layers if hooks is None else hooks.blocks
        costs.append(Cost(name, memory[0], seconds, seconds / base, updates, layers))
        del method
    return costs


def main(
    *,
    size: Size = "b5",
    height: int = 540,
    width: int = 960,
    precision: Precision = "bf16",
    method: Annotated[tuple[Name, ...], tyro.conf.arg(aliases=["-m"])] = (
        "paper",
        "robust",
        "tent",
        "cotta",
    ),
    steps: int = 5,
    device: str = "auto",
) -> None:
    """Print peak memory and seconds of a step, beside the forward alone.

    Args:
        size: of the SegFormer.
        height: of the images.
        width: of the images.
        precision: bf16 runs under autocast.
        method: this project's presets, or other methods.
        steps: timed steps of each.
        device: cpu, cuda, or auto for what there is.
    """
    if steps < 1:
        sys.exit("steps is at least 1")
    place = resolve_device(device)
    costs = measure(
        method,
        size=size,
        height=height,
        width=width,
        precision=precision,
        device=place,
        steps=steps,
    )
    total = sum(p.numel() for p in build(size).parameters()) / 1e6
    print(f"SegFormer-{size.upper()} ({total:.1f} M, random weights), {width}×{height}, batch 1,")
    print(f"{precision}, {describe_device(place)}, torch {torch.__version__}")
    print(f"{'':10}{'peak GiB':>10}{'s / step':>10}{'forwards':>10}{'updates':>10}{'experts':>10}")
    for cost in costs:
        moved = "" if cost.name == "forward" else f"{cost.updates}/{steps}"
        print(
            f"{cost.name:10}{cost.memory:>10.2f}{cost.seconds:>10.3f}{cost.ratio:>10.1f}"
            f"{moved:>10}{cost.layers or '':>10}"
        )


if __name__ == "__main__":
    tyro.cli(main)
