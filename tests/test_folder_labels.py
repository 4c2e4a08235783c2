"""A user's class folders meet a model's outputs by name, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from ostinato.data.datasets.folder import FolderDataset
from ostinato.data.embedded import CLASSES, embedded_images, embedded_model
from ostinato.errors import ConfigError
from ostinato.models import output_names
from ostinato.running._fit import match_folders
from ostinato.running.runner import run
from ostinato.running.source_images import load_source, open_source
from ostinato.running.spec import Spec

PICTURES = 6


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real dogs, cats and ships, in folders of their own."""
    root = tmp_path_factory.mktemp("own")
    images, labels, *_ = embedded_images("test")
    for name in ("cat", "dog", "Ship"):
        (root / name).mkdir()
        mine = (labels == CLASSES.index(name.lower())).nonzero().flatten()[:PICTURES]
        for number in mine.tolist():
            picture = images[number].permute(1, 2, 0).numpy()
            Image.fromarray(picture).save(root / name / f"{number}.png")
    return root


def renamed(source: Path, target: Path, names: dict[str, str]) -> Path:
    for old, new in names.items():
        (target / new).parent.mkdir(parents=True, exist_ok=True)
        (target / new).symlink_to(source / old)
    return target


def spec(root: Path, **options: object) -> Spec:
    data = {"dataset": "folder", "domains": [str(root)], "options": options}
    return Spec.parse({"method": "source", "data": data, "batch_size": 6, "device": "cpu"})


def test_folders_of_some_classes_are_scored_by_name(pictures: Path, tmp_path: Path) -> None:
    (folder,) = run(spec(pictures), out=tmp_path, quiet=True)
    assert folder.summary().mean < 50  # 100 % where labels follow the order of the folders


def test_names_decide_the_labels_and_the_columns(pictures: Path) -> None:
    dataset = FolderDataset(pictures)
    before = {dataset.key(i): dataset.class_names[dataset.label(i)] for i in range(len(dataset))}
    for _ in range(2):  # matching again changes nothing
        assert dataset.match(CLASSES) == []
        assert dataset.classes is not None
        columns = [CLASSES[c] for c in dataset.classes.tolist()]
        assert columns == ["cat", "dog", "ship"]
        after = {dataset.key(i): dataset.class_names[dataset.label(i)] for i in range(len(dataset))}
        assert after == before
        assert [n.lower() for n in dataset.class_names] == columns
    assert dataset.outputs == 10


def test_names_that_no_output_has_are_refused_with_the_ways_out(
    pictures: Path, tmp_path: Path
) -> None:
    root = renamed(pictures, tmp_path / "odd", {"cat": "cat", "dog": "wolf"})
    with pytest.raises(ConfigError, match=r"'wolf'.*airplane.*class_names.*imagenet"):
        run(spec(root), out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_class_names_of_the_user_s_own_are_taken_as_they_are(
    pictures: Path, tmp_path: Path
) -> None:
    root = renamed(pictures, tmp_path / "odd", {"cat": "cat", "dog": "wolf"})
    names = ["wolf" if name == "dog" else name for name in CLASSES]
    (folder,) = run(spec(root, class_names=names), out=tmp_path / "runs", quiet=True)
    assert folder.summary().mean < 60


class Nameless(nn.Module):
    """Ten outputs that nobody has named."""


def test_without_names_numbers_count_and_anything_else_is_refused(
    pictures: Path, tmp_path: Path
) -> None:
    numbers = renamed(pictures, tmp_path / "numbers", {"cat": "3", "dog": "5"})
    dataset = FolderDataset(numbers)
    match_folders(dataset, Nameless(), 10)
    assert dataset.classes is not None
    assert dataset.classes.tolist() == [3, 5]
    named = FolderDataset(pictures)
    with pytest.raises(ConfigError, match="does not name them"):
        match_folders(named, Nameless(), 10)
    match_folders(named, Nameless(), 3)  # as many folders as outputs: their order counts
    assert named.classes is None


def test_models_tell_their_names() -> None:
    assert output_names(embedded_model()) == CLASSES
    assert output_names(Nameless()) == ()
    hub = Nameless()
    hub.config = type("Config", (), {"id2label": {1: "b", 0: "a"}})()
    assert output_names(hub) == ("a", "b")
    hub.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    assert output_names(hub) == ()


def test_a_preparation_takes_labels_by_name(pictures: Path, tmp_path: Path) -> None:
    model = embedded_model()
    taken = load_source(open_source(str(pictures)), model)
    assert taken.labels is not None
    assert set(taken.labels.tolist()) == {3, 5, 8}
    with torch.no_grad():
        mean, std = (
            torch.tensor(v).view(1, 3, 1, 1)
            for v in (model.pretrained_cfg["mean"], model.pretrained_cfg["std"])
        )
        right = model((taken.images / 255 - mean) / std).argmax(1) == taken.labels
    assert float(right.float().mean()) > 0.5
    odd = renamed(pictures, tmp_path / "odd", {"cat": "cat", "dog": "wolf"})
    refused = load_source(open_source(str(odd)), model)
    assert refused.labels is None
    assert "wolf" in refused.note
