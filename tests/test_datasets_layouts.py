"""CIFAR, driving scenes, folders and arrays; wrong roots and half-finished downloads for all."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ostinato.data.check import check
from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import open_dataset
from ostinato.data.datasets.cityscapes import _train_id_table
from ostinato.data.datasets.folder import FolderDataset
from ostinato.errors import ConfigError, DataError, UnknownName
from ostinato.registry import DATASETS

trees = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("_trees.py"))))

ON_DISK = sorted(set(DATASETS.names()) - {"array", "folder"})


@pytest.mark.parametrize("name", ON_DISK)
def test_wrong_root_says_what_is_missing_and_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(DataError, match=f"is not a root of {name}.*missing.*data fetch {name}"):
        open_dataset(name, tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        open_dataset(name, tmp_path / "nowhere")
    report = check(name, tmp_path)
    assert not report.ok
    assert report.count == 0


@pytest.mark.parametrize("name", ON_DISK)
def test_half_finished_download_is_recognised(tmp_path: Path, name: str) -> None:
    (tmp_path / "data.tar.part").write_bytes(b"half")
    with pytest.raises(DataError, match=r"data\.tar\.part.*to go on"):
        open_dataset(name, tmp_path)


def test_unknown_name_and_option_are_answered() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'cifar100'"):
        open_dataset("cifar1000", ".")
    with pytest.raises(ConfigError, match=r"no option 'subzet'\. Did you mean 'subset'"):
        open_dataset("imagenet-c", ".", subzet="full")


def test_cifar_c_severities_in_blocks(tmp_path: Path) -> None:
    trees.cifar_c_tree(tmp_path / "CIFAR-10-C")
    data = open_dataset("cifar10-c", tmp_path)
    raw = np.load(tmp_path / "CIFAR-10-C" / "fog.npy")
    fog = data.indices("fog", 2)
    assert len(fog) == 6
    for n, index in enumerate(fog):
        item = data[int(index)]
        assert np.array_equal(item.image.numpy(), raw[6 + n].transpose(2, 0, 1))
        assert item.label == n
    assert data.key(int(fog[3])) == "cifar10-c/fog/2/00003"
    assert isinstance(data._arrays["fog"], np.memmap)
    assert (data.num_classes, data.constants) == (10, "cifar")
    assert open_dataset("cifar100-c", tmp_path / "CIFAR-10-C").num_classes == 100


def test_cifar_c_truncated_array_names_the_file(tmp_path: Path) -> None:
    trees.cifar_c_tree(tmp_path, names=("fog",))
    whole = (tmp_path / "fog.npy").read_bytes()
    (tmp_path / "fog.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"fog\.npy cannot be read"):
        open_dataset("cifar10-c", tmp_path)
    np.save(tmp_path / "fog.npy", np.zeros((3, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match=r"fog\.npy has shape \(3, 32, 32, 3\)"):
        open_dataset("cifar10-c", tmp_path)


def _records(count: int, label_bytes: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 10, (count, label_bytes + 3072), dtype=np.uint8)


def test_cifar_binary_versions(tmp_path: Path) -> None:
    ten = tmp_path / "cifar-10-batches-bin"
    ten.mkdir()
    batches = [_records(4, 1, n) for n in range(6)]
    for n, batch in enumerate(batches[:5]):
        batch.tofile(ten / f"data_batch_{n + 1}.bin")
    batches[5].tofile(ten / "test_batch.bin")
    (ten / "batches.meta.txt").write_text("airplane\nautomobile\n\n")
    test = open_dataset("cifar10", tmp_path)
    assert len(test) == 4
    assert test.class_names == ("airplane", "automobile")
    train = open_dataset("cifar10", tmp_path, split="train")
    assert len(train) == 20
    item = train[9]
    assert item.label == batches[2][1, 0]
    assert np.array_equal(item.image.numpy(), batches[2][1, 1:].reshape(3, 32, 32))

    hundred = tmp_path / "cifar-100-binary"
    hundred.mkdir()
    records = _records(3, 2, 9)
    records.tofile(hundred / "test.bin")
    data = open_dataset("cifar100", tmp_path)
    assert [data.label(i) for i in range(3)] == records[:, 1].tolist()  # fine, not coarse
    assert np.array_equal(data[2].image.numpy(), records[2, 2:].reshape(3, 32, 32))
    (hundred / "test.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(DataError, match=r"test\.bin has 9221 bytes.*truncated"):
        open_dataset("cifar100", tmp_path)
    with pytest.raises(DataError, match=r"train\.bin is missing"):
        open_dataset("cifar100", tmp_path, split="train")


def test_acdc_conditions_labels_and_the_default_split(tmp_path: Path) -> None:
    trees.acdc_tree(tmp_path)
    data = open_dataset("acdc", tmp_path)
    assert data.domains() == ["fog", "night", "rain", "snow"]
    assert (data.task, data.num_classes) == ("segmentation", 19)
    item = data[int(data.indices("rain")[1])]
    assert item.image.shape == (3, 8, 16)
    assert item.key == "acdc/rain/train/GOPR0002/GOPR0002_frame_000001_rgb_anon.png"
    assert isinstance(item.label, torch.Tensor)
    assert int(item.label[0, 0]) == 255
    assert set(item.label.unique().tolist()) == {1, 255}
    with pytest.raises(DataError, match="rgb_anon/fog/val"):
        open_dataset("acdc", tmp_path, split="val")
    with pytest.raises(ConfigError, match="test has no labels"):
        open_dataset("acdc", tmp_path, split="test")
    report = check("acdc", tmp_path)
    assert any("2 images instead of 400" in text for text in report.problems)


def test_acdc_missing_label_names_the_file(tmp_path: Path) -> None:
    trees.acdc_tree(tmp_path)
    victim = next((tmp_path / "gt" / "snow").rglob("*.png"))
    victim.unlink()
    with pytest.raises(DataError, match=f"{victim.name} is missing"):
        open_dataset("acdc", tmp_path)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    trees.acdc_tree(tmp_path)
    victim = min((tmp_path / "gt" / "fog").rglob("*.png"))
    trees.label_map(victim, np.full((8, 16), 26))
    with pytest.raises(DataError, match="has label 26, but acdc has the classes 0 to 18"):
        open_dataset("acdc", tmp_path)[0]


def test_cityscapes_maps_label_ids_and_prefers_train_ids(tmp_path: Path) -> None:
    stem = "frankfurt_000000_000294"
    trees.picture(tmp_path / "leftImg8bit/val/frankfurt" / f"{stem}_leftImg8bit.png")
    ids = np.array([[0, 7, 8], [11, 33, 26], [34, 1, 19]])
    folder = tmp_path / "gtFine/val/frankfurt"
    trees.label_map(folder / f"{stem}_gtFine_labelIds.png", ids)
    mapped = [[255, 0, 1], [2, 18, 13], [255, 255, 6]]
    data = open_dataset("cityscapes", tmp_path)
    assert data[0].label.tolist() == mapped
    trees.label_map(folder / f"{stem}_gtFine_labelTrainIds.png", np.full((3, 3), 4))
    assert open_dataset("cityscapes", tmp_path)[0].label.unique().tolist() == [4]
    assert int((_train_id_table() != 255).sum()) == 19


@pytest.mark.parametrize("nested", [True, False])
def test_camvid_void_becomes_the_ignore_index(tmp_path: Path, nested: bool) -> None:
    pictures = tmp_path / ("test/images" if nested else "test")
    labels = tmp_path / ("test/labels" if nested else "testannot")
    trees.picture(pictures / "a.png")
    trees.label_map(labels / "a.png", np.array([[0, 10], [11, 11]]))
    data = open_dataset("camvid", tmp_path)
    assert data[0].label.tolist() == [[0, 10], [255, 255]]
    assert (data.num_classes, len(data.class_names)) == (11, 11)


def test_folder_domains_share_one_label_space(tmp_path: Path) -> None:
    for place in ("day/cat", "day/dog", "night/dog", "night/eel"):
        trees.picture(tmp_path / place / "1.png")
    data = FolderDataset([tmp_path / "day", tmp_path / "night"])
    assert data.class_names == ("cat", "dog", "eel")
    assert [data.label(int(i)) for i in data.indices("night")] == [1, 2]
    fixed = FolderDataset(tmp_path / "day", class_names=("dog", "cat"))
    assert [fixed.label(i) for i in range(2)] == [1, 0]
    with pytest.raises(DataError, match="'eel' is not in class_names"):
        FolderDataset(tmp_path / "night", class_names=("dog", "cat"))
    opened = open_dataset("folder", tmp_path, domains=["night", "day"])
    assert opened.domains() == ["night", "day"]


def test_folder_numbers_sort_as_numbers_and_wordnet_ids_can_be_columns(tmp_path: Path) -> None:
    for label in (0, 2, 10):
        trees.picture(tmp_path / "numbered" / str(label) / "1.png")
    data = FolderDataset(tmp_path / "numbered")
    assert data.class_names == ("0", "2", "10")
    trees.wordnet_tree(tmp_path / "own", [900, 4])
    own = FolderDataset(tmp_path / "own", labels="imagenet")
    assert own.classes is not None
    assert (own.classes.tolist(), own.outputs, own.num_classes) == ([4, 900], 1000, 2)
    with pytest.raises(DataError, match="no WordNet id"):
        FolderDataset(tmp_path / "numbered", labels="imagenet")


def test_array_accepts_both_channel_orders_and_npz(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
    last = ArrayDataset(images, [0, 1, 2, 0], list("abab"))
    first = ArrayDataset(torch.from_numpy(images).permute(0, 3, 1, 2), [0, 1, 2, 0])
    assert torch.equal(last[2].image, first[2].image)
    assert last.indices("b").tolist() == [1, 3]
    assert last.num_classes == 3
    np.savez(tmp_path / "set.npz", images=images, labels=[0, 1, 2, 0], domains=list("abab"))
    stored = open_dataset("array", tmp_path / "set.npz", name="mine")
    assert (stored.domains(), stored[3].key) == (["a", "b"], "mine/00003")
    np.savez(tmp_path / "bad.npz", images=images)
    with pytest.raises(DataError, match="has no array 'labels'"):
        open_dataset("array", tmp_path / "bad.npz")
    with pytest.raises(DataError, match="uint8"):
        ArrayDataset(images.astype(np.float32), [0, 1, 2, 0])
    with pytest.raises(DataError, match="4 images but 3 labels"):
        ArrayDataset(images, [0, 1, 2])
