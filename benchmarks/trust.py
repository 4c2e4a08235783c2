"""How well trust chooses: errors by share of a map, and of the share that trust lets act.

    python benchmarks/trust.py                                     # the embedded model
    python benchmarks/trust.py --model tf_efficientnet_lite0 --weights FILE --root DIR \\
        --images imagenet-val:tune --clean imagenet-val:clean

For every corruption and mix of classes a map is made from some images and judged on them, as the
method does it for a domain that lasts; the errors are those of other images of the same mix. Each
line is one mix at one severity, over all corruptions: the error of the source model, of every
share, of the choice and of the best share each time; then how often the choice was more than three
points worse than the source model, and by how much at worst. Mixes of few classes need many images
of a class: the embedded model has them. The images are those that settings are chosen on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor

import ostinato
from ostinato.data.corruptions import COMMON, corrupt
from ostinato.errors import DataError, OstinatoError
from ostinato.experts.routed import Expert
from ostinato.methods.base import Input
from ostinato.methods.ostinato import Ostinato
from ostinato.methods.ostinato.maps import TRUSTED
from ostinato.models.loading import load_model
from ostinato.running.source_images import load_source, open_source
from ostinato.running.spec import Spec

WORSE = 3.0
"""Points above the source model that count as harm."""


@dataclass(frozen=True)
class Args:
    """What is tried.

    Attributes:
        model: a name, as `ostinato run` takes it.
        weights: a checkpoint file; the model's own unless given.
        images: DATASET:SPLIT.
        clean: what statistics are collected from.
        root: the folder that holds the data sets.
        severities: of the corruptions.
        judged: images that a map is made from and judged on.
        shown: other images at most, which errors are counted on.
        seed: of mixes and corruptions.
        device: where to run.
    """

    model: str = "embedded"
    weights: str | None = None
    images: str = "embedded-tune"
    clean: str = "embedded-tune"
    root: str | None = None
    severities: tuple[int, ...] = (5, 3)
    judged: int = 64
    shown: int = 136
    seed: int = 0
    device: str = "cpu"


def mixes(labels: Tensor, many: bool, draw: random.Random) -> Iterator[tuple[str, Tensor]]:
    """Names of mixes and the images they may show; few classes where there are many of each."""
    everything = torch.arange(len(labels))
    yield "all classes", everything
    if not many:
        return
    for count, name in ((1, "one class"), (2, "two classes"), (3, "three classes")):
        for _ in range(2):
            classes = torch.tensor(draw.sample(sorted(set(labels.tolist())), count))
            yield name, everything[torch.isin(labels, classes)]
    ranks = torch.tensor(draw.sample(range(int(labels.max()) + 1), int(labels.max()) + 1))
    drawn = torch.Generator().manual_seed(draw.randrange(10**6))
    yield "long tail", torch.multinomial(0.7 ** ranks[labels].double(), 200, generator=drawn)


def errors(
    method: Ostinato, images: Tensor, labels: Tensor, judged: int
) -> tuple[list[float], int]:
    """Errors in percent of the source and of each share, and the place of the chosen one."""
    some, rest = Input(images[:judged], None), Input(images[judged:], None)
    source, _ = method._passed(some, None)
    tried = method._tried(some, source, sorted(method.config.shares), trusted=False, soon=False)
    answers = [method._passed(rest, None)[0]]
    answers += [method._passed(rest, Expert(maps))[0] for _, _, maps, _ in tried]
    doubts = [TRUSTED, *(found for found, *_ in tried)]
    wrong = [
        100 * float((one.argmax(1).cpu() != labels[judged:]).double().mean()) for one in answers
    ]
    return wrong, min(range(len(doubts)), key=doubts.__getitem__)


def summed(rows: list[tuple[list[float], int]]) -> str:
    """All corruptions of a mix: mean errors, and what the choice did at worst."""
    table = torch.tensor([wrong for wrong, _ in rows])
    taken = torch.tensor([wrong[place] for wrong, place in rows])
    more = taken - table[:, 0]
    means = [*table.mean(0).tolist(), float(taken.mean()), float(table.amin(1).mean())]
    harm = 100 * float((more > WORSE).double().mean())
    return "".join(f"{mean:8.1f}" for mean in means) + f"{harm:6.0f}%{float(more.max()):+7.1f}"


def main(args: Args) -> None:
    """Every severity and mix, a line each."""
    torch.manual_seed(args.seed)
    spec = {"method": "source", "model": args.model, "device": args.device}
    model = load_model(Spec.parse(spec | {"weights": args.weights})).eval().to(args.device)
    clean = load_source(open_source(args.clean, args.root), model, count=300)
    shown = open_source(args.images, args.root)
    found = load_source(shown, model, count=min(len(shown), 1000))
    assert found.labels is not None
    statistics = ostinato.collect_statistics(model, clean.images)
    method = ostinato.adapt(model, statistics=statistics, preset="forward-only")
    assert isinstance(method, Ostinato)
    shares = "".join(f"{share:>8}" for share in sorted(method.config.shares))
    print(
        f"{'mix':16}{'severity':>9}{'source':>8}{shares}{'chosen':>8}{'best':>8}{'harm':>7}{'worst':>7}"
    )
    many = int(found.labels.bincount().min()) >= 50
    constants = "cifar" if found.images.shape[-1] <= 32 else "imagenet"
    for severity in args.severities:
        draw, lines = random.Random(args.seed), dict[str, list[tuple[list[float], int]]]()
        for name in COMMON:
            for mix, places in mixes(found.labels, many, draw):
                order = torch.randperm(
                    len(places), generator=torch.Generator().manual_seed(draw.randrange(10**6))
                )
                if len(places) <= args.judged:
                    raise DataError(
                        f"There are {len(places)} images of {mix}: judge fewer (--judged)."
                    )
                chosen = places[order][: args.judged + args.shown]
                seeds = range(draw.randrange(10**6), 10**7)[: len(chosen)]
                images = corrupt(found.images[chosen], name, severity, seeds, constants=constants)
                pixels = (images.float() / 255).to(args.device)
                lines.setdefault(mix, []).append(
                    errors(method, pixels, found.labels[chosen], args.judged)
                )
        for mix, rows in lines.items():
            print(f"{mix:16}{severity:9}{summed(rows)}", flush=True)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except OstinatoError as error:
        sys.exit(f"error: {error}")
