"""What a common forward of many streams costs, beside the plain forward, step by step.

    python benchmarks/common.py                                              # the embedded model
    python benchmarks/common.py --model vit_base_patch16_224 --weights random --device cuda \
        --precision bf16 --batch 256 --request 8

Streams learn from a few weathers each, so that they have different numbers of domains; experts are
trusted whatever the model thinks of them, since random weights trust nobody. Then requests of all
streams share forwards: how far captured answers are from plain ones and those from each stream's
own `predict`, what routing and the forward take, and whether anything of it depends on how many
streams there are.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _serve_bodies import _large, _statistics
from _serving import images
from torch import Tensor

from ostinato.methods.ostinato.common import Prepared, prepare_all
from ostinato.methods.ostinato.desk import InUse
from ostinato.methods.ostinato.streams import SharedModel, StreamMethod
from ostinato.ops.precision import products
from ostinato.serve.loading import load_served, method_config
from ostinato.serve.settings import Settings
from ostinato.speed._ways import trusting


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--weathers", type=int, default=3, help="that a stream meets at most")
    parser.add_argument("--batch", type=int, default=64, help="images of a forward")
    parser.add_argument("--request", type=int, default=8, help="images of a request")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clean", type=int, default=200, help="images that statistics are of")
    return parser.parse_args()


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as place, trusting():
        settings: dict[str, Any] = {"model": given.model, "weights": given.weights}
        settings |= {"device": given.device, "precision": given.precision}
        shown = images(64)
        if given.model != "embedded":
            settings["statistics"] = str(_statistics(given, Path(place)))
            kept = [torch.from_numpy(_large(weather)) for weather in shown]
        else:
            kept = [torch.from_numpy(weather) for weather in shown]
        chosen = Settings.parse(settings)
        model = load_served(chosen).model
        streams = [taught(model, chosen, kept, at, given) for at in range(given.streams)]
        counts = [len(one.bank.domains) for one in streams]
        print(f"{given.streams} streams with {min(counts)} to {max(counts)} domains", flush=True)
        asked = forwards(model, streams, kept, given)
        compare(model, streams, next(asked))
        timed(model, asked, given)


def taught(
    model: SharedModel, chosen: Settings, kept: list[Tensor], at: int, given: argparse.Namespace
) -> StreamMethod:
    """A stream that has met some weathers: one, two, ... and again from one."""
    stream = StreamMethod(model, method_config(chosen, "robust"))
    for weather in range(at % given.weathers + 1):
        for part in kept[1 + (at + weather) % (len(kept) - 1)].split(16):
            stream.take(part)
    return stream


Asked = tuple[Tensor, list[StreamMethod], list[InUse]]


def forwards(
    model: SharedModel, streams: list[StreamMethod], kept: list[Tensor], given: argparse.Namespace
) -> Iterator[Asked]:
    """Forwards without end: requests of streams in turn, each under one of all weathers."""
    turn, versions = itertools.count(), [InUse(one.version, model.ranks) for one in streams]
    while True:
        parts, speaking, asked = [], list[StreamMethod](), list[InUse]()
        for _ in range(given.batch // given.request):
            at = next(turn)
            weather, first = kept[at % len(kept)], (at * given.request) % (64 - given.request)
            parts.append(weather[first : first + given.request])
            speaking.append(streams[at % len(streams)])
            asked.append(versions[at % len(streams)])
        pixels = torch.cat(parts).to(model.device)
        yield pixels.float() / 255, speaking, asked


def routed(model: SharedModel, one: Asked) -> Prepared:
    pixels, _, asked = one
    size = len(pixels) // len(asked)
    return prepare_all(model, pixels, asked, [size] * len(asked), [False] * len(asked))


def compare(model: SharedModel, streams: list[StreamMethod], one: Asked) -> None:
    """Captured, plain, and each stream by itself."""
    captures, model.captures = model.captures, None
    plain = torch.cat([answer.logits for answer in routed(model, one).run()])
    model.captures = captures
    for _ in range(4):
        again = torch.cat([answer.logits for answer in routed(model, one).run()])
    pixels, speaking, _ = one
    alone, size = [], len(pixels) // len(speaking)
    for part, stream in zip(pixels.split(size), speaking, strict=True):
        with stream.frozen():
            alone.append(stream.predict(part).float().cpu())
    own, seated = torch.cat(alone), routed(model, one).seated
    made = 0 if model.captures is None else model.captures.made
    why = None if model.captures is None else model.captures.refused
    print(f"images with an expert: {(seated.index > 0).mean():.2f}; experts: {len(seated.held)}")
    print(f"captures: {made}, refused: {why}")
    for name, mine, its in (("captured, plain", again, plain), ("common, alone", plain, own)):
        off = float((mine - its).abs().max())
        same = float((mine.argmax(1) == its.argmax(1)).float().mean())
        largest = float(its.abs().max())
        print(f"{name}: {off:.2g} apart (logits up to {largest:.1f}), {same:.4f} same labels")


def timed(model: SharedModel, asked: Iterator[Asked], given: argparse.Namespace) -> None:
    """Medians of each step, in turns."""
    captures = model.captures
    found: dict[str, list[float]] = {}
    kind, half = model.device.type, given.precision == "bf16"

    def note(name: str, work: Callable[..., Any], *args: Any) -> Any:
        wait(model)
        began = time.perf_counter()
        result = work(*args)
        wait(model)
        found.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def plain(pixels: Tensor) -> Tensor:
        exact = products(model.precision)
        with torch.no_grad(), exact, torch.autocast(kind, torch.bfloat16, enabled=half):
            return model(pixels).float().cpu()

    for _ in range(given.rounds):
        one = next(asked)
        note("the plain forward", plain, one[0])
        ready = note("routing", routed, model, one)
        note("the common forward", ready.run)
        if captures is not None:
            model.captures = None
            note("the same without captures", ready.run)
            model.captures = captures
    base = median(found["the plain forward"])
    for name, times in found.items():
        took = median(times)
        print(
            f"{name}: {1e3 * took:.2f} ms, {given.batch / took:.0f} images/s, × {took / base:.2f}"
        )


def wait(model: SharedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
