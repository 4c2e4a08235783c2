"""CamVid: a small set of driving scenes with 11 classes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostinato.data.datasets._files import locate, wrong_layout
from ostinato.data.datasets._scenes import Scenes
from ostinato.data.datasets.base import IGNORE
from ostinato.data.datasets.listing import list_images
from ostinato.errors import ConfigError
from ostinato.registry import DATASETS

_SPLITS = {"train": 367, "val": 101, "test": 233}
_VOID = 11


@DATASETS.register("camvid")
class CamVid(Scenes):
    """<split>/images with <split>/labels, or <split> with <split>annot; void (11) becomes 255.

    >>> CamVid.num_classes, _SPLITS["test"]
    (11, 233)
    """

    layout = "test/images/*.png (or .jpg) with test/labels/*.png, or test/*.png with testannot/"
    num_classes = _VOID
    class_names = (
        "sky",
        "building",
        "pole",
        "road",
        "pavement",
        "tree",
        "sign",
        "fence",
        "car",
        "pedestrian",
        "bicyclist",
    )

    def __init__(self, root: str | Path, split: str = "test") -> None:
        if split not in _SPLITS:
            raise ConfigError(f"split = {split!r}: choose from {', '.join(_SPLITS)}.")
        self.expected = {self.name: _SPLITS[split]}
        found = locate(root, ("camvid", "CamVid"), [f"{split}/images", f"{split}annot"])
        if found is None:
            raise wrong_layout(self.name, root, self.layout, f"{split}/images")
        self._start(found)
        nested = (found / split / "images").is_dir()
        pictures = found / split / "images" if nested else found / split
        labels = found / split / "labels" if nested else found / f"{split}annot"
        if not pictures.is_dir():
            raise wrong_layout(self.name, found, self.layout, f"{split}/images")
        pairs = [(p, labels / f"{p.stem}.png") for p in list_images(pictures)]
        self._add(self.name, pairs, found)
        if not pairs:
            raise wrong_layout(self.name, found, self.layout, f"{split}/images/*")

    def _to_classes(self, labels: Tensor, path: Path) -> Tensor:
        return torch.where(labels == _VOID, torch.full_like(labels, IGNORE), labels)
