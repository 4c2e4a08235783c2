"""Every kernel beside plain torch on a GPU: equal results, and time beside one block's forward.

    python benchmarks/kernels.py                                  # checks, times, whole answers
    python benchmarks/kernels.py --sweep                          # other ways to cut the work
    python benchmarks/kernels.py --batch-size 50 200 --domains 15 # answers with 15 domains mixed

Times of single kernels are of the GPU alone: a CUDA graph of ten calls, the median of many replays.
Whole answers are by the clock, in turns with the plain forward, captured and not, with kernels and
without. Without a GPU the checks run in Triton's interpreter (TRITON_INTERPRET=1) on small tensors.
"""

from __future__ import annotations

import argparse
import shutil
import statistics as medians
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import get_model

from ostinato.domains import texture as domain_texture
from ostinato.experts.routed import Branch
from ostinato.experts.stack import Layout, Stack, StackPass
from ostinato.methods.ostinato._step import LearningPass
from ostinato.ops import kernels
from ostinato.speed._traffic import Traffic
from ostinato.speed._ways import Setting, make_way, ours, trusting

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
WIDTH, TOKENS, RANK, SHARED, OWN = (768, 197, 64, 64, 32) if GPU else (48, 9, 16, 16, 8)
SIDE = 224 if GPU else 72


@contextmanager
def plain() -> Iterator[None]:
    """Inside, no kernels are used."""
    kernels._refused.append("for comparison")
    try:
        yield
    finally:
        kernels._refused.remove("for comparison")


class Case:
    """Random tokens, rows, branches and a pass over them."""

    def __init__(self, count: int, kind: torch.dtype, *, tokens: torch.dtype | None = None) -> None:
        layout = Layout(((WIDTH, RANK, 1),), ((WIDTH, OWN),))
        stack = Stack(layout, DEVICE, kind)
        self.rows = stack.now
        self.rows.matrices[1:] = 0.03 * torch.randn_like(self.rows.matrices[1:])
        self.rows.vectors[1:] = 1 + 0.1 * torch.randn_like(self.rows.vectors[1:])
        self.index = torch.arange(count, device=DEVICE) % len(self.rows.matrices)
        scale = WIDTH**-0.5
        self.shared = (
            Branch(
                (scale * torch.randn(WIDTH, SHARED, device=DEVICE)).to(kind),
                (0.03 * torch.randn(SHARED, WIDTH, device=DEVICE)).to(kind),
            ),
        )
        self.tokens = torch.randn(count, TOKENS, WIDTH, device=DEVICE).to(tokens or kind)
        self.half = tokens is not None and tokens != kind
        shapes = [(WIDTH, SHARED), (SHARED, WIDTH), (WIDTH, OWN), (OWN, WIDTH)]
        self.leaves = [
            (0.03 * torch.randn(shape, device=DEVICE)).requires_grad_() for shape in shapes
        ]

    def now(self) -> StackPass:
        """A pass as an answer opens it."""
        made = StackPass(self.index, self.rows, self.shared)
        made.at_once = True
        return made

    def block(self) -> Tensor:
        """The map."""
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=self.half):
            return self.now().block(0, self.tokens)

    def fed(self) -> Tensor:
        """Both branches."""
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=self.half):
            found = self.now().fed(0, self.tokens)
        assert found is not None
        return found

    def map_back(self) -> Tensor:
        """What the map's gradient by tokens costs."""
        from ostinato.ops.kernels import maps

        parts, exact = maps.Parts(*self.rows.block(0)), maps.Exactness(maps.tl.bfloat16, "ieee")
        return maps._launched(self.tokens, self.index[1:2], parts, exact, back=True)

    def fed_back(self) -> Any:
        """What the branches' gradients by tokens and hidden numbers cost."""
        from ostinato.ops.kernels import learned, maps

        downs, ups = (torch.cat([one, other], k).to(self.tokens.dtype) for k, one, other in (
            (1, self.leaves[0], self.leaves[2]), (0, self.leaves[1], self.leaves[3])
        ))  # fmt: skip
        flat, exact = self.tokens.flatten(0, 1), maps.Exactness(maps.tl.bfloat16, "ieee")
        return learned._gone_back(flat, flat, downs.detach(), ups.detach(), 0.25, exact)

    def step(self) -> tuple[Tensor, ...]:
        """Map and both branches as an update has them, with their gradients."""
        leaves = self.leaves
        shared, own = Branch(*leaves[:2]), Branch(*leaves[2:])
        given = self.tokens.detach().requires_grad_()
        now = LearningPass(self.index[1:2], self.rows, (shared,), (own,), class_token=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.half):
            found = now.block(0, now.fed(0, given))
            kept = now.keep(found)
        by = (torch.ones_like(found), torch.ones_like(kept))
        return torch.autograd.grad((found, kept), [given, *leaves], by)

    def exactly(self) -> Case:
        """The same in double precision."""
        made = object.__new__(Case)
        made.rows = type(self.rows)(
            self.rows.matrices.double(), self.rows.vectors.double(), self.rows.layout
        )
        made.shared = tuple(Branch(one.down.double(), one.up.double()) for one in self.shared)
        made.index, made.tokens, made.half = self.index, self.tokens.double(), False
        made.leaves = [one.detach().double().requires_grad_() for one in self.leaves]
        return made


