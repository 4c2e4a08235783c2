"""Streams that show one domain after the other: once, in rounds, or with rising severity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import Field, field_validator

from ostinato.data.datasets.base import check_severity
from ostinato.data.loading import Corrupt
from ostinato.data.opening import DomainsConfig, open_domains
from ostinato.data.segments import Domain, Segment, parts
from ostinato.data.streams import OpenDataset, Stream
from ostinato.errors import ConfigError
from ostinato.registry import STREAMS


class DomainStream(Stream):
    """A base for streams over a list of domains.

    >>> issubclass(ContinualStream, DomainStream)
    True
    """

    Config = DomainsConfig
    config: Any

    @classmethod
    def from_config(
        cls, config: Any, opener: OpenDataset, *, corrupt: Corrupt | None = None
    ) -> Self:
        """Open the domains that the settings name."""
        return cls(open_domains(config, opener), config, corrupt=corrupt)


@STREAMS.register("continual")
class ContinualStream(DomainStream):
    """The domains once, in order.

    >>> import numpy as np
    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((5, 3, 8, 8), np.uint8), [0, 1, 0, 1, 0], list("aabbb"))
    >>> domains = [Domain(name, data, data.indices(name)) for name in data.domains()]
    >>> stream = ContinualStream(domains, batch_size=2)
    >>> [(batch.domain, len(batch)) for batch in stream]
    [('a', 2), ('b', 2), ('b', 1)]
    >>> print(stream.describe())
    continual: 2 domains, 5 images in 3 batches of 2, 2 classes, transform none, seed 0
    """

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """One stretch per domain."""
        return [Segment.of(self.limited(domain)) for domain in domains]


@STREAMS.register("recurring")
class RecurringStream(DomainStream):
    """The list of domains again and again, with the same images or with disjoint parts of them.

    >>> import numpy as np
    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1], list("aabb"))
    >>> domains = [Domain(name, data, data.indices(name)) for name in data.domains()]
    >>> stream = RecurringStream(domains, rounds=2, batch_size=2)
    >>> [(batch.domain, batch.round) for batch in stream]
    [('a', 0), ('b', 0), ('a', 1), ('b', 1)]
    """

    class Config(DomainsConfig):
        """Settings of the recurring stream.

        >>> RecurringStream.Config.parse({"rounds": 5, "disjoint": True}).rounds
        5
        """

        rounds: int = Field(3, ge=1, description="How often the list of domains comes.")
        disjoint: bool = Field(
            False, description="Other images in every round (parts by name and seed), or the same."
        )

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """The list of domains, round by round."""
        rounds = self.config.rounds
        names = [domain.name for domain in domains]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"The domain {twice!r} is listed twice; rounds repeats the list.")
        cut = [self._rounds(domain) for domain in domains]
        return [Segment.of(self.limited(each[r])) for r in range(rounds) for each in cut]

    def _rounds(self, domain: Domain) -> list[Domain]:
        """What a domain shows in every round."""
        rounds = self.config.rounds
        if not self.config.disjoint:
            return [domain] * rounds
        cut = parts(domain.dataset, domain.indices, rounds, self.config.seed)
        return [domain.take(part) for part in cut]

    def artifacts(self) -> dict[str, str]:
        """The classes' names, and which image is in which round, where the rounds differ."""
        parts = part_lists(self.segments) if self.config.disjoint else {}
        return super().artifacts() | parts


@STREAMS.register("alternating")
class AlternatingStream(DomainStream):
    """Another domain with every batch, each of them again and again until its images are shown.

    >>> import numpy as np
    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1], list("aabb"))
    >>> domains = [Domain(name, data, data.indices(name)) for name in data.domains()]
    >>> [batch.domain for batch in AlternatingStream(domains, batch_size=1)]
    ['a', 'b', 'a', 'b']
    """

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """One batch of every domain in turn."""
        size = self.config.batch_size
        limited = [self.limited(domain) for domain in domains]
        longest = max(len(domain) for domain in limited)
        return [
            Segment.of(domain.take(domain.indices[start : start + size]))
            for start in range(0, longest, size)
            for domain in limited
        ]


@STREAMS.register("gradual")
class GradualStream(DomainStream):
    """Every corruption rises from severity 1 to 5 and falls back; domains are called `fog@3`.

    The same images come at every severity; the way down is round 1 of the severities 1 to 4.

    >>> import numpy as np
    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((2, 3, 8, 8), np.uint8), [0, 1])
    >>> fog = Domain("fog", data, data.indices("array"), corruption="fog")
    >>> stream = GradualStream([fog], severities=(1, 2, 1), corrupt=lambda x, *_, **__: x)
    >>> [(batch.domain, batch.round) for batch in stream]
    [('fog@1', 0), ('fog@2', 0), ('fog@1', 1)]
    """

    class Config(DomainsConfig):
        """Settings of the gradual stream.

        >>> GradualStream.Config.parse({"severities": [1, 3, 5]}).severities
        (1, 3, 5)
        """

        severities: tuple[int, ...] = Field(
            (1, 2, 3, 4, 5, 4, 3, 2, 1), min_length=1, description="The severities, in order."
        )

        @field_validator("severities")
        @classmethod
        def _levels(cls, values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(check_severity(value) for value in values)

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """Every domain at all severities in turn."""
        return [
            Segment.of(_at(self.limited(domain), level))
            for domain in domains
            for level in self.config.severities
        ]


def _at(domain: Domain, severity: int) -> Domain:
    """The same pictures of a corruption at another severity."""
    base = domain.name.partition("@")[0]
    changed = replace(domain, name=f"{base}@{severity}", severity=severity)
    if domain.corruption is not None:
        return changed
    if not domain.dataset.stored_severities:
        raise ConfigError(
            f"The domain {domain.name!r} of {domain.dataset.name} has no severities: a gradual "
            f"stream takes corruptions, such as domains = ['fog', 'snow']."
        )
    # Severities are stored in equal blocks, so a picture keeps its place within a block.
    spelled = base.rpartition(":")[2]
    stored = domain.dataset.indices(spelled, domain.severity)
    offset = int(domain.dataset.indices(spelled, severity)[0] - stored[0])
    return replace(changed, indices=domain.indices + offset)


def part_lists(segments: Sequence[Segment]) -> dict[str, str]:
    """One list of image names per stretch, by file name."""
    return {
        f"split-{s.name.replace('/', '_')}-round{s.round + 1}.txt": "".join(
            f"{s.parts[part].dataset.key(index)}\n"
            for part, index in zip(s.which.tolist(), s.where.tolist(), strict=True)
        )
        for s in segments
    }
