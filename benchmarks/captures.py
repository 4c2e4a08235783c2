"""Captured answers and updates beside plain ones, batch by batch over one recurring stream.

    python benchmarks/captures.py                                    # the embedded model
    python benchmarks/captures.py --model vit_b_16 --precision bf16  # torchvision's, random weights

Three copies of a model meet the same batches: captured, plain, and plain once more, which says how
far two plain runs differ on this GPU. The stream founds domains, comes back to them, merges them
(fewer are kept than come), makes maps anew, mixes domains in a batch, changes batch sizes, and is
reset once. Then predict and both are timed in turns beside the forward. Without a GPU nothing is
captured, and the numbers say that two plain runs are equal.
"""

from __future__ import annotations

import argparse
import copy
import statistics as medians
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, collect_statistics
from ostinato.models import VisionModel
from ostinato.speed._traffic import Traffic
from ostinato.speed._ways import trusting
from ostinato.types import StepOutput

Batches = list[tuple[str, Tensor]]


@dataclass
class Agreement:
    """How two copies' answers went together."""

    images: int = 0
    learned: int = 0
    same: int = 0
    largest: float = 0.0
    decisions: int = 0
    first: str = "never"

    def take(self, name: str, one: StepOutput, other: StepOutput) -> None:
        """Compare one batch's outputs."""
        a, b = one.logits.double().cpu(), other.logits.double().cpu()
        self.images += len(a)
        self.learned += one.updated
        self.same += int((a.argmax(1) == b.argmax(1)).sum())
        off = float((a - b).norm() / b.norm().clamp_min(1e-12))
        self.largest = max(self.largest, off)
        facts = [(o.domains, o.trust, o.updated, o.events) for o in (one, other)]
        if facts[0] != facts[1]:
            self.decisions += 1
            self.first = name if self.first == "never" else self.first

    def line(self) -> str:
        """What came out."""
        return (
            f"same class {100 * self.same / self.images:7.3f} %   largest relative difference "
            f"{self.largest:.1e}   batches decided otherwise {self.decisions} (first: {self.first})"
        )


def build(name: str, device: str) -> tuple[nn.Module, tuple[int, int, int]]:
    """A model, and the size of its images."""
    if name == "embedded":
        from ostinato.data.embedded import embedded_model

        return embedded_model(device), (3, 32, 32)
    from torchvision.models import get_model

    torch.manual_seed(0)
    model = get_model(name, weights=None)
    for module in model.modules():  # a head of zeros would answer everything alike
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.02)
    return model.to(device).eval(), (3, 224, 224)


