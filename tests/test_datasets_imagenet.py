"""The ImageNet family on generated trees of the real layout, with the traps they are known for."""

from __future__ import annotations

import io
import runpy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from ostinato.data.check import check
from ostinato.data.corruptions import COMMON
from ostinato.data.datasets.base import open_dataset
from ostinato.data.datasets.labelled import wordnet_ids
from ostinato.errors import ConfigError, DataError

trees = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("_trees.py"))))


def test_the_wordnet_ids_are_the_sorted_thousand() -> None:
    ids = wordnet_ids()
    assert len(ids) == 1000
    assert list(ids) == sorted(ids)
    assert ids[0] == "n01440764"  # tench


@pytest.mark.parametrize(
    ("name", "inner"), [("imagenet-val", "val"), ("imagenet-sketch", "sketch")]
)
def test_thousand_class_folders_keep_the_models_numbers(
    tmp_path: Path, name: str, inner: str
) -> None:
    trees.wordnet_tree(tmp_path / inner, [0, 5, 999], each=2)
    data = open_dataset(name, tmp_path)
    assert [data.label(i) for i in range(len(data))] == [0, 0, 5, 5, 999, 999]
    assert (data.num_classes, data.outputs, data.classes) == (1000, 1000, None)
    assert data.domains() == [name]
    assert data[2].key == f"{name}/{wordnet_ids()[5]}/0.jpg"
    assert data[0].image.shape == (3, 16, 16)
    assert data[0].image.dtype == torch.uint8


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-r"])
def test_two_hundred_classes_slice_the_thousand_logits(tmp_path: Path, name: str) -> None:
    columns = sorted(trees.part_columns())
    trees.wordnet_tree(tmp_path / name, columns)
    data = open_dataset(name, tmp_path)
    assert (data.num_classes, data.outputs) == (200, 1000)
    assert data.classes is not None
    assert data.classes.tolist() == columns
    # A model that is right on the true column is right after slicing, on every image.
    for index in range(len(data)):
        true = wordnet_ids().index(data.key(index).split("/")[1])
        logits = torch.zeros(1000)
        logits[true] = 1.0
        assert int(logits[data.classes].argmax()) == data.label(index)


def test_a_part_with_classes_missing_is_refused(tmp_path: Path) -> None:
    trees.wordnet_tree(tmp_path / "imagenet-a", trees.part_columns()[:199])
    with pytest.raises(DataError, match=r"199 class folders of imagenet-a, which has 200"):
        open_dataset("imagenet-a", tmp_path)


def test_timms_own_lists_of_the_parts_agree_with_folders(tmp_path: Path) -> None:
    """The columns come from folder names; timm ships the same lists for A and R."""
    spec = find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    info = Path(spec.origin).parent / "data" / "_info"
    for name, stem in (("imagenet-a", "imagenet_a"), ("imagenet-r", "imagenet_r")):
        for wnid in (info / f"{stem}_synsets.txt").read_text().split():
            trees.picture(tmp_path / name / wnid / "0.png", size=(8, 8))
        expected = [int(n) for n in (info / f"{stem}_indices.txt").read_text().split()]
        assert open_dataset(name, tmp_path).classes.tolist() == expected


def test_v2_labels_are_numbers_not_sorted_strings(tmp_path: Path) -> None:
    classes = (0, 1, 2, 10, 100, 999)
    trees.v2_tree(tmp_path, classes)
    data = open_dataset("imagenet-v2", tmp_path)
    assert data.domains() == ["matched-frequency", "threshold-0.7", "top-images"]
    for domain in data.domains():
        indices = data.indices(domain)
        assert [data.label(int(i)) for i in indices] == list(classes)
        for i in indices:
            assert data.key(int(i)).split("/")[2] == str(data.label(int(i)))


def test_v2_takes_the_variants_that_are_there_and_names_an_unknown_one(tmp_path: Path) -> None:
    trees.picture(tmp_path / "imagenetv2-top-images-format-val" / "3" / "a.png")
    assert open_dataset("imagenet-v2", tmp_path).domains() == ["top-images"]
    with pytest.raises(ConfigError, match="Did you mean 'top-images'"):
        open_dataset("imagenet-v2", tmp_path, variants=("top-image",))
    trees.picture(tmp_path / "imagenetv2-top-images-format-val" / "n01440764" / "a.png")
    with pytest.raises(DataError, match="named 0 to 999"):
        open_dataset("imagenet-v2", tmp_path)


