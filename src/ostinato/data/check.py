"""Is a data set there and whole? Layout, counts and a few decoded images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.data.datasets.base import Dataset, open_dataset
from ostinato.data.datasets.listing import leftovers
from ostinato.errors import DataError

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class CheckReport:
    """What `check` found; print it with rich, or read its fields.

    Attributes:
        name: the data set.
        root: where it was looked for.
        images: how many images there are, by domain.
        expected: how many there should be, by domain, where that is known.
        decoded: names of the images that were decoded as a test.
        problems: what is missing or broken, and what to do; empty where all is well.
        notes: what is worth knowing though nothing is wrong.

    >>> CheckReport("mine", Path("photos"), images={"day": 3}).ok
    True
    """

    name: str
    root: Path
    images: Mapping[str, int] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    decoded: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is missing or broken."""
        return not self.problems

    @property
    def count(self) -> int:
        """Images in all domains."""
        return sum(self.images.values())

    def __str__(self) -> str:
        head = "complete" if self.ok else f"{len(self.problems)} problem(s)"
        lines = [f"{self.name} at {self.root}: {head}, {self.count:,} images"]
        for domain, count in self.images.items():
            due = self.expected.get(domain)
            lines.append(f"  {domain}: {count:,}" + (f" of {due:,}" if due else ""))
        if self.decoded:
            lines.append(f"  decoded as a test: {len(self.decoded)}")
        lines += [f"  problem: {text}" for text in self.problems]
        lines += [f"  note: {text}" for text in self.notes]
        return "\n".join(lines)

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        text = Text(str(self))
        text.highlight_regex(r"(?m)^  problem:", "bold red")
        text.highlight_regex(r"(?m)^  note:", "yellow")
        text.highlight_regex(r": complete,", "bold green")
        return text


def check(name: str, root: str | Path, /, samples: int = 3, **options: Any) -> CheckReport:
    """Look at a data set below `root`: layout, what is missing, how many images, a few decoded.

    Nothing is raised for missing or broken data: the report says what is wrong. An unknown name
    or option is an error.

    >>> report = check("imagenet-a", "/nowhere")
    >>> report.ok, report.count
    (False, 0)
    """
    place = Path(root)
    try:
        dataset = open_dataset(name, place, **options)
    except DataError as error:
        return CheckReport(name, place, problems=(str(error),))
    images, problems = _count(dataset)
    decoded, broken = _decode_some(dataset, samples)
    again = f"run 'ostinato data fetch {name} --root {place}' to go on with it"
    unfinished = [f"{f} is a half-finished download: {again}." for f in _unfinished(place)]
    return CheckReport(
        name,
        place,
        images=images,
        expected=dataset.expected,
        decoded=tuple(decoded),
        problems=(*problems, *_absent(dataset), *broken, *unfinished),
        notes=dataset.notes,
    )


def _count(dataset: Dataset) -> tuple[dict[str, int], list[str]]:
    images: dict[str, int] = {}
    problems: list[str] = []
    for domain in dataset.domains():
        try:
            images[domain] = len(dataset.indices(domain))
        except DataError as error:
            problems.append(str(error))
    again = f"Run 'ostinato data fetch {dataset.name}' again"
    for domain, due in dataset.expected.items():
        if domain not in dataset.domains():
            problems.append(f"the domain {domain} is missing. {again}.")
        elif images.get(domain, due) != due:
            problems.append(
                f"{domain} has {images[domain]:,} images instead of {due:,}. {again}, or go on "
                f"with what is there."
            )
    return images, problems


def _decode_some(dataset: Dataset, samples: int) -> tuple[list[str], list[str]]:
    """Decode the first, the last and some images between of every domain."""
    decoded: list[str] = []
    broken: list[str] = []
    for domain in dataset.domains():
        try:
            indices = dataset.indices(domain)
        except DataError:
            continue
        count = min(samples, len(indices))
        steps = {round(n * (len(indices) - 1) / max(1, count - 1)) for n in range(count)}
        for step in sorted(steps):
            try:
                decoded.append(dataset[int(indices[step])].key)
            except DataError as error:
                broken.append(str(error))
    return decoded, broken


def _absent(dataset: Dataset) -> list[str]:
    files = dataset.absent()
    if not files:
        return []
    return [f"{len(files):,} images are missing, the first is {files[0]}. Unpack it again."]


def _unfinished(root: Path) -> list[str]:
    return [name for name in leftovers(root) if name.endswith(".part")]