def off(found: Any, exact: Any) -> float:
    """The largest relative difference of any tensor."""
    pairs = zip(
        [found] if isinstance(found, Tensor) else found,
        [exact] if isinstance(exact, Tensor) else exact,
        strict=True,
    )
    return max(
        float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12))
        for a, b in pairs
    )


KINDS = {
    "fp32": (torch.float, None),
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
    "bf16 products of fp32 tokens": (torch.bfloat16, torch.float),
}
WORKS = {"map": Case.block, "branches": Case.fed, "step": Case.step}


def check(count: int, works: list[str]) -> None:
    """Results of kernels and of plain torch, both beside double precision."""
    for name in works:
        for title, (kind, tokens) in KINDS.items():
            if name == "step" and kind != torch.float and tokens is None:
                continue  # what is learned is in single precision
            case, work = Case(count, kind, tokens=tokens), WORKS[name]
            fast = work(case)
            with plain():
                usual, exact = work(case), work(case.exactly())
            found = f"{off(fast, exact):12.1e}{off(usual, exact):12.1e}"
            print(f"{name + ', ' + title:40}{found}   kernel, plain: off double precision")


def check_descriptor(count: int) -> None:
    """The descriptor by kernels beside the plain one."""
    images = Traffic((3, SIDE, SIDE), DEVICE).mixed(count)
    images[: count // 2] = (255 * images[: count // 2]).round() / 255
    fast, usual = domain_texture._at_once(images), domain_texture._described(images)
    parts = {"frequencies": (0, 126), "absent": (126, 189), "colours": (189, 249),
             "tones": (249, 345), "steps": (345, 369)}  # fmt: skip
    for name, (first, last) in parts.items():
        a, b = fast[:, first:last].double(), usual[:, first:last].double()
        largest, others = float((a - b).abs().max()), float((a != b).float().mean())
        print(f"{'descriptor, ' + name:40}{largest:12.1e}   off plain; {others:.1%} differ")


def gpu_time(work: Callable[[], Any], calls: int = 10) -> float:
    """Milliseconds of the GPU for one call: a graph of several, the median of many replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    found = []
    for _ in range(25):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return medians.median(found)


def works_of(count: int) -> dict[str, Callable[[], Any]]:
    """What is timed alone, as a ViT-B in bf16 under autocast has it."""
    case = Case(count, torch.bfloat16, tokens=torch.float)
    fed = Case(count, torch.bfloat16)
    images = Traffic((3, SIDE, SIDE), DEVICE).clean(count)
    describe = domain_texture.Texture()
    return {
        "map": case.block,
        "map, bf16 tokens": fed.block,
        "map, back": case.map_back,
        "branches": fed.fed,
        "branches, back": fed.fed_back,
        "step of both": case.step,
        "describe": lambda: describe(images),
    }


def time_alone(count: int, model: nn.Module) -> None:
    """Each kernel beside its plain version and beside a block."""
    layer = next(m for m in model.modules() if type(m).__name__ == "EncoderBlock")
    tokens = torch.randn(count, TOKENS, WIDTH, device=DEVICE)

    def block() -> None:
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            layer(tokens)

    usual = gpu_time(block)
    print(f"\nbatch {count}, GPU time alone: one block of ViT-B in bf16 {usual:.3f} ms")
    print(f"{'':20}{'kernel ms':>12}{'plain ms':>12}{'kernel / block':>16}{'plain / block':>16}")
    for name, work in works_of(count).items():
        if name.endswith("back"):
            continue  # a part of the step
        fast = _tried(work)
        with plain():
            slow = _tried(work)
        print(f"{name:20}{fast:12.3f}{slow:12.3f}{fast / usual:16.2f}{slow / usual:16.2f}",
              flush=True)  # fmt: skip


def sweep(count: int) -> None:
    """Kernels with the work cut otherwise."""
    from ostinato.ops.kernels import branches, learned, maps, texture
    from ostinato.ops.kernels._cuts import Tiles

    works = works_of(count)
    print(f"\nbatch {count}, other cuts: tokens, features, warps, stages; ms of the GPU")
    cuts = [
        (64, 64, 4, 3, 3), (64, 64, 4, 3, 1), (64, 64, 4, 3, 2), (64, 64, 4, 4, 4),
        (64, 64, 4, 2, 2), (64, 128, 4, 2, 2), (64, 128, 8, 2, 2), (64, 128, 8, 3, 3),
        (128, 64, 8, 3, 3), (128, 64, 8, 2, 2), (128, 128, 8, 2, 2), (32, 64, 4, 3, 3),
        (32, 128, 4, 2, 2), (32, 128, 4, 3, 3), (16, 128, 4, 3, 3), (64, 32, 4, 4, 4),
        (64, 64, 8, 3, 3), (32, 64, 2, 3, 3),
    ]  # fmt: skip
    places = (
        (maps, ("map", "map, bf16 tokens", "map, back")),
        (branches, ("branches",)),
        (learned, ("branches, back",)),
    )
    for module, names in places:
        usual = module.TILES[2]
        for cut in cuts:
            module.TILES[2] = Tiles(*cut)
            times = "".join(f"{name} {_tried(works[name]):.4f}   " for name in names)
            print(f"{cut!s:22}{times}", flush=True)
        module.TILES[2] = usual
    names = ("CELLS", "ROUNDS", "WARPS", "PIXELS", "TURNS")
    usual = {name: getattr(texture, name) for name in names}
    for cut in [
        (32, 1, 8, 1024, 4), (16, 1, 4, 1024, 4), (32, 5, 8, 1024, 4), (16, 7, 4, 1024, 4),
        (16, 7, 8, 1024, 4), (16, 4, 4, 1024, 4), (16, 10, 4, 1024, 4), (32, 2, 8, 1024, 4),
        (16, 7, 4, 512, 8), (16, 7, 4, 1024, 8), (16, 7, 4, 1024, 2), (16, 7, 4, 2048, 4),
    ]:  # fmt: skip
        vars(texture).update(zip(names, cut, strict=True))
        print(f"{cut!s:22}describe {_tried(works['describe']):.4f}", flush=True)
    vars(texture).update(usual)


def _tried(work: Callable[[], Any]) -> float:
    """The GPU's time; nothing, and why, where the work does not fit it."""
    try:
        return gpu_time(work)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0][:150])
        return float("nan")


