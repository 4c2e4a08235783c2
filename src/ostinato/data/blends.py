"""Streams off the usual order: blended domains, correlated classes, random lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ostinato.data.datasets.base import Indices
from ostinato.data.opening import DomainsConfig
from ostinato.data.segments import Domain, Segment, shuffled, stable_hash
from ostinato.data.sequences import DomainStream
from ostinato.data.streams import generator
from ostinato.errors import ConfigError
from ostinato.registry import STREAMS


@STREAMS.register("mixed")
class MixedStream(DomainStream):
    """Every batch blends all domains in proportion to their sizes; `image_domains` says which.

    Each domain's images are shuffled by themselves and spread evenly over the whole stream, so that
    any run of images holds about its share of every domain, and an image's corruptions lie apart:
    in one order for all, a batch would hold three or four pictures under all corruptions.

    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((6, 3, 8, 8), np.uint8), [0, 1] * 3, list("aaabbb"))
    >>> domains = [Domain(name, data, data.indices(name)) for name in data.domains()]
    >>> [sorted(batch.image_domains) for batch in MixedStream(domains, batch_size=2)]
    [['a', 'b'], ['a', 'b'], ['a', 'b']]
    """

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """One stretch with everything."""
        domains = [self.limited(domain) for domain in domains]
        first = domains[0].columns
        for domain in domains[1:]:
            other = domain.columns
            same = first is other or (
                first is not None and other is not None and first.tolist() == other.tolist()
            )
            if not same or domain.dataset.num_classes != domains[0].dataset.num_classes:
                raise ConfigError(
                    f"{domains[0].name!r} and {domain.name!r} use other classes and cannot share "
                    f"a batch: mix domains of one label space."
                )
        seeds = [stable_hash(f"mixed/{domain.name}", self.config.seed) for domain in domains]
        orders = [
            shuffled(d.dataset, d.indices, seed) for d, seed in zip(domains, seeds, strict=True)
        ]
        offsets = generator(self.config.seed, "mixed").permutation(len(domains))
        times = [
            (np.arange(len(order)) + (offset + 0.5) / len(domains)) / max(1, len(order))
            for order, offset in zip(orders, offsets, strict=True)
        ]
        which = np.repeat(np.arange(len(domains)), [len(order) for order in orders])
        merged = np.argsort(np.concatenate(times), kind="stable")
        where = np.concatenate(orders)[merged].astype(np.int64)
        return [Segment("mixed", tuple(domains), which[merged].astype(np.int64), where)]


@STREAMS.register("correlated")
class CorrelatedStream(DomainStream):
    """Within a domain, images of a class come together: sorted, or clustered by a Dirichlet.

    With a `concentration` γ, each class is spread over `slots` stretches of time (as many as
    there are classes unless given) in proportions drawn from Dirichlet(γ): the smaller γ, the
    fewer stretches a class is seen in. Without one, class follows class, in a seeded order.

    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((6, 3, 8, 8), np.uint8), [0, 1, 2, 0, 1, 2])
    >>> stream = CorrelatedStream([Domain("a", data, data.indices("array"))], batch_size=2)
    >>> all(len(set(batch.labels.tolist())) == 1 for batch in stream)
    True
    """

    class Config(DomainsConfig):
        """Settings of the correlated stream.

        >>> CorrelatedStream.Config(dataset="embedded").concentration is None  # strictly by class
        True
        """

        concentration: float | None = Field(
            None, gt=0, description="Of the Dirichlet (0.1 is usual); None sorts strictly by class."
        )
        slots: int | None = Field(
            None, ge=1, description="Stretches of time the Dirichlet spreads classes over."
        )

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """One stretch per domain, its images arranged by class."""
        if domains[0].dataset.task != "classification":
            raise ConfigError("A correlated stream arranges by class and needs class labels.")
        limited = [self.limited(domain) for domain in domains]
        return [Segment.of(domain.take(self._arrange(domain))) for domain in limited]

    def _arrange(self, domain: Domain) -> Indices:
        labels = np.array([int(domain.dataset.label(int(i))) for i in domain.indices])
        draw = generator(self.config.seed, "correlated", domain.name)
        found = draw.permutation(np.unique(labels))
        groups = [domain.indices[labels == label] for label in found]
        if self.config.concentration is None:
            return np.concatenate(groups)
        slots = self.config.slots or len(found)
        cells = [_dirichlet_cut(draw, len(g), slots, self.config.concentration) for g in groups]
        order = []
        for slot in range(slots):
            pieces = [g[c[slot] : c[slot + 1]] for g, c in zip(groups, cells, strict=True)]
            order.append(draw.permutation(np.concatenate(pieces)))
        return np.concatenate(order)


@STREAMS.register("cdc")
class CdcStream(DomainStream):
    """Continual dynamic change: domains come, go and return, for lengths drawn from a Dirichlet.

    Every domain's images are spread over `slots` stretches of time in proportions drawn from
    Dirichlet(concentration), in units of `unit` images; within a stretch the domains come in
    random order. All images are seen once. The defaults (concentration 1, 3 slots, whole batches)
    are those of the paper that proposed the setting, DPCore.

    >>> from ostinato.data.datasets.array import ArrayDataset
    >>> data = ArrayDataset(np.zeros((8, 3, 8, 8), np.uint8), [0] * 8, list("aaaabbbb"))
    >>> domains = [Domain(name, data, data.indices(name)) for name in data.domains()]
    >>> CdcStream(domains, batch_size=1, slots=4).images
    8
    """

    class Config(DomainsConfig):
        """Settings of the continual dynamic change stream.

        >>> CdcStream.Config(dataset="embedded").slots
        3
        """

        concentration: float = Field(1.0, gt=0, description="Of the Dirichlet over time.")
        slots: int = Field(3, ge=1, description="Stretches of time.")
        unit: int | None = Field(
            None, ge=1, description="Images that stay together; batch_size unless given."
        )

    def plan(self, domains: Sequence[Domain]) -> list[Segment]:
        """The pieces of all domains, slot by slot."""
        domains = [self.limited(domain) for domain in domains]
        draw = generator(self.config.seed, "cdc")
        slots = self.config.slots
        unit = self.config.unit or self.config.batch_size
        cuts = [
            np.minimum(
                _dirichlet_cut(draw, -(-len(d) // unit), slots, self.config.concentration) * unit,
                len(d),
            )
            for d in domains
        ]
        pieces = [
            domains[n].take(domains[n].indices[cuts[n][slot] : cuts[n][slot + 1]])
            for slot in range(slots)
            for n in draw.permutation(len(domains))
        ]
        return _joined([piece for piece in pieces if len(piece)])


def _joined(pieces: Sequence[Domain]) -> list[Segment]:
    """Neighbouring pieces of one domain become one stretch."""
    joined: list[Domain] = []
    for piece in pieces:
        if joined and joined[-1].name == piece.name:
            joined[-1] = piece.take(np.concatenate([joined[-1].indices, piece.indices]))
        else:
            joined.append(piece)
    return [Segment.of(domain) for domain in joined]


def _dirichlet_cut(
    draw: np.random.Generator, count: int, slots: int, concentration: float
) -> NDArray[np.int64]:
    """Where to cut `count` things into slots whose shares are drawn from a Dirichlet.

    >>> cut = _dirichlet_cut(np.random.default_rng(0), 100, 4, 1.0)
    >>> len(cut), int(cut[0]), int(cut[-1]), bool((np.diff(cut) >= 0).all())
    (5, 0, 100, True)
    """
    shares = draw.dirichlet(np.full(slots, concentration))
    ends = np.rint(np.cumsum(shares) * count).astype(np.int64)
    ends[-1] = count
    return np.concatenate([[0], np.minimum(ends, count)])
