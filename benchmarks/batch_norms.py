"""What batch norms with a domain's own statistics are worth, beside maps and together with them.

    python benchmarks/batch_norms.py --root data --weights lite0.safetensors

Domains are known, and each is a batch by itself, so that a batch's statistics are its domain's.
Norms are moved a share of the way from the source's statistics to the batch's, and maps are made in
the same pass with a share of their own, for every pair of shares. Printed is the error for each
pair; then, by share of the norms, the error of the best fixed share of maps, and of the share whose
answers are surest in each domain, which is how the method chooses it; and last, with the share of
the norms chosen so as well; each beside the same with no norm moved: the difference, and its
standard error.
The images are those that settings are chosen on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import ostinato
from ostinato.experts.routed import Expert
from ostinato.methods.base import Input
from ostinato.methods.ostinato import Ostinato
from ostinato.methods.ostinato._trust import likely
from ostinato.models.loading import load_model
from ostinato.ops.batchnorm import OtherStatistics
from ostinato.running.job import open_stream
from ostinato.running.source_images import load_source, open_source
from ostinato.running.spec import Spec

MODEL = "tf_efficientnet_lite0"
Pair = tuple[float, float]
"""Shares of norms and of maps."""


class PartWay(OtherStatistics):
    """Batch norms whose statistics lie a share of the way from the source's to the batch's."""

    def __init__(self, model: nn.Module, share: float) -> None:
        super().__init__(model)
        self.share = share

    def statistics(self, norm: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """The source's, moved; at a share of 0 the norm is left alone."""
        if not self.share:
            return None
        mean, variance = norm.running_mean.float().clone(), norm.running_var.float().clone()
        torch.batch_norm_update_stats(x.float(), mean, variance, self.share)
        return mean, variance

    def moved(self, norm: Any, x: Tensor) -> Tensor | None:
        """What `renormed` gives, in one pass over the input."""
        found = self.statistics(norm, x)
        if found is None:
            return None
        scale = ((norm.running_var.float() + norm.eps) / (found[1] + norm.eps)).sqrt()
        shift = norm.running_mean.float() - found[0] * scale
        return torch.addcmul(shift.view(-1, 1, 1), x, scale.view(-1, 1, 1))


def answers(adapted: Ostinato, images: Tensor, pair: Pair) -> Tensor:
    """Logits of a domain that has only just come: its images make what answers them."""
    moved = PartWay(adapted.model, pair[0])
    try:
        expert = Expert() if pair[1] else None
        logits, _ = adapted._passed(Input(images, None), expert, pair[1] or None)
    finally:
        moved.remove()
    return logits


class Found:
    """By pair, per domain: which images were told wrong, and how unsure the answers were."""

    def __init__(self, norms: Sequence[float], maps: Sequence[float]) -> None:
        self.norms, self.maps = norms, maps
        self.wrong: dict[Pair, list[Tensor]] = {(n, m): [] for n in norms for m in maps}
        self.unsure: dict[Pair, list[float]] = {pair: [] for pair in self.wrong}

    def add(self, pair: Pair, logits: Tensor, labels: Tensor) -> None:
        """Count one domain's answers."""
        self.wrong[pair].append((logits.argmax(1).cpu() != labels).double())
        self.unsure[pair].append(float(torch.special.entr(likely(logits)).sum(1).mean()))

    def best(self, norm: float) -> tuple[float, Tensor]:
        """The share of maps with the least error, and the images told wrong with it."""
        found = {m: torch.cat(self.wrong[norm, m]) for m in self.maps}
        share = min(found, key=lambda m: float(found[m].mean()))
        return share, found[share]

    def surest(self, *norms: float) -> Tensor:
        """The images told wrong where each domain has the pair with the surest answers."""
        pairs = [(n, m) for n in norms for m in self.maps]
        domains = range(len(self.wrong[pairs[0]]))
        chosen = [min(pairs, key=lambda pair: self.unsure[pair][d]) for d in domains]
        return torch.cat([self.wrong[pair][d] for d, pair in enumerate(chosen)])

    def print(self) -> None:
        """All of it, as a table and as lines."""
        print("norms \\ maps" + "".join(f"{m:8}" for m in self.maps))
        for n in self.norms:
            row = "".join(f"{percent(torch.cat(self.wrong[n, m])):8.2f}" for m in self.maps)
            print(f"{n:12}{row}")
        (_, alone), surest = self.best(0.0), self.surest(0.0)
        for n in self.norms:
            (share, best), chosen = self.best(n), self.surest(n)
            print(
                f"norms {n}: best maps ({share}) {percent(best):.2f} {against(best, alone)}, "
                f"surest {percent(chosen):.2f} {against(chosen, surest)}"
            )
        chosen = self.surest(*self.norms)
        print(f"surest of all pairs {percent(chosen):.2f} {against(chosen, surest)}")


def percent(wrong: Tensor) -> float:
    """An error in percent."""
    return 100 * float(wrong.mean())


def against(wrong: Tensor, other: Tensor) -> str:
    """By how many points the same images are told worse, and the standard error of that."""
    more = 100 * (wrong - other)
    return f"({float(more.mean()):+.2f} ± {float(more.std()) / len(more) ** 0.5:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="the folder that holds imagenet-val")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--domains", nargs="*", default=())
    parser.add_argument("--limit", type=int, default=100, help="images a domain")
    parser.add_argument("--seeds", type=int, nargs="*", default=(2025, 2026))
    parser.add_argument("--norms", type=float, nargs="*", default=(0.0, 0.25, 0.5, 1.0))
    parser.add_argument("--maps", type=float, nargs="*", default=(0.0, 0.2, 0.35, 0.5))
    parser.add_argument("--clean", type=int, default=300, help="images for statistics")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    chosen = {"domains": list(given.domains)} if given.domains else {}
    spec = Spec.parse({
        "model": given.model, "weights": given.weights, "roots": given.root, "method": "source",
        "device": given.device, "stream": "continual", "batch_size": given.limit,
        "data": {"dataset": "imagenet-val", "options": {"split": "tune"},
                 "limit": given.limit} | chosen,
    })  # fmt: skip
    model = load_model(spec).to(given.device).eval()
    clean = load_source(open_source("imagenet-val:clean", given.root), model, count=given.clean)
    statistics = ostinato.collect_statistics(model, clean.images)
    adapted = ostinato.adapt(model, statistics=statistics, preset="forward-only")
    assert isinstance(adapted, Ostinato)
    found = Found([0.0, *(n for n in given.norms if n)], given.maps)
    for seed in given.seeds:
        for batch in open_stream(spec.replace(seeds=(seed,))):
            images = adapted.model.check(batch.images)
            assert batch.labels is not None
            for pair in found.wrong:
                logits = answers(adapted, images, pair)
                found.add(pair, logits, batch.labels)
            last = ", ".join(f"{p[0]}/{p[1]} {percent(w[-1]):.0f}" for p, w in found.wrong.items())
            print(f"{seed} {batch.domain:18}{last}", flush=True)
    found.print()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
