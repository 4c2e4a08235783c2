"""What batch norms with a domain's own statistics are worth, beside maps and together with them.

    python benchmarks/batch_norms.py --root data --weights lite0.safetensors

Domains are known, and each is a batch by itself, so that a batch's statistics are its domain's.
Printed is the error of the source model, of batch norms that see these statistics, wholly or half
way, of maps alone, and of both. The images are those that settings are chosen on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import ostinato
from ostinato.models.loading import load_model
from ostinato.ops.batchnorm import BatchStatistics
from ostinato.running.job import open_stream
from ostinato.running.source_images import load_source, open_source
from ostinato.running.spec import Spec

MODEL = "tf_efficientnet_lite0"
DOMAINS = ("gaussian_noise", "defocus_blur", "frost", "contrast", "pixelate")
Norms = Callable[[nn.Module], AbstractContextManager[Any]]


def halfway(images: int) -> Norms:
    """The mean of the source's statistics and the domain's."""

    def made(model: nn.Module) -> BatchStatistics:
        norms = BatchStatistics(model, prior=images)
        norms.images = images
        return norms

    return made


def plain(model: nn.Module, images: Tensor, statistics: Any, share: float) -> Tensor:
    adapted = ostinato.adapt(model, "source")
    logits = adapted(images)
    ostinato.unwrap(adapted)
    return logits


def mapped(model: nn.Module, images: Tensor, statistics: Any, share: float) -> Tensor:
    """Answers by maps that these images make: a domain that has only just come."""
    adapted = ostinato.adapt(
        model, statistics=statistics, preset="forward-only", shares=(share,), trust=False,
        true_domains=True,
    )  # fmt: skip
    logits = adapted.step(images, oracle="this").logits
    assert adapted.bank.domains[adapted.last.domain].share == share
    ostinato.unwrap(adapted)
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="the folder that holds imagenet-val")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--domains", nargs="*", default=DOMAINS)
    parser.add_argument("--limit", type=int, default=50, help="images a domain")
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--clean", type=int, default=300, help="images for statistics")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    spec = Spec.parse({
        "model": given.model, "weights": given.weights, "roots": given.root, "method": "source",
        "device": given.device, "stream": "continual", "batch_size": given.limit,
        "data": {"dataset": "imagenet-val", "options": {"split": "tune"}, "limit": given.limit,
                 "domains": list(given.domains)},
    })  # fmt: skip
    model = load_model(spec).to(given.device).eval()
    clean = load_source(open_source("imagenet-val:clean", given.root), model, count=given.clean)
    statistics = ostinato.collect_statistics(model, clean.images)
    half = halfway(given.limit)
    none: Norms = lambda model: nullcontext()  # noqa: E731
    ways = {
        "source": (plain, none), "norms": (plain, BatchStatistics), "half norms": (plain, half),
        "maps": (mapped, none), "maps, norms": (mapped, BatchStatistics),
        "maps, half": (mapped, half),
    }  # fmt: skip
    stream, errors = open_stream(spec), {name: list[float]() for name in ways}
    for index in range(len(stream)):
        batch = stream[index]
        for name, (answer, norms) in ways.items():
            with norms(model):
                logits = answer(model, batch.images, statistics, given.share)
            wrong = logits.argmax(1).cpu() != batch.labels
            errors[name].append(100 * float(wrong.float().mean()))
        found = ", ".join(f"{name} {values[-1]:.1f}" for name, values in errors.items())
        print(f"{batch.domain:18}{found}", flush=True)
    means = {name: sum(values) / len(values) for name, values in errors.items()}
    print("mean              " + ", ".join(f"{name} {e:.1f}" for name, e in means.items()))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
