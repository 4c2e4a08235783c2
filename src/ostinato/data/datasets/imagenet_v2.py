"""ImageNet-V2: three newly drawn test sets in folders that are named by class number."""

from __future__ import annotations

from pathlib import Path

from ostinato.data.datasets._files import locate, wrong_layout
from ostinato.data.datasets.labelled import LabelledFiles, wordnet_ids
from ostinato.data.datasets.listing import list_images, subfolders
from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.registry import DATASETS

VARIANTS = {
    "matched-frequency": "imagenetv2-matched-frequency-format-val",
    "threshold-0.7": "imagenetv2-threshold0.7-format-val",
    "top-images": "imagenetv2-top-images-format-val",
}
"""The three variants in the order ImageNet++ meets them, and their folders."""


@DATASETS.register("imagenet-v2")
class ImageNetV2(LabelledFiles):
    """Three variants of 10,000 images; a folder's name is its class, as a number.

    Sorting the folders "0".."999" as strings gives wrong labels ("10" before "2"), so the name
    is read as the number it is. Variants that are not there are left out of `domains()`.

    >>> list(VARIANTS)
    ['matched-frequency', 'threshold-0.7', 'top-images']
    """

    layout = "imagenetv2-matched-frequency-format-val/0/*.jpeg, ... for the classes 0 to 999"
    expected = dict.fromkeys(VARIANTS, 10_000)

    def __init__(self, root: str | Path, variants: tuple[str, ...] = ()) -> None:
        for variant in variants:
            if variant not in VARIANTS:
                hint = did_you_mean(variant, VARIANTS)
                raise ConfigError(f"There is no ImageNet-V2 variant {variant!r}. {hint}")
        found = locate(root, (self.name, "ImageNetV2"), VARIANTS.values())
        if found is None:
            raise wrong_layout(self.name, root, self.layout, " or ".join(VARIANTS.values()))
        self._start(found)
        self.num_classes = 1000
        self.class_names = wordnet_ids()
        for variant, folder in VARIANTS.items():
            if variant in variants or (not variants and (found / folder).is_dir()):
                self._add_variant(variant, found / folder)
        self._seal()

    def _add_variant(self, variant: str, folder: Path) -> None:
        if not folder.is_dir():
            raise wrong_layout(self.name, folder.parent, self.layout, folder.name)
        numbered = sorted((_class_number(f), f) for f in subfolders(folder))
        files = [(path, label) for label, f in numbered for path in list_images(f)]
        self._add(variant, files, folder, f"{self.name}/{variant}")


def _class_number(folder: Path) -> int:
    if folder.name.isdecimal() and int(folder.name) < 1000:
        return int(folder.name)
    raise DataError(
        f"{folder} is no class folder of ImageNet-V2: these are named 0 to 999. "
        f"Move it away, or unpack the archive again."
    )
