"""A model in half precision against autocast: how many predictions are the same over a round.

    python benchmarks/half.py --root data --weights weights/vit_tiny_patch16_224.safetensors
    python benchmarks/half.py ... --device cuda --kinds float16 bfloat16 --limit 1200

Three ways meet the same batches, and each learns from them by itself: the model in single
precision, the same under autocast, and the model in half precision (`model.half()` or
`.bfloat16()`). Printed is how many images get the same class, from the source model, which tells
what rounding does alone, and adapted; how many go to the same domain; and the errors.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import ostinato
from ostinato.data.streams import Stream
from ostinato.models.loading import load_model
from ostinato.running.job import open_stream
from ostinato.running.source_images import load_source, open_source
from ostinato.running.spec import Spec

MODEL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def cast(model: nn.Module, kind: torch.dtype) -> nn.Module:
    """The model with its forward under autocast; our own setting knows bfloat16 alone.

    No module is put around it: branches start at random by the names of their places, so that a
    model whose places have other names would learn from another start.
    """
    plain = model.forward

    def forward(pixels: Tensor) -> Any:
        with torch.autocast(pixels.device.type, kind):
            return plain(pixels)

    model.forward = forward
    return model


@dataclass
class Way:
    """One way to compute; the classes it said, of the source model and adapted; and the domains."""

    adapted: Any
    source: list[Tensor] = field(default_factory=list)
    said: list[Tensor] = field(default_factory=list)
    domains: list[Tensor] = field(default_factory=list)

    def meet(self, images: Tensor) -> None:
        model = self.adapted.model
        with torch.no_grad(), self.adapted.autocast():
            self.source.append(model(model.check(images)).argmax(1).cpu())
        self.said.append(self.adapted(images).argmax(1).cpu())
        self.domains.append(torch.tensor(self.adapted.last.domains))


def under_autocast(model: nn.Module, kind: torch.dtype) -> tuple[nn.Module, dict[str, str]]:
    """The model, and the setting under which it is adapted."""
    return (model, {"precision": "bf16"}) if kind == torch.bfloat16 else (cast(model, kind), {})


def ways(spec: Spec, clean: Tensor, kind: torch.dtype, device: str, preset: str) -> dict[str, Way]:
    """All three, each with statistics of its own."""
    model, setting = under_autocast(load_model(spec), kind)
    models = {
        "single": (load_model(spec), {}),
        "autocast": (model, setting),
        "half": (load_model(spec).to(kind), {}),
    }
    found = {}
    for name, (model, settings) in models.items():
        model = model.to(device).eval()
        statistics = ostinato.collect_statistics(model, clean)
        chosen = {"statistics": statistics, "preset": preset} | settings
        found[name] = Way(ostinato.adapt(model, **chosen))
    return found


def same(one: list[Tensor], other: list[Tensor]) -> float:
    """Percent of images with the same class."""
    return 100 * float((torch.cat(one) == torch.cat(other)).float().mean())


def compare(
    spec: Spec, stream: Stream, clean: Tensor, given: argparse.Namespace, name: str
) -> None:
    kind = getattr(torch, name)
    found = ways(spec, clean, kind, given.device, given.preset)
    labels = []
    for index in range(len(stream)):
        batch = stream[index]
        labels.append(batch.labels)
        for way in found.values():
            way.meet(batch.images)
    for pair in (("half", "autocast"), ("autocast", "single")):
        one, two = (found[side] for side in pair)
        print(f"{name:8}  {pair[0]:8} and {pair[1]:8}  the same class for "
              f"{same(one.source, two.source):6.2f} % (source), {same(one.said, two.said):6.2f} % "
              f"(adapted) of {len(torch.cat(labels))} images, the same domain for "
              f"{same(one.domains, two.domains):6.2f} %", flush=True)  # fmt: skip
    errors = {side: 100 - same(way.said, labels) for side, way in found.items()}
    print(f"{name:8}  error " + ", ".join(f"{side} {e:.2f} %" for side, e in errors.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="the folder that holds imagenet-val")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=50, help="images a corruption")
    parser.add_argument("--domains", nargs="*", default=())
    parser.add_argument("--kinds", nargs="*", default=("bfloat16",))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", default="robust")
    parser.add_argument("--clean", type=int, default=300, help="images for statistics")
    given = parser.parse_args()
    chosen = {"domains": list(given.domains)} if given.domains else {}
    spec = Spec.parse({
        "model": given.model, "weights": given.weights, "roots": given.root, "method": "source",
        "device": given.device,
        "stream": "continual",
        "data": {"dataset": "imagenet-val", "options": {"split": given.split},
                 "limit": given.limit} | chosen,
    })  # fmt: skip
    stream = open_stream(spec)
    clean = load_source(
        open_source("imagenet-val:clean", given.root), load_model(spec), count=given.clean
    )
    for name in given.kinds:
        compare(spec, stream, clean.images, given, name)


if __name__ == "__main__":
    main()
