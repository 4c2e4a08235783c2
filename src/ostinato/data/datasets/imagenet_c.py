"""ImageNet-C: the validation images under 19 corruptions at five severities, as JPEG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from ostinato.data.corruptions import COMMON, EXTRA
from ostinato.data.datasets._files import decode_rgb, locate, wrong_layout
from ostinato.data.datasets.base import Dataset, Indices, check_severity
from ostinato.data.datasets.labelled import wordnet_ids, wordnet_index
from ostinato.data.datasets.listing import list_images, subfolders
from ostinato.errors import DataError
from ostinato.registry import DATASETS

_GROUPS = ("noise", "blur", "weather", "digital", "extra")
LIST_FILE = "imagenet_test_image_ids.txt"
"""The name under which RobustBench publishes its list of 5,000 images."""


@DATASETS.register("imagenet-c")
class ImageNetC(Dataset):
    """root/<corruption>/<severity>/<WordNet id>/*.JPEG, whole or the 5,000 images of the tables.

    `subset="5000"` takes the list file `imagenet_test_image_ids.txt` of RobustBench where it lies
    in the root (fetching the data set puts it there). Without it, every 10th image in the order
    of the file names is used, which is another sample of the same size; `notes` says which.
    `subset="full"` takes all 50,000. Any other value is the path of a list file with one
    `<WordNet id>/<file name>` a line. Images come in the list's order, or by file name (which
    mixes the classes). The file names are listed once and hold for all corruptions.

    >>> ImageNetC.name, ImageNetC.stored_severities
    ('imagenet-c', True)
    """

    layout = "gaussian_noise/5/n01440764/ILSVRC2012_val_00000293.JPEG, ..."
    ordered = True
    stored_severities = True

    def __init__(self, root: str | Path, subset: str | Path = "5000") -> None:
        probe = [f"{group}{name}" for name in COMMON + EXTRA for group in ("", "*/")]
        found = locate(root, (self.name, "ImageNet-C"), probe)
        if found is None:
            raise wrong_layout(self.name, root, self.layout, "a folder like gaussian_noise")
        self.root = found
        self._folders = {n: f for n in COMMON + EXTRA if (f := _folder(found, n)) is not None}
        self.num_classes = 1000
        self.class_names = wordnet_ids()
        self._names = self._choose(str(subset))
        self.expected = dict.fromkeys(COMMON, len(self._names))
        index = wordnet_index()
        try:
            self._labels = [index[name.split("/")[0]] for name in self._names]
        except KeyError as error:
            raise DataError(f"{error} is no WordNet id of ImageNet-1k (subset {subset}).") from None

    def _choose(self, subset: str) -> list[str]:
        if subset == "full":
            return self._all_names()
        if subset != "5000":
            return _read_list(Path(subset))
        if (self.root / LIST_FILE).is_file():
            self.notes = (f"5,000-image list: {LIST_FILE} of the root (RobustBench's)",)
            return _read_list(self.root / LIST_FILE)
        self.notes = (
            f"no {LIST_FILE} in the root: every 10th image by file name instead of "
            f"RobustBench's list, so that errors differ a little from printed ones",
        )
        return self._all_names()[::10]

    def _all_names(self) -> list[str]:
        """Every image once, by file name, from the first folder of images there is."""
        folder = next((s for f in self._folders.values() for s in subfolders(f)), self.root)
        files = [p for f in subfolders(folder) for p in list_images(f)]
        if not files:
            raise wrong_layout(self.name, folder, self.layout, "every image")
        return [f"{p.parent.name}/{p.name}" for p in sorted(files, key=lambda p: p.name)]

    def domains(self) -> list[str]:
        """The corruptions that are on disk, in the usual order."""
        return list(self._folders)

    def indices(self, domain: str, severity: int | None = None) -> Indices:
        """The positions of one corruption's images at one severity (5 unless told)."""
        if domain not in self._folders:
            raise self._no_domain(domain)
        level = check_severity(severity)
        if not (self._folders[domain] / str(level)).is_dir():
            raise wrong_layout(self.name, self.root, self.layout, f"{domain}/{level}")
        block = self.domains().index(domain) * 5 + level - 1
        return np.arange(len(self._names), dtype=np.int64) + block * len(self._names)

    def __len__(self) -> int:
        return len(self._folders) * 5 * len(self._names)

    def _locate(self, index: int) -> tuple[str, int, str]:
        block, position = divmod(index, len(self._names))
        return self.domains()[block // 5], block % 5 + 1, self._names[position]

    def path(self, index: int) -> Path:
        """Where the image lies."""
        domain, severity, name = self._locate(index)
        return self._folders[domain] / str(severity) / name

    def image(self, index: int) -> Tensor:
        """Decode one image."""
        return decode_rgb(self.path(index))

    def label(self, index: int) -> int:
        """The class index."""
        return self._labels[index % len(self._names)]

    def key(self, index: int) -> str:
        """Corruption, severity and file."""
        domain, severity, name = self._locate(index)
        return f"{self.name}/{domain}/{severity}/{name}"

    def source_key(self, index: int) -> str:
        """The validation image's name."""
        return f"{self.name}/{self._names[index % len(self._names)]}"

    def absent(self) -> list[str]:
        """Images of the list that lack in a corruption and severity whose folder is there."""
        stored = [f / str(n) for f in self._folders.values() for n in range(1, 6)]
        places = [place for place in stored if place.is_dir()]
        return [
            str(place / n) for place in places for n in self._names if not (place / n).is_file()
        ]

    def content(self, index: int) -> bytes:
        """The file's bytes."""
        return self.path(index).read_bytes()


def _folder(root: Path, name: str) -> Path | None:
    """A corruption's folder; the archives' group folders may still be there."""
    options = [root / name, *(root / group / name for group in _GROUPS)]
    return next((option for option in options if option.is_dir()), None)


def _read_list(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(
            f"The image list {path} cannot be read ({error}). subset is '5000', 'full' or the "
            f"path of a file with one 'n01440764/ILSVRC2012_val_00000293.JPEG' a line."
        ) from None
    return [line for line in lines if line]
