"""Fetch data sets from their official addresses, with checksums, resuming where interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ostinato.data._download import Progress, ResumingDownloader, unpack
from ostinato.data._first_use import hold
from ostinato.data.check import CheckReport, check
from ostinato.data.sources import SOURCES, RemoteFile, Source
from ostinato.errors import ConfigError, DataError, MissingResource
from ostinato.registry import DATASETS

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class FetchResult:
    """What `fetch` did; print it with rich, or read its fields.

    Attributes:
        name: the data set.
        root: where it lies.
        status: "present" (was there), "fetched", or "manual" (a person has to act; see `steps`).
        files: the names of the files that were downloaded.
        notes: files without a published checksum, extras that could not be had.
        steps: what to do by hand.
        report: what a check found afterwards.

    >>> str(FetchResult("acdc", Path("acdc"), "manual", steps="Accept the terms."))
    'Accept the terms.'
    """

    name: str
    root: Path
    status: Literal["present", "fetched", "manual"]
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: str = ""
    report: CheckReport | None = None

    def __str__(self) -> str:
        if self.status == "manual":
            return self.steps
        head = "already there" if self.status == "present" else f"fetched {', '.join(self.files)}"
        lines = [f"{self.name}: {head}", *(f"  note: {note}" for note in self.notes)]
        return "\n".join([*lines, str(self.report)])

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        return Text(str(self))


def fetch(
    name: str,
    root: str | Path,
    *,
    keep: bool = False,
    force: bool = False,
    progress: Progress | bool = True,
    sources: Mapping[str, Source] | None = None,
) -> FetchResult:
    """Download and unpack a data set, or say what a person has to do.

    Args:
        name: a registered data set.
        root: the folder to put it into; it is made where it is missing.
        keep: keep the archives after unpacking.
        force: download even where a check finds the data set complete.
        progress: True for a bar, False for none, or a function to call.
        sources: other addresses (for mirrors and tests).

    Raises:
        DataError: the download stopped (run again to go on), the checksum is wrong (the file is
            removed), or an archive cannot be unpacked.

    >>> print(fetch("acdc", "/data/acdc").steps.splitlines()[0])
    acdc has to be fetched by hand, because its terms must be accepted by a person:
    """
    place = Path(root)
    source = _source(name, sources or SOURCES)
    report = check(name, place)
    if report.ok and not force:
        return FetchResult(name, place, "present", report=report)
    if not source.files:
        return FetchResult(name, place, "manual", steps=_by_hand(name, place, source))
    place.mkdir(parents=True, exist_ok=True)
    # Everything was unpacked once and yet the check fails: files were lost, so start over.
    again = force or all(_marker(place, file).exists() for file in source.files if file.required)
    done: list[str] = []
    notes: list[str] = []
    with _shown(progress) as show:
        for file in source.files:
            if again or not _marker(place, file).exists():
                _fetch_file(file, place, show, keep, done, notes)
    return FetchResult(name, place, "fetched", tuple(done), tuple(notes), report=check(name, place))


def _source(name: str, sources: Mapping[str, Source]) -> Source:
    DATASETS[name]  # an unknown name is answered with the nearest one
    if name not in sources:
        raise ConfigError(f"{name!r} is for your own images: there is nothing to fetch.")
    return sources[name]


def _by_hand(name: str, root: Path, source: Source) -> str:
    terms = "its terms must be accepted by a person"
    why = terms if "terms" in source.steps else "it has no archive with a fixed address"
    return (
        f"{name} has to be fetched by hand, because {why}:\n"
        f"  {source.page}\n"
        f"{source.steps.format(root=root)}\n"
        f"Then run: ostinato data check {name} --root {root}"
    )


def _fetch_file(
    file: RemoteFile,
    root: Path,
    show: Progress | None,
    keep: bool,
    done: list[str],
    notes: list[str],
) -> None:
    try:
        _download(file, root, show)
    except DataError as error:
        if file.required:
            raise
        notes.append(f"{file.name} could not be had: {error}")
        return
    if file.checksum is None:
        notes.append(f"{file.name} has no published checksum; the check below has to do")
    if file.checksum is None or not file.checksum.startswith("sha256:"):
        notes.append(hold(root / file.name, file.url))
    done.append(file.name)
    if file.unpack:
        unpack(root / file.name, root)
        # Says that this archive's content is in place, so that the next run does not fetch it.
        _marker(root, file).touch()
        if not keep:
            (root / file.name).unlink()


def _marker(root: Path, file: RemoteFile) -> Path:
    return root / f".{file.name}.unpacked" if file.unpack else root / file.name


def _download(file: RemoteFile, root: Path, show: Progress | None = None) -> Path:
    """Download one file into `root` and verify it; a file that is there and right is kept."""
    pooch = _pooch()
    downloader = ResumingDownloader(root / f"{file.name}.part", show)
    try:
        path = pooch.retrieve(
            file.url, file.checksum, fname=file.name, path=root, downloader=downloader
        )
    except ValueError as error:
        raise DataError(
            f"{file.name} from {file.url} has the wrong checksum and was removed: expected "
            f"{file.checksum}. It was damaged on the way or has changed; try again, and do not use "
            f"it if this happens twice. ({error})"
        ) from None
    return Path(path)


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise MissingResource(
            "Fetching needs pooch: install it with pip install 'ostinato[data]'."
        ) from None
    pooch.get_logger().setLevel("WARNING")
    return pooch


@contextmanager
def _shown(progress: Progress | bool) -> Iterator[Progress | None]:
    """A function that shows progress, for as long as it is needed."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns) as bar:
        tasks: dict[str, bars.TaskID] = {}

        def show(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=have, total=total)

        yield show
