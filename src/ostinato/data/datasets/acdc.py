"""ACDC: driving scenes in fog, at night, in rain and in snow, with the 19 Cityscapes classes."""

from __future__ import annotations

from pathlib import Path

from ostinato.data.datasets._files import locate, wrong_layout
from ostinato.data.datasets._scenes import CITYSCAPES_CLASSES, Scenes
from ostinato.errors import ConfigError
from ostinato.registry import DATASETS

_CONDITIONS = ("fog", "night", "rain", "snow")


@DATASETS.register("acdc")
class Acdc(Scenes):
    """rgb_anon/<condition>/<split>/<drive>/*_rgb_anon.png with gt/.../*_gt_labelTrainIds.png.

    The literature's numbers are on the **train** folders, so that is the default split.

    >>> Acdc.expected
    {'fog': 400, 'night': 400, 'rain': 400, 'snow': 400}
    """

    layout = (
        "rgb_anon/fog/train/GOPR0475/*_rgb_anon.png and gt/fog/train/GOPR0475/"
        "*_gt_labelTrainIds.png, the same for night, rain, snow"
    )
    expected = dict.fromkeys(_CONDITIONS, 400)
    num_classes = 19
    class_names = CITYSCAPES_CLASSES

    def __init__(self, root: str | Path, split: str = "train") -> None:
        if split not in ("train", "val"):
            raise ConfigError(f"split = {split!r}: choose 'train' or 'val' (test has no labels).")
        if split != "train":
            self.expected = {}
        found = locate(root, ("acdc", "ACDC"), ["rgb_anon"])
        if found is None:
            raise wrong_layout(self.name, root, self.layout, "rgb_anon")
        self._start(found)
        for condition in _CONDITIONS:
            folder = found / "rgb_anon" / condition / split
            if folder.is_dir():
                files = sorted(folder.glob("*/*_rgb_anon.png"))
                self._add(condition, [(f, self._labels_of(f)) for f in files], found / "rgb_anon")
        if not self._pairs:
            raise wrong_layout(self.name, root, self.layout, f"rgb_anon/fog/{split}")

    def _labels_of(self, picture: Path) -> Path:
        inner = picture.parent.relative_to(self.root / "rgb_anon")
        stem = picture.name.removesuffix("_rgb_anon.png")
        return self.root / "gt" / inner / f"{stem}_gt_labelTrainIds.png"