def test_imagenet_c_by_corruption_and_severity(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path)
    data = open_dataset("imagenet-c", tmp_path, subset="full")
    assert data.domains() == list(COMMON)
    assert len(data) == 15 * 5 * 6
    # By file name, not by class folder: classes 400 and 7 alternate.
    fog = data.indices("fog", 1)
    assert [data.label(int(i)) for i in fog] == [400, 7] * 3
    name = f"{wordnet_ids()[7]}/ILSVRC2012_val_00000001.JPEG"
    assert data.key(int(fog[1])) == f"imagenet-c/fog/1/{name}"
    assert data.source_key(int(fog[1])) == data.source_key(int(data.indices("snow", 5)[1]))
    file = tmp_path / "fog" / "1" / name
    expected = np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(data[int(fog[1])].image.numpy(), expected)
    with pytest.raises(DataError, match="fog/3"):
        data.indices("fog", 3)
    with pytest.raises(ConfigError, match="choose from 1, 2, 3, 4, 5"):
        data.indices("fog", 6)


def test_imagenet_c_subset_by_list_and_by_rule(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path, names=("fog",), severities=(5,), each=10)
    by_rule = open_dataset("imagenet-c", tmp_path)
    names = [by_rule.key(int(i)).rsplit("_", 1)[1] for i in by_rule.indices("fog")]
    assert names == ["00000000.JPEG", "00000010.JPEG"]
    assert "every 10th image by file name" in by_rule.notes[0]
    lines = [f"{wordnet_ids()[7]}/ILSVRC2012_val_{n:08d}.JPEG" for n in (9, 3, 5)]
    (tmp_path / "imagenet_test_image_ids.txt").write_text("\n".join(lines) + "\n")
    listed = open_dataset("imagenet-c", tmp_path)
    keys = [listed.key(int(i)) for i in listed.indices("fog")]
    assert keys == [f"imagenet-c/fog/5/{line}" for line in lines]
    assert "imagenet_test_image_ids.txt" in listed.notes[0]
    with pytest.raises(DataError, match=r"mine\.txt cannot be read"):
        open_dataset("imagenet-c", tmp_path, subset=tmp_path / "mine.txt")


def test_imagenet_c_group_folders_of_the_archives_are_found(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path / "weather", names=("fog", "snow"))
    assert open_dataset("imagenet-c", tmp_path).domains() == ["snow", "fog"]


def test_check_counts_and_decodes_imagenet_c(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path)
    report = check("imagenet-c", tmp_path, subset="full")
    assert report.ok, report
    assert report.images == dict.fromkeys(COMMON, 6)
    assert len(report.decoded) == 45
    victim = next((tmp_path / "snow" / "5").glob("*/*.JPEG"))
    victim.unlink()
    report = check("imagenet-c", tmp_path, subset="full")
    assert not report.ok
    assert "1 images are missing" in report.problems[0]
    assert str(victim) in report.problems[0]


def test_check_names_what_is_missing_in_words(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path, names=COMMON[:-1])
    report = check("imagenet-c", tmp_path, subset="full")
    assert any("jpeg_compression is missing" in text for text in report.problems)
    trees.v2_tree(tmp_path / "v2")
    report = check("imagenet-v2", tmp_path / "v2")
    assert any("5 images instead of 10,000" in text for text in report.problems)
    assert report.count == 15
    assert "problem" in str(report)
    shown = io.StringIO()
    Console(file=shown, width=200).print(report)
    assert "matched-frequency: 5 of 10,000" in shown.getvalue()


def test_truncated_image_names_the_file(tmp_path: Path) -> None:
    trees.wordnet_tree(tmp_path, [3], each=2)
    broken = tmp_path / wordnet_ids()[3] / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    data = open_dataset("imagenet-val", tmp_path)
    assert data[0].label == 3
    with pytest.raises(DataError, match=r"1\.jpg cannot be decoded .*truncated.* fetch or unpack"):
        data[1]
    report = check("imagenet-val", tmp_path)
    assert any(str(broken) in text for text in report.problems)


def test_an_empty_file_and_a_vanished_one_name_the_file(tmp_path: Path) -> None:
    trees.wordnet_tree(tmp_path, [3], each=2)
    data = open_dataset("imagenet-val", tmp_path)
    (tmp_path / wordnet_ids()[3] / "0.jpg").write_bytes(b"")
    (tmp_path / wordnet_ids()[3] / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"0\.jpg cannot be decoded"):
        data[0]
    with pytest.raises(DataError, match=r"1\.jpg is missing"):
        data[1]


def test_a_split_takes_the_images_that_a_list_names_in_its_order(tmp_path: Path) -> None:
    trees.wordnet_tree(tmp_path, [0, 5, 999], each=2)
    ids = wordnet_ids()
    (tmp_path / "tune.txt").write_text(f"{ids[999]}/1.jpg\n{ids[0]}/0.jpg\n")
    data = open_dataset("imagenet-val", tmp_path, split="tune")
    assert [data.label(i) for i in range(len(data))] == [999, 0]
    assert data.num_classes == 1000
    with pytest.raises(DataError, match="Did you mean 'tune'"):
        open_dataset("imagenet-val", tmp_path, split="tun")
    (tmp_path / "lost.txt").write_text(f"{ids[0]}/7.jpg\n")
    with pytest.raises(DataError, match=r"1 images that are not there, such as n01440764/7\.jpg"):
        open_dataset("imagenet-val", tmp_path, split="lost")