@trusting()
def answers(count: int, args: Any) -> None:
    """Predict and both by the clock, beside the plain forward."""
    setting = setting_of(count, args)
    adapted: Any = ours(setting, "robust")
    captured, routed = adapted.capturing, [setting.batch()]

    def predict(batch: Tensor) -> None:
        with adapted.frozen():
            adapted.predict(batch)

    def eager(batch: Tensor) -> None:
        adapted.capturing = False
        try:
            predict(batch)
        finally:
            adapted.capturing = captured

    def eager_plain(batch: Tensor) -> None:
        with plain():
            eager(batch)

    def describe(batch: Tensor) -> None:
        routed[:] = [adapted.describe(batch)]

    def decide(batch: Tensor) -> None:
        adapted.publisher.placed(adapted.version).routes(routed[0])

    ways: dict[str, Callable[[Tensor], Any]] = {
        "forward": make_way("forward", setting).step,
        "predict, captured": predict,
        "predict": eager,
        "predict, plain torch": eager_plain,
        "describe": describe,
        "decide": decide,
        "both, captured step": adapted.step,
        "TENT's step": make_way("tent", setting).step,
    }
    mixed = ", mixed" if setting.mixed else ""
    print(f"\nbatch {count}, {len(adapted.bank.domains)} domains{mixed}, {args.precision}, clock")
    in_turns(ways, setting.batch, args.steps)
    images, routes = setting.batch(), adapted.publisher.placed(adapted.version).routes
    for name, work in {
        "describe": lambda: adapted.describe(images),
        "decide": lambda: routes(routed[0]),
    }.items():
        print(f"{name + ', GPU alone':24}{_tried(work):9.3f} ms")
    print(f"captures {adapted.captures.made} ({adapted.captures.refused}), of steps "
          f"{adapted.step_captures.made} ({adapted.step_captures.refused}), "
          f"kernels refused: {kernels.refused()}")  # fmt: skip
    if args.profile:
        profile("predict, captured", predict, setting)
        profile("both, captured step", adapted.step, setting)


