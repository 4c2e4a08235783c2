"""What a stream's state weighs, and how many of them one keeper writes in a second.

    python benchmarks/ray_keeper.py --seconds 10
    python benchmarks/ray_keeper.py --model vit_base_patch16_224 --side 224 --domains 2

The state is that of a stream which has met so many weathers; it is written again and again under a
valid epoch, as shards do, by several threads. Nothing of Ray is measured here: its way to the
keeper comes on top.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from _serving import images

from ostinato import adapt, collect_statistics
from ostinato.ops.snapshot import State, encode_state
from ostinato.scale._keeper import Keeper
from ostinato.serve.settings import Settings


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--domains", type=int, default=5)
    parser.add_argument("--images", type=int, default=200, help="of every domain")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--threads", type=int, default=4, help="that write at the same time")
    return parser.parse_args()


def met(given: argparse.Namespace) -> tuple[State, State, int]:
    """A state after some weathers, with and without the latest images; domains found."""
    kept = torch.from_numpy(images(given.images))
    if given.model == "embedded":
        from ostinato.data.embedded import STATISTICS, asset_path, embedded_model

        adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS))
    else:
        import timm

        model = timm.create_model(given.model).eval()
        clean = larger(kept[0][:64], given.side)
        adapted = adapt(model, statistics=collect_statistics(model, clean.float() / 255))
    for weather in kept[: given.domains]:
        for part in weather.split(50):
            adapted(larger(part, given.side))
    method: Any = adapted
    state = method.export_state()
    inner = method.bank.without_buffers(state.part("bank"))
    bare = {k: t for k, t in state.tensors.items() if not k.startswith("bank/")}
    bare |= {f"bank/{k}": t for k, t in inner.tensors.items()}
    return state, State(bare, state.values | {"bank": inner.values}), len(method.bank.domains)


def larger(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Images of another size."""
    if pixels.shape[-1] == side:
        return pixels
    found = torch.nn.functional.interpolate(pixels.float(), side, mode="bicubic")
    return found.clamp(0, 255).to(torch.uint8)


def main() -> None:
    given = parse()
    whole, bare, domains = met(given)
    print(f"{given.model}: {domains} domains found of {given.domains} weathers")
    for name, state in (("with the latest images", whole), ("without", bare)):
        data = encode_state(state, {})
        pace = written(given, data)
        print(f"{name}: {len(data) / 1e6:.2f} MB a state; one keeper writes {pace:.0f} of them a "
              f"second, {pace * len(data) / 1e6:.0f} MB/s")  # fmt: skip


def written(given: argparse.Namespace, data: bytes) -> float:
    """States a second."""
    with tempfile.TemporaryDirectory() as place:
        keeper = Keeper(Settings.parse({"data": Path(place), "limits": {"streams": 10**6}}))
        epoch, _ = keeper.begin(0)
        claims = [
            keeper.add_stream(0, epoch, f"cam-{n}", "robust", False) for n in range(given.streams)
        ]
        counts = [0] * given.threads
        until = time.monotonic() + given.seconds

        def work(one: int) -> None:
            while time.monotonic() < until:
                row, claim = claims[(one + given.threads * counts[one]) % given.streams]
                facts = {"version": f"a.{counts[one]}", "learned": counts[one], "domains": []}
                keeper.keep(row.id, claim, data, facts, None)
                counts[one] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(given.threads)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        keeper.close()
    return sum(counts) / given.seconds


if __name__ == "__main__":
    main()
