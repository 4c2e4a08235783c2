"""Cityscapes: the source domain of the driving streams."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostinato.data.datasets._files import locate, wrong_layout
from ostinato.data.datasets._scenes import CITYSCAPES_CLASSES, Scenes
from ostinato.errors import ConfigError
from ostinato.registry import DATASETS

_EVALUATED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The label ids of the 19 evaluated classes, by train id."""


def _train_id_table() -> Tensor:
    """From a Cityscapes label id (0 to 255) to its train id; 255 for the ids that do not count.

    >>> table = _train_id_table()
    >>> [int(table[i]) for i in (7, 26, 33, 0, 255)]
    [0, 13, 18, 255, 255]
    """
    table = torch.full((256,), 255, dtype=torch.uint8)
    table[list(_EVALUATED)] = torch.arange(19, dtype=torch.uint8)
    return table


@DATASETS.register("cityscapes")
class Cityscapes(Scenes):
    """leftImg8bit/<split>/<city>/*_leftImg8bit.png with gtFine/.../*_gtFine_labelTrainIds.png.

    Where only the distributed *_labelIds.png are there, they are mapped by the standard table.

    >>> Cityscapes.expected
    {'cityscapes': 500}
    """

    layout = (
        "leftImg8bit/val/frankfurt/*_leftImg8bit.png and gtFine/val/frankfurt/"
        "*_gtFine_labelTrainIds.png (or *_gtFine_labelIds.png)"
    )
    expected = {"cityscapes": 500}
    num_classes = 19
    class_names = CITYSCAPES_CLASSES

    def __init__(self, root: str | Path, split: str = "val") -> None:
        if split not in ("train", "val"):
            raise ConfigError(f"split = {split!r}: choose 'val' or 'train' (test has no labels).")
        if split != "val":
            self.expected = {}
        found = locate(root, ("cityscapes",), [f"leftImg8bit/{split}"])
        if found is None:
            raise wrong_layout(self.name, root, self.layout, f"leftImg8bit/{split}")
        self._start(found)
        self._table = _train_id_table()
        files = sorted((found / "leftImg8bit" / split).glob("*/*_leftImg8bit.png"))
        pairs = [(f, self._labels_of(f)) for f in files]
        self._add(self.name, pairs, found / "leftImg8bit")
        if not self._pairs:
            raise wrong_layout(self.name, root, self.layout, f"leftImg8bit/{split}/*/*.png")

    def _labels_of(self, picture: Path) -> Path:
        inner = picture.parent.relative_to(self.root / "leftImg8bit")
        stem = picture.name.removesuffix("_leftImg8bit.png")
        folder = self.root / "gtFine" / inner
        ready = folder / f"{stem}_gtFine_labelTrainIds.png"
        raw = folder / f"{stem}_gtFine_labelIds.png"
        return raw if raw.is_file() and not ready.is_file() else ready

    def _to_classes(self, labels: Tensor, path: Path) -> Tensor:
        if path.name.endswith("labelTrainIds.png"):
            return labels
        return self._table[labels.long()]