def stream(traffic: Traffic, batch: int, domains: int, rounds: int, blocks: int) -> Batches:
    """Clean images, then rounds of domains in blocks; a mixed batch and a short one in each."""
    found = [("clean", traffic.clean(batch)) for _ in range(3)]
    for turn in range(rounds):
        for domain in range(domains):
            found += [
                (f"round {turn} domain {domain} batch {k}", traffic.shifted(domain, batch))
                for k in range(blocks)
            ]
        found.append((f"round {turn} mixed", traffic.mixed(batch, domains)))
        found += [(f"round {turn} short", traffic.shifted(turn % domains, batch // 2 + 1))] * 2
        found.append((f"round {turn} clean", traffic.clean(batch)))
    return found


def made(
    model: nn.Module, statistics: Any, precision: str, how: Any, settings: dict[str, Any]
) -> Any:
    """One copy of the method on a copy of the model."""
    return adapt(
        copy.deepcopy(model),
        "ostinato",
        statistics=statistics,
        precision=precision,
        compile=how,
        **settings,
    )


def worst(one: Any, other: Any) -> tuple[float, str]:
    """The largest relative difference of two states' tensors, and which it is."""
    theirs = other.export_state().tensors
    found = [(0.0, "none")]
    for name, tensor in one.export_state().tensors.items():
        if name not in theirs or tensor.shape != theirs[name].shape:
            return float("inf"), f"{name} is not in both"
        a, b = tensor.double().cpu(), theirs[name].double().cpu()
        found.append((float((a - b).norm() / b.norm().clamp_min(1e-12)), name))
    return max(found)


def compare(
    title: str, make: Callable[[Any], Any], how: Any, batches: Batches, *, apart: bool
) -> Any:
    """Run the stream through three copies and print how they went together."""
    fast, plain, again = make(how), make(False), make(False)
    captured, usual = Agreement(), Agreement()
    for number, (name, batch) in enumerate(batches):
        if number == len(batches) // 3:
            for method in (fast, plain, again):
                method.reset()
        outputs = [outcome(method, batch, apart=apart) for method in (fast, plain, again)]
        captured.take(name, outputs[0], outputs[1])
        usual.take(name, outputs[2], outputs[1])
    answers, steps = fast.captures, fast.step_captures
    print(
        f"== {title}: {len(batches)} batches, {len(fast.bank.domains)} domains in the end, "
        f"{captured.learned} batches learned from"
    )
    print(f"   captures of answers {answers.made} ({answers.refused or 'none refused'}), "
          f"of steps {steps.made} ({steps.refused or 'none refused'})")  # fmt: skip
    print(f"   captured and plain   {captured.line()}")
    print(f"   plain and plain      {usual.line()}")
    for label, other in (("captured", fast), ("plain", again)):
        off, name = worst(other, plain)
        print(f"   state, {label:9}     largest relative difference {off:.1e} ({name})", flush=True)
    return fast, plain


def outcome(method: Any, batch: Tensor, *, apart: bool) -> StepOutput:
    """One batch's output; apart: by `predict`, then `learn`."""
    if not apart:
        step: StepOutput = method.step(batch)
        return step
    method.predict(batch)
    answer: StepOutput = method.last
    answer.updated = method.learn()
    return answer


def timed(ways: dict[str, Callable[[Tensor], Any]], batches: Iterator[Tensor], steps: int) -> None:
    """Medians of every way, taken in turns, beside the first."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(steps + 3):
        for name, way in ways.items():
            batch = next(batches)
            wait(batch)
            start = time.perf_counter()
            way(batch)
            wait(batch)
            if number >= 3:
                seconds[name].append(time.perf_counter() - start)
    first = medians.median(next(iter(seconds.values())))
    for name, found in seconds.items():
        usual = medians.median(found)
        print(f"   {name:24}{1e3 * usual:9.2f} ms{usual / first:8.2f} forwards", flush=True)


def wait(batch: Tensor) -> None:
    if batch.is_cuda:
        torch.cuda.synchronize(batch.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="embedded", help="embedded, or a name of torchvision's")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--domains", type=int, default=6)
    parser.add_argument("--kept", type=int, default=4, help="domains that are kept: others merge")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=5, help="batches of a domain in a round")
    parser.add_argument("--steps", type=int, default=20, help="timed batches of each way")
    parser.add_argument("--how", default="auto", help="the setting compile: auto or true")
    args = parser.parse_args()
    model, size = build(args.model, args.device)
    how = True if args.how == "true" else "auto"
    traffic = Traffic(size, args.device)
    statistics = collect_statistics(model, traffic.clean(200))
    batches = stream(traffic, args.batch_size, args.domains, args.rounds, args.blocks)
    where = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    print(f"{args.model}, {args.precision}, {where}, torch {torch.__version__}, compile={how!r}")
    kinds = [("robust", True, False), ("forward-only", True, False), ("robust", False, True)]
    with trusting():  # drawn images and random weights convince nobody
        for preset, count_in, apart in kinds:
            settings = {"preset": preset, "count_in": count_in, "max_domains": args.kept}

            def make(how: Any, settings: dict[str, Any] = settings) -> Any:
                return made(model, statistics, args.precision, how, settings)

            title = f"{preset}, {'predict, then learn' if apart else 'both at once'}"
            fast, plain = compare(title, make, how, batches, apart=apart)
            measure(model, fast, plain, traffic, args)


def measure(model: nn.Module, fast: Any, plain: Any, traffic: Traffic, args: Any) -> None:
    """Time the forward, predict and both, captured and plain."""
    vision = VisionModel(copy.deepcopy(model)).eval()
    half = args.precision == "bf16"

    def forward(batch: Tensor) -> None:
        with torch.no_grad(), torch.autocast(batch.device.type, torch.bfloat16, enabled=half):
            vision(batch)

    def answer(method: Any) -> Callable[[Tensor], None]:
        def way(batch: Tensor) -> None:
            with method.frozen():
                method.predict(batch)

        return way

    ways: dict[str, Callable[[Tensor], Any]] = {"forward": forward}
    for label, method in (("captured", fast), ("plain", plain)):
        ways |= {f"predict, {label}": answer(method), f"both, {label}": method.step}
    timed(ways, iter(lambda: traffic.shifted(0, args.batch_size), None), args.steps)


if __name__ == "__main__":
    main()
