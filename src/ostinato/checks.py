"""The conformance suite that every registered method passes; yours can be run through it too.

>>> report = check_method("source")
>>> report.passed, len(report.results) >= 10
(True, True)
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, collect_statistics, prepare
from ostinato.errors import InputError
from ostinato.methods.base import Method
from ostinato.methods.contract import resolve_config
from ostinato.ops.snapshot import State, load_state
from ostinato.registry import METHODS

SIZE = 32
CLASSES = 5


@dataclass(frozen=True)
class CheckResult:
    """One check's name and, where it failed, why."""

    name: str
    problem: str | None = None


@dataclass(frozen=True)
class CheckReport:
    """All results for one method."""

    method: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(result.problem is None for result in self.results)

    def __str__(self) -> str:
        lines = [f"{self.method}: {'passed' if self.passed else 'FAILED'}"]
        for result in self.results:
            mark = "ok  " if result.problem is None else "FAIL"
            detail = f": {result.problem}" if result.problem else ""
            lines.append(f"  {mark} {result.name}{detail}")
        return "\n".join(lines)


def small_model(seed: int = 0) -> nn.Module:
    """A ViT of two blocks with random weights, so that checks take moments."""
    from timm.models.vision_transformer import VisionTransformer

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = VisionTransformer(
            img_size=SIZE, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES
        )
        for parameter in model.parameters():  # livelier than timm's start, so that things move
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.2)
    finally:
        torch.set_rng_state(state)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    result: nn.Module = model.eval()
    return result


def small_batches(count: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Images of two synthetic domains in turn: bright and smooth, dark and noisy."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for index in range(count):
        coarse = torch.rand(size, 3, 4, 4, generator=generator)
        images = nn.functional.interpolate(coarse, SIZE, mode="bilinear")
        noise = torch.rand(size, 3, SIZE, SIZE, generator=generator)
        domain = (index // 3) % 2
        batches.append(0.6 + 0.4 * images if domain == 0 else 0.5 * images * noise)
    return batches


def small_cnn(seed: int = 0) -> nn.Module:
    """A network of two convolutions with batch norm, for methods that need that."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model: Any = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
        )
        with torch.no_grad():  # statistics as if it had been trained on something
            for _ in range(20):
                model(torch.randn(8, 3, SIZE, SIZE))
    finally:
        torch.set_rng_state(state)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    result: nn.Module = model.eval()
    return result


def example_model(kind: type[Method]) -> nn.Module:
    """A small model that a method can work on."""
    return small_cnn() if kind.info.norms == "batch" else small_model()


Build = Callable[..., Method]


def check_method(name: str, **settings: Any) -> CheckReport:
    """Run every check on a registered method with these settings.

    Inputs unchanged · only declared parameters move · labels never seen · reset is exact · seeded
    runs repeat · batch of 1 · bf16 agrees with fp32 · bad input changes nothing · save and load
    continue to the bit · no image in a saved file · memory stays bounded · unwrap gives the source
    back · no_grad callers.
    """
    kind = METHODS[name]
    build = _builder(name, kind, settings)
    results = []
    for check in CHECKS:
        title = (check.__doc__ or check.__name__).strip().rstrip(".")
        try:
            problem = check(build)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        results.append(CheckResult(title, problem))
    return CheckReport(name, tuple(results))


def _builder(name: str, kind: type[Method], settings: dict[str, Any]) -> Build:
    prepared: list[State] = []  # made once: warming adapters takes longer than a check

    def build(**more: Any) -> Method:
        model = example_model(kind)
        help_given: dict[str, Any] = {}
        if kind.info.norms == "any":  # they are read from transformer blocks
            images = torch.cat(small_batches(4, seed=9))
            help_given["statistics"] = collect_statistics(model, images)
        config = resolve_config(kind, settings.get("preset"), _plain({**settings, **more}))
        if "prepared file" in kind.needs(config):
            if not prepared:
                images = torch.cat(small_batches(4, seed=9))
                labels = torch.arange(len(images)) % CLASSES
                own = {"preset": settings.get("preset"), **_plain(settings)}
                prepared.append(prepare(model, name, images, labels, **own))
            help_given["prepared"] = prepared[0]
        return adapt(model, name, **{**help_given, **settings, **more})

    return build


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the method itself, without `adapt`'s own arguments."""
    own = ("preset", "statistics", "prepared", "targets", "normalize", "mean", "std")
    return {key: value for key, value in settings.items() if key not in own}


def _run(method: Method, batches: list[Tensor]) -> list[Tensor]:
    told = "domain labels" in method.needs(method.config)
    names = [f"domain {(index // 3) % 2}" if told else None for index in range(len(batches))]
    steps = zip(batches, names, strict=True)
    return [method.step(batch, oracle=name).logits for batch, name in steps]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _values(method: Method) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in method.export_state().tensors.items()}


def check_inputs_unchanged(build: Build) -> str | None:
    """Images are left as they were."""
    batches = small_batches(2)
    before = [batch.clone() for batch in batches]
    _run(build(), batches)
    return None if _same(batches, before) else "the method wrote into its input"


def check_only_declared_move(build: Build) -> str | None:
    """Only declared parameters move."""
    method = build()
    declared = {id(p) for p in (method.weights.parameters.values() if method.weights else ())}
    watched = [
        (name, p, p.detach().clone())
        for name, p in method.model.base.named_parameters()
        if id(p) not in declared and any(p is known for known in method._flags.parameters())
    ]
    _run(method, small_batches(4))
    moved = [name for name, p, old in watched if not torch.equal(p, old)]
    return f"undeclared parameters moved: {moved[:3]}" if moved else None


def check_labels_never_seen(build: Build) -> str | None:
    """A true domain name has no effect unless declared."""
    method = build()
    if "domain labels" in method.needs(method.config):
        return None
    plain = _run(method, small_batches(4))
    told = build()
    hinted = [told.step(b, oracle=f"d{i}").logits for i, b in enumerate(small_batches(4))]
    return None if _same(plain, hinted) else "the domain's name changed the result"


def check_reset(build: Build) -> str | None:
    """Reset is exact."""
    method, batches = build(), small_batches(7)
    first = _run(method, batches)
    method.reset()
    return None if _same(first, _run(method, batches)) else "a reset run differs from a fresh one"


def check_repeatable(build: Build) -> str | None:
    """Seeded runs repeat."""
    batches = small_batches(7)
    return None if _same(_run(build(), batches), _run(build(), batches)) else "two runs differ"


def check_batch_of_one(build: Build) -> str | None:
    """A batch of one image works."""
    outputs = _run(build(), small_batches(8, size=1))
    good = all(o.shape == (1, CLASSES) and bool(o.isfinite().all()) for o in outputs)
    return None if good else "logits of a single image are not finite or of the wrong shape"


def check_bf16(build: Build) -> str | None:
    """bf16 agrees with fp32."""
    batch = small_batches(1)[0]
    full, half = (_run(build(precision=p), [batch])[0] for p in ("fp32", "bf16"))
    gap = float((full - half).norm() / full.norm())
    return None if gap < 0.05 else f"relative difference of the first logits is {gap:.3f}"


def check_bad_input(build: Build) -> str | None:
    """Bad input is refused and changes nothing."""
    method = build()
    _run(method, small_batches(2))
    before, counters = _values(method), dict(method.counters)
    good = small_batches(1)[0]
    spoiled = good.clone()
    spoiled[0, 0, 0, 0] = float("nan")
    wrong_integers = torch.full((2, 3, SIZE, SIZE), 300)
    for bad in (spoiled, good[:0], good[:, :2], good * 300, wrong_integers, good[0]):
        try:
            _run(method, [bad])
        except InputError:
            continue
        return f"a batch of shape {tuple(bad.shape)} and type {bad.dtype} was accepted"
    after = _values(method)
    same = before.keys() == after.keys() and all(
        torch.equal(v, after[k]) for k, v in before.items()
    )
    return None if same and counters == dict(method.counters) else "refused input changed the state"


def check_save_load(build: Build) -> str | None:
    """Save, load and go on gives the same bits as going on."""
    batches = small_batches(9)
    method = build()
    _run(method, batches[:5])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path, buffers=True)
        fresh = build()
        fresh.load(path)
    same = _same(_run(method, batches[5:]), _run(fresh, batches[5:]))
    return None if same else "a loaded run continues differently"


