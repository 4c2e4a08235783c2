"""The two recurring streams over real shifts: ImageNet+ and ImageNet++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field

from ostinato.data.datasets.base import Dataset, Indices
from ostinato.data.datasets.imagenet_v2 import VARIANTS
from ostinato.data.loading import Corrupt
from ostinato.data.segments import Domain, Duplicates, Segment, find_duplicates, parts
from ostinato.data.sequences import part_lists
from ostinato.data.streams import OpenDataset, Stream, StreamConfig
from ostinato.errors import ConfigError, DataError
from ostinato.registry import STREAMS

V2, A, R, S = "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch"
_ORDERS = {"text": (V2, A, R, S), "tables": (V2, A, S, R)}
"""The order that the paper's text gives, and the one that its tables print."""


class _Plus(Stream):
    """What the two have in common: four data sets, in rounds."""

    config: Any

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        config: StreamConfig | None = None,
        *,
        corrupt: Corrupt | None = None,
        **settings: Any,
    ) -> None:
        missing = [name for name in _ORDERS["text"] if name not in datasets]
        if missing:
            raise ConfigError(f"{self.name} needs the data sets {', '.join(missing)} as well.")
        self.datasets = datasets
        domains = [Domain(name, datasets[name], _everything(datasets[name])) for name in datasets]
        super().__init__(domains, config, corrupt=corrupt, **settings)

    @classmethod
    def from_config(
        cls, config: Any, opener: OpenDataset, *, corrupt: Corrupt | None = None
    ) -> Self:
        """Open the four data sets."""
        datasets = {name: opener(name) for name in _ORDERS["text"]}
        absent = [v for v in VARIANTS if v not in datasets[V2].domains()]
        if absent:
            raise DataError(
                f"ImageNet-V2 lacks the variants {', '.join(absent)}: run 'ostinato data fetch "
                f"imagenet-v2'."
            )
        return cls(datasets, config, corrupt=corrupt)


@STREAMS.register("imagenet-plus")
class ImageNetPlus(_Plus):
    """V2 (all three variants), A, R and Sketch, the same images in each of three rounds.

    >>> ImageNetPlus.Config().rounds, _ORDERS["text"][-1]
    (3, 'imagenet-sketch')
    """

    class Config(StreamConfig):
        """Settings of ImageNet+.

        >>> ImageNetPlus.Config.parse({"order": "tables"}).rounds
        3
        """

        transform: str = Field("resize256-crop224", description="Resizing by name.")
        rounds: int = Field(3, ge=1, description="How often the four data sets come.")
        order: Literal["text", "tables"] = Field(
            "text", description="V2, A, R, Sketch (text) or V2, A, Sketch, R (tables)."
        )

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """All four, round by round."""
        by_name = {domain.name: self.limited(domain) for domain in domains}
        order = _ORDERS[self.config.order]
        return [Segment.of(by_name[n]) for _ in range(self.config.rounds) for n in order]


@STREAMS.register("imagenet-plus-plus")
class ImageNetPlusPlus(_Plus):
    """Each round: another V2 variant, all of A, and another third of R and of Sketch.

    The thirds are disjoint and complete. They follow from the file names and the seed; which
    image is in which round is written beside the result (`write_artifacts`) and hashed. The V2
    variants were drawn from one pool and share pictures: `duplicates` finds them by content.

    >>> ImageNetPlusPlus.Config().duplicates
    'report'
    """

    class Config(ImageNetPlus.Config):
        """Settings of ImageNet++.

        >>> ImageNetPlusPlus.Config.parse({"duplicates": "drop"}).duplicates
        'drop'
        """

        rounds: int = Field(3, ge=1, le=3, description="1 to 3: there are three V2 variants.")
        duplicates: Literal["report", "drop", "ignore"] = Field(
            "report",
            description="Pictures in several V2 variants: list them beside the result, or leave "
            "out those met in an earlier round as well, or do not look.",
        )

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """The rounds' parts of the four."""
        by_name = {domain.name: domain for domain in domains}
        cut = {name: self._parts(by_name[name]) for name in by_name}
        order = _ORDERS[self.config.order]
        rounds = range(self.config.rounds)
        return [Segment.of(self.limited(by_name[n].take(cut[n][r]))) for r in rounds for n in order]

    def _parts(self, domain: Domain) -> list[Indices]:
        """What a data set shows in rounds one to three."""
        if domain.name == A:
            return [domain.indices] * len(VARIANTS)
        if domain.name != V2:
            return parts(domain.dataset, domain.indices, len(VARIANTS), self.config.seed)
        out = self.duplicates.repeats() if self.config.duplicates == "drop" else set()
        kept = domain.indices[~np.isin(domain.indices, sorted(out))]
        return [kept[np.isin(kept, domain.dataset.indices(variant))] for variant in VARIANTS]

    @cached_property
    def duplicates(self) -> Duplicates:
        """Pictures that more than one V2 variant holds (reads every V2 file once)."""
        return find_duplicates(self.datasets[V2], tuple(VARIANTS))

    def artifacts(self) -> dict[str, str]:
        """The images of every part, and the duplicates among the V2 variants."""
        texts = part_lists([s for s in self.segments if s.name != A])
        if self.config.duplicates != "ignore":
            texts["duplicates-imagenet-v2.json"] = self.duplicates.to_json()
        return texts


def _everything(dataset: Dataset) -> Indices:
    return np.concatenate([dataset.indices(name) for name in dataset.domains()])
