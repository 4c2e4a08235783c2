"""An archive of labelled images becomes three splits that share nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import ModuleType

from PIL import Image

from ostinato.data.datasets.base import open_dataset

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "lay_out.py"


def archive(path: Path, classes: int) -> Path:
    with tarfile.open(path, "w") as tar:
        for index in range(classes):
            for name in ("a", "b"):
                data = io.BytesIO()
                Image.new("RGB", (8, 8), (40 * index, 0, 0)).save(data, "JPEG")
                entry = tarfile.TarInfo(f"{index:04d}/{name}.jpg")
                entry.size = data.tell()
                data.seek(0)
                tar.addfile(entry, data)
    return path


def test_splits_are_disjoint_whole_and_keep_their_labels(
    tmp_path: Path, script: ModuleType
) -> None:
    lay_out = script.lay_out
    source = archive(tmp_path / "images.tar", 5)
    counts = lay_out(source, tmp_path / "data", clean=3, tune=2, seed=1)
    assert counts == {"clean": 3, "tune": 2, "test": 5}
    root = tmp_path / "data" / "imagenet-val"
    sets = {name: open_dataset("imagenet-val", root, split=name) for name in counts}
    keys = [data.key(i) for data in sets.values() for i in range(len(data))]
    assert len(keys) == len(set(keys)) == 10
    for data in sets.values():
        for i in range(len(data)):
            shade = float(data.image(i)[0].float().mean())
            assert abs(shade - 40 * data.label(i)) < 10  # what JPEG does to a colour
    assert lay_out(source, tmp_path / "again", clean=3, tune=2, seed=1) == counts
    assert (tmp_path / "again/imagenet-val/test.txt").read_text() == (root / "test.txt").read_text()
