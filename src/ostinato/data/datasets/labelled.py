"""Data sets that are a list of image files with class labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from ostinato.data.datasets._files import decode_rgb, locate, wrong_layout
from ostinato.data.datasets._spans import Spans
from ostinato.data.datasets.listing import list_images, subfolders
from ostinato.errors import DataError, did_you_mean


class LabelledFiles(Spans):
    """A base: files, their class indices and the domain each lies in, all known at opening.

    A subclass calls `_add` once per domain and `_seal` at the end.
    """

    def _start(self, root: Path) -> None:
        self.root = root
        self._paths: list[Path] = []
        self._labels: list[int] = []
        self._spans = {}
        self._keys: list[str] = []

    def _add(self, domain: str, files: Sequence[tuple[Path, int]], base: Path, prefix: str) -> None:
        start = len(self._paths)
        self._paths += [path for path, _ in files]
        self._labels += [label for _, label in files]
        self._keys += [f"{prefix}/{path.relative_to(base).as_posix()}" for path, _ in files]
        self._spans[domain] = (start, len(self._paths))

    def _seal(self) -> None:
        if not self._paths:
            raise wrong_layout(self.name, self.root, self.layout, "every image")

    def __len__(self) -> int:
        return len(self._paths)

    def image(self, index: int) -> Tensor:
        """Decode one image."""
        return decode_rgb(self._paths[index])

    def label(self, index: int) -> int:
        """The class index."""
        return self._labels[index]

    def key(self, index: int) -> str:
        """Data set, domain and path below the root."""
        return self._keys[index]

    def content(self, index: int) -> bytes:
        """The file's bytes."""
        return self._paths[index].read_bytes()

    def path(self, index: int) -> Path:
        """Where the image lies."""
        return self._paths[index]


class WordNetFolders(LabelledFiles):
    """A base for root/<WordNet id>/*: labels are ImageNet-1k classes, or a sorted part of them."""

    inner: tuple[str, ...] = ()

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        found = locate(root, (self.name, *self.inner), ["n[0-9]*"])
        if found is None:
            raise wrong_layout(self.name, root, self.layout, "a folder like n01440764")
        self._start(found)
        index = wordnet_index()
        folders = [f for f in subfolders(found) if f.name in index]
        columns = self._columns([index[f.name] for f in folders])
        self.num_classes = len(columns)
        self.class_names = tuple(wordnet_ids()[c] for c in columns)
        if len(columns) < 1000:
            self.classes = torch.tensor(columns, dtype=torch.long)
        position = {column: label for label, column in enumerate(columns)}
        files = [(p, position[index[f.name]]) for f in folders for p in list_images(f)]
        if split is not None:
            files = _listed(files, found, split)
            self.expected = {self.name: len(files)}
        self._add(self.name, files, found, self.name)
        self._seal()

    def _columns(self, used: list[int]) -> list[int]:
        return list(range(1000))

    @property
    def outputs(self) -> int:
        """ImageNet models have 1000 logits."""
        return 1000


def _listed(files: list[tuple[Path, int]], root: Path, split: str) -> list[tuple[Path, int]]:
    """The files that <root>/<split>.txt names, one path below the root a line."""
    place = root / f"{split}.txt"
    if not place.is_file():
        hint = did_you_mean(split, [p.stem for p in sorted(root.glob("*.txt"))])
        raise DataError(f"split = {split!r} is a list of images, {place}, and is missing. {hint}")
    names = place.read_text(encoding="utf-8").split()
    found = {path.relative_to(root).as_posix(): (path, label) for path, label in files}
    lost = [name for name in names if name not in found]
    if lost:
        raise DataError(f"{place} names {len(lost)} images that are not there, such as {lost[0]}.")
    return [found[name] for name in dict.fromkeys(names)]


class WordNetPart(WordNetFolders):
    """The same for data sets of 200 classes: the classes are those with a folder, in 1k order."""

    count: int = 200

    def _columns(self, used: list[int]) -> list[int]:
        if len(used) != self.count:
            raise DataError(
                f"{self.root} holds {len(used)} class folders of {self.name}, which has "
                f"{self.count}. Unpack the archive again; with classes missing, the logits would "
                f"be cut wrongly."
            )
        return sorted(used)


@lru_cache(maxsize=1)
def wordnet_ids() -> tuple[str, ...]:
    """The 1000 WordNet ids of ImageNet-1k in the order of a model's logits (timm's list)."""
    # Reading timm's file spares seconds of importing timm, which opening a data set does not need.
    spec = find_spec("timm")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place) / "data" / "_info" / "imagenet_synsets.txt"
        if file.is_file():
            return tuple(file.read_text(encoding="utf-8").split())
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


@lru_cache(maxsize=1)
def wordnet_index() -> dict[str, int]:
    """From a WordNet id to its logit."""
    return {name: index for index, name in enumerate(wordnet_ids())}
