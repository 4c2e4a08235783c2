"""Descriptors of images under corruptions, made once, and streams of them without pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostinato.data.datasets.base import Dataset, open_dataset
from ostinato.data.loading import load_batch
from ostinato.data.segments import Domain, Segment, shuffled
from ostinato.data.streams import Stream, build_stream
from ostinato.domains.texture import Texture
from ostinato.ops._altered import altered
from ostinato.ops.whitening import Content

AT_ONCE = 50
VARIED = 500
"""Clean images of which altered ones are made, as `collect_statistics` does."""


@dataclass(frozen=True)
class Images:
    """Where images come from and where what is made of them is kept.

    Attributes:
        name: of the data set.
        root: its folder.
        split: which of its images are streamed.
        clean: the split that statistics are made of.
        severity: of corruptions.
        cache: a folder.
        statistics: clean images at most.
    """

    name: str
    root: Path
    split: str
    clean: str
    severity: int
    cache: Path
    statistics: int = 300

    def open(self, split: str) -> Dataset:
        return open_dataset(self.name, self.root, split=split)

    @cached_property
    def dataset(self) -> Dataset:
        return self.open(self.split)

    def stream(self, name: str, seed: int, **options: Any) -> Stream:
        """The stream that `ostinato run` would show."""
        settings = {"dataset": self.name, "severity": self.severity, "seed": seed, **options}
        return build_stream(name, settings, datasets={self.name: self.dataset})

    def content(self) -> Content:
        """What statistics of the clean split hold for routing."""
        parts = self._kept(f"clean-{self.clean}-{self.statistics}", self._describe_clean)
        groups = [parts[name] for name in sorted(parts) if name != "clean"]
        return Content.of(parts["clean"], groups)

    def descriptors(self, seed: int) -> dict[str, Tensor]:
        """Every domain's descriptors, a row for each image of the split; `clean` is one of them."""
        stem = f"{self.split}-severity{self.severity}-seed{seed}"
        return self._kept(stem, lambda: self._describe(seed))

    def _kept(self, stem: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        path = self.cache / f"{self.name}-{stem}.safetensors"
        if not path.is_file():
            self.cache.mkdir(parents=True, exist_ok=True)
            save_file(make(), path)
        return load_file(path)

    def _describe(self, seed: int) -> dict[str, Tensor]:
        stream = self.stream("continual", seed)
        found: dict[str, Tensor] = {}
        everything = stream.segments[0].parts[0].indices
        plain = Domain("clean", self.dataset, everything)
        for domain in [plain, *(segment.parts[0] for segment in stream.segments)]:
            rows = torch.zeros(len(self.dataset), 0)
            for start in range(0, len(domain.indices), AT_ONCE):
                chosen = [(domain, int(i)) for i in domain.indices[start : start + AT_ONCE]]
                described = _described(load_batch(chosen, seed=seed)[0])
                if not rows.numel():
                    rows = torch.zeros(len(self.dataset), described.shape[1])
                rows[[index for _, index in chosen]] = described
            found[domain.name] = rows
            print(f"described {self.name} {domain.name}, seed {seed}", flush=True)
        return found

    def _describe_clean(self) -> dict[str, Tensor]:
        dataset = self.open(self.clean)
        indices = dataset.indices(dataset.domains()[0])
        domain = Domain("clean", dataset, indices)
        order = shuffled(dataset, indices, 0)[: self.statistics]
        groups: dict[str, list[Tensor]] = {}
        for start in range(0, len(order), AT_ONCE):
            levels, _, _ = load_batch([(domain, int(i)) for i in order[start : start + AT_ONCE]])
            groups.setdefault("clean", []).append(_described(levels))
            if start < VARIED:
                for name, images in altered(levels.float() / 255, start).items():
                    groups.setdefault(name, []).append(Texture()(images))
        numbers = {name: str(n) for n, name in enumerate(groups)}  # the order matters a little
        return {
            name if name == "clean" else f"{int(numbers[name]):02} {name}": torch.cat(group)
            for name, group in groups.items()
        }


def _described(levels: Tensor) -> Tensor:
    return Texture()(levels.float() / 255)


def batches(
    stream: Stream, known: dict[str, Tensor], micro: int = 50, letters: int = 0
) -> Iterator[tuple[Tensor, list[str]]]:
    """Descriptors and true domains, batch by batch, as a method takes them in.

    Args:
        stream: what is shown.
        known: every domain's descriptors.
        micro: images that are taken in together at most; larger batches come in parts.
        letters: of a file's name that are part of its image's true domain.
    """
    size = stream.config.batch_size
    for segment in stream.segments:
        for start in range(0, len(segment), size):
            whole = range(start, min(start + size, len(segment)))
            for first in range(0, len(whole), micro):
                yield _part(segment, whole[first : first + micro], known, letters)


def _part(
    segment: Segment, rows: Sequence[int], known: dict[str, Tensor], letters: int
) -> tuple[Tensor, list[str]]:
    shown = [(segment.parts[int(segment.which[row])], int(segment.where[row])) for row in rows]
    found = [known[part.name][place] for part, place in shown]
    names = [
        part.name + Path(part.dataset.key(place)).name[:letters] if letters else part.name
        for part, place in shown
    ]
    return torch.stack(found), names
