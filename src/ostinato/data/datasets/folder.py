"""A user's own images: one folder per class, one root per domain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch

from ostinato.data.datasets._files import wrong_layout
from ostinato.data.datasets.labelled import LabelledFiles, wordnet_index
from ostinato.data.datasets.listing import list_images, subfolders
from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.registry import DATASETS


@DATASETS.register("folder")
class FolderDataset(LabelledFiles):
    """<root>/<class>/*, several roots for several domains.

    A domain is called after its root's last folder. Classes are the sorted names of all class
    folders (as numbers where all of them are numbers), unless `class_names` fixes the order.
    `labels="imagenet"` takes the names as WordNet ids: labels then count within `classes`, the
    columns of a 1000-class model that the folders stand for.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as home:
    ...     for place in ("day/cat", "day/dog", "night/dog"):
    ...         (Path(home) / place).mkdir(parents=True)
    ...         Image.new("RGB", (8, 8)).save(Path(home) / place / "1.png")
    ...     data = FolderDataset([f"{home}/day", f"{home}/night"])
    ...     data.domains(), data.class_names, len(data), data.label(2)
    (['day', 'night'], ('cat', 'dog'), 3, 1)
    """

    layout = "<class>/<image>, one folder per class"
    open_options = ("domains",)

    def __init__(
        self,
        roots: str | Path | Sequence[str | Path],
        class_names: Sequence[str] = (),
        labels: Literal["own", "imagenet"] = "own",
    ) -> None:
        places = [Path(roots)] if isinstance(roots, str | Path) else [Path(r) for r in roots]
        if not places:
            raise ConfigError("roots is empty: name at least one folder of class folders.")
        self._start(places[0])
        for place in places:
            if not place.is_dir() or not subfolders(place):
                raise wrong_layout(self.name, place, self.layout, "every class folder")
        self.named_by_folders = labels == "own" and not class_names
        found = {f.name for place in places for f in subfolders(place) if list_images(f)}
        position = self._number(found, class_names, labels)
        for domain, place in zip(_domain_names(places), places, strict=True):
            folders = [f for f in subfolders(place) if f.name in position]
            files = [(p, position[f.name]) for f in folders for p in list_images(f)]
            self._add(domain, files, place, f"{self.name}/{domain}")
        self._seal()

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Self:
        """Open one root, or with `domains=[...]` the domain folders below it."""
        domains = options.pop("domains", None)
        roots = [Path(root) / name for name in domains] if domains else [Path(root)]
        return cls(roots, **options)

    def _number(self, found: set[str], names: Sequence[str], labels: str) -> dict[str, int]:
        if labels == "imagenet":
            return self._imagenet(found)
        order = list(names) or sorted(found, key=_numeric if _all_numbers(found) else None)
        unknown = sorted(found - set(order))
        if unknown:
            hint = did_you_mean(unknown[0], order)
            raise DataError(f"The class folder {unknown[0]!r} is not in class_names. {hint}")
        self.num_classes, self.class_names = len(order), tuple(order)
        return {name: label for label, name in enumerate(order)}

    def _imagenet(self, found: set[str]) -> dict[str, int]:
        index = wordnet_index()
        unknown = sorted(found - set(index))
        if unknown:
            raise DataError(
                f"labels = 'imagenet', but the folder {unknown[0]!r} is no WordNet id of "
                f"ImageNet-1k. Rename it (like n01440764), or use labels = 'own'."
            )
        order = sorted(found, key=lambda name: index[name])
        self.num_classes, self.class_names = len(order), tuple(order)
        if len(order) < 1000:
            self.classes = torch.tensor([index[name] for name in order], dtype=torch.long)
        self._outputs = 1000
        return {name: label for label, name in enumerate(order)}

    def match(self, names: Sequence[str]) -> list[str]:
        """Number the classes as a model's outputs are, by their names.

        Returns the folders that no output is called after; then nothing has changed.
        """
        columns = {_plain(name): column for column, name in enumerate(names)}
        unknown = [name for name in self.class_names if _plain(name) not in columns]
        if unknown or len(columns) < len(names):
            return unknown or list(self.class_names)
        mine = [columns[_plain(name)] for name in self.class_names]
        order = sorted(range(len(mine)), key=mine.__getitem__)
        position = {old: new for new, old in enumerate(order)}
        self._labels = [position[label] for label in self._labels]
        self.class_names = tuple(self.class_names[old] for old in order)
        self.classes = torch.tensor(sorted(mine)) if len(mine) < len(names) else None
        self._outputs = len(names)
        return []

    named_by_folders: bool = False
    """Whether the folders' names alone say which class is which."""
    _outputs: int | None = None

    @property
    def outputs(self) -> int:
        """How many logits a model for these folders has."""
        return self._outputs or self.num_classes


def _plain(name: str) -> str:
    """Names that differ in case, blanks and dashes alone are the same."""
    return "".join(part for part in name.casefold() if part.isalnum())


def _numeric(name: str) -> int:
    return int(name)


def _all_numbers(names: set[str]) -> bool:
    return all(name.isdecimal() for name in names)


def _domain_names(places: Sequence[Path]) -> list[str]:
    names = [place.resolve().name for place in places]
    if len(set(names)) == len(names):
        return names
    longer = ["/".join(place.resolve().parts[-2:]) for place in places]
    if len(set(longer)) == len(longer):
        return longer
    raise ConfigError(f"Two roots look the same ({', '.join(longer)}): give each its own name.")
