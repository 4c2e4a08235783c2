"""What a trial runs: kinds of traffic, methods, and how many images of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.data.blends import MixedStream
from ostinato.data.segments import Domain
from ostinato.data.sequences import ContinualStream, RecurringStream
from ostinato.data.streams import Stream
from ostinato.trial._images import ORDINARY, Pictures

SEED = 2025
BATCH = 25
FEW = 20
"""Images that the traffic of few classes needs of a domain."""
SINGLE, PART = 3, 5
"""Domains that are shown image by image, and with few classes."""


@dataclass(frozen=True)
class Row:
    """A method that is tried.

    Attributes:
        title: what the page calls it.
        method: its registered name.
        preset: its named settings, or None.
        only: the kinds of traffic it is tried on; all where empty.

    >>> [row.title for row in rows(["tent"])][:2]
    ['Source', 'TENT (continual)']
    """

    title: str
    method: str
    preset: str | None = None
    only: tuple[str, ...] = ()


SOURCE = Row("Source", "source")
ROBUST = Row("Ostinato robust", "ostinato", "robust")
FORWARD = Row("Ostinato forward-only", "ostinato", "forward-only", ("returning",))


@dataclass(frozen=True)
class Traffic:
    """A kind of traffic.

    Attributes:
        name: of its folder.
        title: what the page calls it.
        about: one sentence on what comes.
        stream: what is shown.
    """

    name: str
    title: str
    about: str
    stream: Stream

    @property
    def batch(self) -> int:
        """Images a batch."""
        return int(self.stream.config.batch_size)


def all_traffic(pictures: Pictures) -> list[Traffic]:
    """Every kind of traffic that these images allow."""
    shifted = [name for name in pictures.domains() if name != ORDINARY]
    everything = [pictures.domain(name) for name in shifted]
    step = max(1, len(shifted) // SINGLE)
    some = everything[::step][:SINGLE]
    kinds = [
        Traffic(
            "returning",
            "Domains that return",
            f"{len(shifted)} domains one after the other, twice; batches of {BATCH}.",
            _stream(RecurringStream, everything, rounds=2, batch_size=BATCH),
        ),
        Traffic(
            "mixed",
            "All at once",
            f"Every batch of {BATCH} holds images of all {len(shifted)} domains.",
            _stream(MixedStream, everything, batch_size=BATCH),
        ),
        Traffic(
            "single",
            "One by one",
            f"Single images, {len(some)} domains one after the other.",
            _stream(ContinualStream, some, batch_size=1),
        ),
    ]
    few = few_classes(pictures, everything[:: max(1, len(shifted) // PART)][:PART])
    if few is not None:
        domains, count = few
        kinds.append(
            Traffic(
                "few-classes",
                "Few classes",
                f"{len(domains)} domains, of which images of {count} classes alone come.",
                _stream(ContinualStream, domains, batch_size=BATCH),
            )
        )
    kinds.append(
        Traffic(
            "ordinary",
            "Ordinary images",
            "Images as they are: nothing should be lost.",
            _stream(ContinualStream, [pictures.domain(ORDINARY)], batch_size=BATCH),
        )
    )
    return kinds


def _stream(kind: Callable[..., Stream], domains: Sequence[Domain], **settings: Any) -> Stream:
    return kind(domains, seed=SEED, dataset="trial", **settings)


def few_classes(pictures: Pictures, domains: Sequence[Domain]) -> tuple[list[Domain], int] | None:
    """The domains with images of their most frequent classes alone, and how many classes.

    As few classes as give every domain 20 images; None where that takes more than a third.
    """
    labels = {d.name: [int(pictures.label(int(i))) for i in d.indices] for d in domains}
    counts = Counter(label for many in labels.values() for label in many)
    order = [label for label, _ in counts.most_common()]
    for number in range(1, max(1, len(order) // 3) + 1):
        kept = set(order[:number])
        found = {
            name: [i for i, v in enumerate(many) if v in kept] for name, many in labels.items()
        }
        if found and min(map(len, found.values())) >= FEW:
            cut = [d.take(d.indices[found[d.name]]) for d in domains]
            return cut, number
    return None


def rows(peers: Sequence[str]) -> list[Row]:
    """The methods of a trial, the source model first."""
    from ostinato.registry import METHODS
    from ostinato.running.spec import split_label

    named = [split_label(text) for text in peers]
    others = [
        Row(f"{METHODS[name].info.title} {preset or ''}".strip(), name, preset)
        for name, preset in named
    ]
    return [SOURCE, *others, FORWARD, ROBUST]


def tried(row: Row, traffic: Traffic) -> bool:
    """Whether a method is tried on a kind of traffic."""
    return not row.only or traffic.name in row.only