def check_no_images_saved(build: Build) -> str | None:
    """A saved file holds no image buffers unless asked for."""
    method = build()
    declared = [n for n, thing in method._tracked.items() if hasattr(thing, "without_buffers")]
    if not declared:
        return None
    batches = small_batches(9)
    _run(method, batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        fresh = build()
        fresh.load(path)
        state, _ = load_state(path)
    parts = (state.part(name).tensors.items() for name in declared)
    images = [key for part in parts for key, tensor in part if tensor.dtype == torch.uint8]
    if images:
        return f"the file holds images: {images[:3]}"
    answers = ([one.predict(batch) for batch in batches] for one in (method, fresh))
    return None if _same(*answers) else "what was loaded without images answers differently"


def check_memory(build: Build) -> str | None:
    """Memory stays bounded when the same domains return."""
    method = build()
    batches = small_batches(6, size=64)  # enough images to fill every buffer in the first part

    def size() -> int:
        return sum(t.numel() for t in method.export_state().tensors.values())

    for _ in range(3):
        _run(method, batches)
    settled = size()
    for _ in range(2):
        _run(method, batches)
    # Snapshots and buffers come and go; what is kept for every batch adds up to far more.
    return None if size() <= 1.25 * settled else f"state grew from {settled} to {size()} numbers"


def check_unwrap(build: Build) -> str | None:
    """Unwrap gives the source model back, bit for bit."""
    method = build()
    source = example_model(type(method))
    flags = {name: p.requires_grad for name, p in source.named_parameters()}
    _run(method, small_batches(4))
    back = method.detach()
    expected, given = source.state_dict(), back.state_dict()
    if list(expected) != list(given):
        return "the module has other parameters than before"
    if not all(torch.equal(expected[key], given[key]) for key in expected):
        return "weights differ from the source's"
    if flags != {name: p.requires_grad for name, p in back.named_parameters()}:
        return "requires_grad flags differ"
    return None if type(back) is type(source) else "it is another class"


def check_no_grad_callers(build: Build) -> str | None:
    """Callers under no_grad and inference_mode get the same result."""
    batches = small_batches(3)
    plain = _run(build(), batches)
    with torch.no_grad():
        quiet = _run(build(), batches)
    method = build()
    with torch.inference_mode():
        inference = _run(method, [batch.clone() for batch in batches])
    same = _same(plain, quiet) and _same(plain, [o.clone() for o in inference])
    return None if same else "results depend on the caller's grad mode"


CHECKS = (
    check_inputs_unchanged,
    check_only_declared_move,
    check_labels_never_seen,
    check_reset,
    check_repeatable,
    check_batch_of_one,
    check_bf16,
    check_bad_input,
    check_save_load,
    check_no_images_saved,
    check_memory,
    check_unwrap,
    check_no_grad_callers,
)
