"""How well images are told apart by domain: descriptors and router alone, without a model.

    python benchmarks/routing.py --root data --cache cache
    python benchmarks/routing.py --root data --cache cache --name camvid --clean train \\
      --domains driving_fog driving_night driving_rain driving_snow --severity 2

Each line is one stream: the adjusted mutual information of found and true domains, image by image,
over all of it and over its second half, how many domains were founded and are kept, which share of
the images the source would answer, and the processor time of `observe` an image. Descriptors are
made once and kept in the cache's folder.

A drive by day and one at dusk are different domains under the same weather. `--drive 6` lets the
first six letters of a frame's name, its drive, be part of its true domain.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from _routing_data import Images, batches

from ostinato.domains.router import Router
from ostinato.domains.verdict import SOURCE
from ostinato.errors import OstinatoError
from ostinato.scoring._routing import adjusted_mutual_information


@dataclass(frozen=True)
class Args:
    """What is shown.

    Args:
        root: the folder that holds the data sets.
        cache: a folder for descriptors.
        name: of the data set.
        split: the images that are streamed; choose on `tune`, report on `test`.
        clean: the split that the router's coordinates are made of.
        domains: corruptions; the usual fifteen unless given.
        severity: of all of them.
        limit: images of a domain at most.
        rounds: how often domains come again in the recurring stream.
        seeds: of orders; corruptions are drawn by the first of them.
        sizes: batch sizes of the streams that show one domain after the other.
        drive: first letters of a file's name that are part of its image's true domain.
    """

    root: Path
    cache: Path
    name: str = "imagenet-val"
    split: str = "test"
    clean: str = "clean"
    domains: tuple[str, ...] = ()
    severity: int = 5
    limit: int | None = None
    rounds: int = 3
    seeds: tuple[int, ...] = (2025,)
    sizes: tuple[int, ...] = (1, 10, 50, 200)
    drive: int = 0


def streams(args: Args) -> list[tuple[str, dict[str, Any]]]:
    """Names and options of the streams, block streams of every size first."""
    shown: dict[str, Any] = {} if args.limit is None else {"limit": args.limit}
    shown |= {"domains": list(args.domains)} if args.domains else {}
    blocks = [("continual", {"batch_size": size, **shown}) for size in args.sizes]
    again = [("recurring", {"rounds": args.rounds, **shown})]
    return blocks + again + [(name, shown) for name in ("cdc", "alternating", "mixed")]


def route(images: Images, name: str, options: dict[str, Any], seed: int, args: Args) -> str:
    """One stream through a new router, as a line."""
    drawn = args.seeds[0]
    router, known = Router(images.content()), images.descriptors(drawn)
    told: list[str] = []
    found: list[int] = []
    spent = 0.0
    for described, names in batches(
        images.stream(name, seed, **options), known, letters=args.drive
    ):
        start = time.process_time()
        found += router.observe(described).owners
        spent += time.process_time() - start
        told += names
    half = len(told) // 2
    whole, late = (adjusted_mutual_information(told[at:], found[at:]) for at in (0, half))
    size = options.get("batch_size", 50)
    return (
        f"{name:12}{size:6}{seed:7}{whole:8.3f}{late:8.3f}{router.next_id - 1:9}"
        f"{len(router.ids) - 1:6}{found.count(SOURCE) / len(found):9.3f}"
        f"{1000 * spent / len(found):8.3f}"
    )


def main(args: Args) -> None:
    """Every stream, a line each."""
    torch.set_num_threads(1)
    images = Images(args.name, args.root, args.split, args.clean, args.severity, args.cache)
    print(
        f"{'stream':12}{'batch':>6}{'seed':>7}{'AMI':>8}{'2nd half':>9}{'founded':>8}{'kept':>6}"
        f"{'source':>9}{'ms/img':>8}"
    )
    for seed in args.seeds:
        for name, options in streams(args):
            print(route(images, name, options, seed, args), flush=True)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except OstinatoError as error:
        sys.exit(f"error: {error}")
