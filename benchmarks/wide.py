"""One stream on 1, 2 and 4 processes: how far answers and states are from those on one.

    python benchmarks/wide.py [--worlds 2 4] [--steps 50] [--long] [--backend nccl] [--only NAME]

Domains come and go, every process is given a part of each batch (sometimes none), and all learn.
One batch in single precision and fifty in double; `--long` adds fifty in single, `--small` takes a
model of random weights. For each precision, preset and number of processes: the largest difference
of a logit and of a number of the state, and whether all processes hold the same state to the bit.
The last rows go on, on 1 and more processes, from states that two processes saved half-way.
`--worlds 1` lets one process send its messages to itself: `--backend nccl` can be tried so on a
machine with one GPU; `--device cuda:0` has the processes of gloo share it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from ostinato.api import adapt, collect_statistics
from ostinato.checks._small import clean_images, small_batches, small_model
from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import STATISTICS, asset_path, embedded_images, embedded_model
from ostinato.ops.processes import Processes
from ostinato.ops.statistics import SourceStatistics
from ostinato.speed._ways import trusting

SETTINGS: dict[str, Any] = {"micro": 8, "enough": 8, "shared_rank": 4, "domain_rank": 2}
BATCH = 18
HEAD = "precision  preset        batches      processes  logits   state    alike  domains  updates"
TURN = ("gaussian_noise", "contrast", None, "gaussian_noise", "fog", "contrast")


@dataclass(frozen=True)
class Case:
    """One stream.

    Attributes:
        precision: of the model.
        preset: of the method.
        steps: batches of the stream.
        small: a model of random weights whose experts act whatever they do, not the embedded one.
        first: the batch to begin with.
        start: the state to begin with, a file.
        backend: of the processes.
        talk: whether one process alone sends its messages too.
        device: of all processes; "" for a GPU each with nccl, and the CPU otherwise.
    """

    precision: str = "float32"
    preset: str = "robust"
    steps: int = 1
    small: bool = False
    first: int = 0
    start: str = ""
    backend: str = "gloo"
    talk: bool = False
    device: str = ""

    @property
    def name(self) -> str:
        return f"{self.precision}-{self.preset}-{self.steps}-{self.first}" + "-talk" * self.talk

    def model(self) -> nn.Module:
        return small_model() if self.small else embedded_model()

    def statistics(self, model: nn.Module) -> SourceStatistics:
        if not self.small:
            return SourceStatistics.load(asset_path(STATISTICS))
        clean = clean_images(60, seed=9)
        return collect_statistics(model, clean.to(next(model.parameters()).device))

    def stream(self) -> list[Tensor]:
        whole = small_stream(self.steps) if self.small else corrupted_stream(self.steps)
        return whole[self.first :]


def corrupted_stream(steps: int) -> list[Tensor]:
    """Batches of the package's own images under corruptions that come and go, four in a row."""
    images = embedded_images("test")[0]
    found = []
    for at in range(steps):
        rows = torch.arange(at * BATCH, (at + 1) * BATCH) % len(images)
        name, clean = TURN[at // 4 % len(TURN)], images[rows]
        seeds = range(at * BATCH, (at + 1) * BATCH)
        found.append(clean if name is None else corrupt(clean, name, 5, seeds, constants="cifar"))
    return found


def small_stream(steps: int) -> list[Tensor]:
    """Batches of two shifted domains and of clean images, a few in a row, again and again."""
    pool = small_batches(2 * steps + 12, BATCH, seed=3)
    bright = [one for at, one in enumerate(pool) if (at // 3) % 2 == 0]
    dark = [one for at, one in enumerate(pool) if (at // 3) % 2 == 1]
    clean = list(clean_images(BATCH * steps, seed=4).split(BATCH))
    turn = [bright, bright, dark, dark, clean]
    return [turn[at % len(turn)].pop(0) for at in range(steps)]


def parts(at: int, world: int) -> list[int]:
    """How many images of a batch each process is given: some have many, some none."""
    draw = torch.Generator().manual_seed(at)
    weights = torch.rand(world, generator=draw).square() * (torch.rand(world, generator=draw) < 0.8)
    if not bool(weights.any()):
        weights[0] = 1
    ends = (BATCH * weights.cumsum(0) / weights.sum()).round().long()
    return ends.diff(prepend=torch.zeros(1).long()).tolist()


def work(case: Case, rank: int, world: int, folder: Path) -> None:
    """What one of the processes does; its answers and its state go into files."""
    device = case.device or (f"cuda:{rank}" if case.backend == "nccl" else "cpu")
    model = case.model().to(device, getattr(torch, case.precision))
    several = world > 1 or case.talk
    group = Processes(distributed.group.WORLD, talk=case.talk) if several else None
    settings = {"preset": case.preset, "statistics": case.statistics(model), "group": group}
    adapted: Any = adapt(model, **settings, **SETTINGS)
    if case.start:
        adapted.load(case.start)
    answers, events = [], []
    for at, batch in enumerate(case.stream()):
        own = batch.split(parts(at, world))[rank]
        answers.append(adapted(own.to(device)).cpu())
        events += adapted.last.events
    state = adapted.export_state().to(torch.device("cpu"))
    found = {"answers": answers, "events": events, "updates": adapted.bank.shared.updates}
    place = folder / f"{case.name}-{world}-{rank}"
    torch.save(found | {"state": [state.tensors, state.values]}, place.with_suffix(".pt"))
    adapted.save(place.with_suffix(".safetensors"), buffers=True)


def process(cases: list[Case], rank: int, world: int, folder: Path) -> None:
    """All cases on one of the processes."""
    torch.set_num_threads(1)
    several = world > 1 or cases[0].talk
    if several:
        meet(cases, rank, world, folder)
    for case in cases:
        with trusting() if case.small else nullcontext():
            work(case, rank, world, folder)
    if several:
        distributed.destroy_process_group()


def meet(cases: list[Case], rank: int, world: int, folder: Path) -> None:
    if cases[0].backend == "nccl":
        torch.cuda.set_device(cases[0].device or rank)
    distributed.init_process_group(
        cases[0].backend,
        init_method=f"file://{folder}/meet-{len(list(folder.glob('*.pt')))}",
        rank=rank,
        world_size=world,
        timeout=timedelta(minutes=5),
    )


def launch(cases: list[Case], world: int, folder: Path) -> None:
    """All processes of one number, each in an interpreter of its own."""
    texts = json.dumps([asdict(case) for case in cases])
    command = [sys.executable, __file__, "--cases", texts, "--folder", str(folder)]
    running = [
        subprocess.Popen([*command, "--rank", str(rank), "--world", str(world)])
        for rank in range(world)
    ]
    codes = [one.wait() for one in running]
    if any(codes):
        raise SystemExit(f"Of {world} processes some failed: {codes}.")


def farthest(a: Any, b: Any) -> float:
    """The largest difference between numbers of two states; infinite where they are not alike."""
    if isinstance(a, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        if not alike or not a.numel():
            return 0.0 if alike else float("inf")
        return float((a.double() - b.double()).abs().max())
    if isinstance(a, dict) and a.keys() == b.keys():
        return max((farthest(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list | tuple) and len(a) == len(b):
        return max((farthest(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, float):
        return abs(a - b)
    return 0.0 if a == b else float("inf")


@dataclass(frozen=True)
class Difference:
    """Of some processes from one; `domains` and `updates` are what the one had."""

    logits: float
    state: float
    alike: bool
    same_events: bool
    domains: int
    updates: int


def difference(case: Case, world: int, folder: Path, whole: Case | None = None) -> Difference:
    """Compare a case on some processes with one process, which may have begun earlier."""
    one = torch.load(folder / f"{(whole or case).name}-1-0.pt", weights_only=False)
    several = [torch.load(folder / f"{case.name}-{world}-{r}.pt") for r in range(world)]
    joined = [torch.cat(step) for step in zip(*(each["answers"] for each in several), strict=True)]
    first = several[0]["state"]
    return Difference(
        farthest(one["answers"][-len(joined) :], joined),
        max(farthest(one["state"], each["state"]) for each in several),
        all(farthest(first, each["state"]) == 0 for each in several),
        case.first > 0 or all(each["events"] == one["events"] for each in several),
        len(one["state"][1]["bank"]["bank"]["domains"]),
        one["updates"],
    )


def show(case: Case, world: int, found: Difference) -> None:
    print(
        f"{case.precision:9}  {case.preset:12}  {case.first + 1:4} to {case.steps:3}  {world:9}  "
        f"{found.logits:7.1e}  {found.state:7.1e}  {'yes' if found.alike else 'no':5}  "
        f"{found.domains:7}  {found.updates:7}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--long", action="store_true", help="all batches in single precision too")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="", help="of all processes")
    parser.add_argument("--small", action="store_true", help="a model of random weights")
    parser.add_argument("--only", default="", help="cases whose name begins so, as float64-robust")
    parser.add_argument("--cases")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    given = parser.parse_args()
    if given.cases:
        cases = [Case(**one) for one in json.loads(given.cases)]
        process(cases, given.rank, given.world, given.folder)
        return
    also = [("float32", given.steps)] if given.long else []
    cases = [
        Case(precision, preset, steps, given.small, backend=given.backend, device=given.device)
        for precision, steps in (("float32", 1), ("float64", given.steps), *also)
        for preset in ("robust", "forward-only")
    ]
    compare([case for case in cases if case.name.startswith(given.only)], given.worlds)


def compare(cases: list[Case], worlds: list[int]) -> None:
    """Run all cases on one process and on more, and print how far they are apart."""
    half = [replace(case, steps=case.steps // 2) for case in cases if case.steps > 1]
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launch(cases, 1, folder)
        for world in worlds:
            there = [replace(case, talk=world == 1) for case in cases]
            launch(there + half * (world == 2), world, folder)
        for case in cases:
            for world in worlds:
                there = replace(case, talk=world == 1)
                show(case, world, difference(there, world, folder, replace(case, talk=False)))
        later = {
            replace(
                whole, first=one.steps, start=str(folder / f"{one.name}-2-0.safetensors")
            ): whole
            for one, whole in zip(half, (c for c in cases if c.steps > 1), strict=True)
        }
        if not later or 2 not in worlds:
            return
        print("from states that two processes saved:")
        for world in (1, *(world for world in worlds if world > 2)):
            launch(list(later), world, folder)
            for case, whole in later.items():
                show(case, world, difference(case, world, folder, whole))


if __name__ == "__main__":
    main()