def setting_of(count: int, args: Any) -> Setting:
    traffic = Traffic((3, SIDE, SIDE), DEVICE)
    return Setting(
        model_on_device, traffic, count, args.precision, "model", args.domains, args.domains > 1
    )


def profile(title: str, way: Callable[[Tensor], Any], setting: Setting, calls: int = 5) -> None:
    """Which kernels take a way's time, and what the host did meanwhile."""
    batches = [setting.batch() for _ in range(calls)]
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.profiler.profile(activities=kinds) as found:
        for batch in batches:
            way(batch)
        torch.cuda.synchronize()
    clock = 1e3 * (time.perf_counter() - start) / calls
    events = found.key_averages()
    gpu = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(e.self_device_time_total for e in gpu) / calls / 1e3
    print(f"\n{title}: {clock:.2f} ms by the clock while watched, GPU busy {busy:.2f} ms")
    _largest(gpu, "self_device_time_total", calls)
    print("host:")
    host = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]
    _largest(host, "self_cpu_time_total", calls)


def _largest(events: list[Any], by: str, calls: int) -> None:
    for one in sorted(events, key=lambda e: -getattr(e, by))[:20]:
        print(f"{getattr(one, by) / calls:9.0f} us {one.count / calls:7.1f} x {one.key[:80]}")


def model_on_device() -> nn.Module:
    torch.manual_seed(0)
    return get_model("vit_b_16", weights=None).to(DEVICE).eval()


def in_turns(
    ways: dict[str, Callable[[Tensor], Any]], batch: Callable[[], Tensor], steps: int
) -> None:
    """Medians of every way, beside the first."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(steps + 4):
        for name, way in ways.items():
            given = batch()
            torch.cuda.synchronize()
            start = time.perf_counter()
            way(given)
            torch.cuda.synchronize()
            if number >= 4:
                seconds[name].append(time.perf_counter() - start)
    first = medians.median(next(iter(seconds.values())))
    for name, found in seconds.items():
        usual = medians.median(found)
        print(f"{name:24}{1e3 * usual:9.3f} ms{usual / first:8.3f} forwards", flush=True)


PARTS: dict[str, Callable[[Any, int], None]] = {
    "maps and branches": lambda args, count: check(count, ["map", "branches"]),
    "steps": lambda args, count: check(count, ["step"]),
    "descriptor": lambda args, count: check_descriptor(count),
    "times": lambda args, count: time_alone(count, model_on_device()),
    "sweep": lambda args, count: sweep(count),
    "answers": lambda args, count: answers(count, args),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[50])
    parser.add_argument("--domains", type=int, default=1, help="15: batches are mixed")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--sweep", action="store_true", help="also cut kernels' work otherwise")
    parser.add_argument("--profile", action="store_true", help="what takes an answer's time")
    parser.add_argument("--no-answers", action="store_true", help="kernels alone")
    parser.add_argument("--part", choices=PARTS, help="one part alone, in this process")
    args = parser.parse_args()
    torch.manual_seed(time.time_ns() % 2**31)  # fresh inputs each time
    if args.part:
        for count in args.batch_size if GPU else [4]:
            PARTS[args.part](args, count)
        return
    where = torch.cuda.get_device_name() if GPU else "interpreter"
    print(f"{where}, torch {torch.__version__}, threads {torch.get_num_threads()}", flush=True)
    left_out = {"sweep": not args.sweep or not GPU, "answers": args.no_answers or not GPU}
    left_out |= {"times": not GPU}
    for part in PARTS:
        if not left_out.get(part):
            alone(part)


def alone(part: str) -> None:
    """Run a part in a process of its own: what one breaks on a GPU stays broken in its process."""
    command = [sys.executable, *sys.argv, "--part", part]
    if not subprocess.run(command, check=False).returncode:
        return
    print(f"{part}: FAILED", flush=True)
    sanitizer = shutil.which("compute-sanitizer")
    if GPU and sanitizer and part in ("maps and branches", "steps", "descriptor"):
        found = subprocess.run(
            [sanitizer, *command, "--batch-size", "4"], check=False, capture_output=True, text=True
        )
        print("\n".join(found.stdout.splitlines()[:60]), flush=True)


if __name__ == "__main__":
    main()
