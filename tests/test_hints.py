"""Hints at what to do: they name what helps, and nothing that does not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from PIL import Image

from ostinato.data.check import check
from ostinato.data.datasets.base import open_dataset
from ostinato.errors import ConfigError, DataError
from ostinato.models.loading import check_model, load_model
from ostinato.running._fit import check_roots
from ostinato.running.job import open_stream
from ostinato.running.spec import Spec, parse_data


def test_a_missing_root_offers_folders_of_nearly_that_name_alone(tmp_path: Path) -> None:
    for name in ("imagenet", ".dockerenv", "opt"):
        (tmp_path / name).mkdir()
    (tmp_path / "imagenett").touch()
    with pytest.raises(DataError) as found:
        check_roots(Spec(roots=str(tmp_path / "imagnet")))
    assert f"Did you mean {tmp_path / 'imagenet'}?" in str(found.value)
    with pytest.raises(DataError) as found:
        check_roots(Spec(roots=str(tmp_path / "data")))
    for name in ("Did you mean", "opt", "dockerenv", "imagenett"):
        assert name not in str(found.value).replace(str(tmp_path), "")
    assert "folder:DIR" in str(found.value)


def test_nobody_is_sent_to_fetch_their_own_images(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError) as found:
            open_dataset("folder", root)
        assert "data fetch" not in str(found.value)
        assert "one folder per class" in str(found.value)
    assert "data fetch" not in str(check("folder", tmp_path))
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "1.png")
    assert check("folder", tmp_path).ok


def test_a_misspelt_folder_is_named_with_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match=r"no folder photo\. Did you mean photos\?"):
        open_stream(Spec(method="tent", data=parse_data(["folder:photo"])))


def test_images_of_a_folder_are_shown_under_corruptions(tmp_path: Path) -> None:
    (tmp_path / "day" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "day" / "cat" / "1.png")
    data = parse_data([f"folder:{tmp_path}/day", "domains=[fog,snow@3]"])
    stream = open_stream(Spec(method="tent", stream="continual", data=data))
    assert [(s.parts[0].corruption, s.parts[0].severity) for s in stream.segments] == [
        ("fog", 5),
        ("snow", 3),
    ]


def test_a_model_that_a_script_trains_names_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"examples/train_camvid\.py"):
        check_model(Spec(model="weights/segformer-b0-camvid"))
    (tmp_path / "weights" / "segformer-b0-camvid").mkdir(parents=True)
    check_model(Spec(model="weights/segformer-b0-camvid"))


def test_random_weights_of_a_hugging_face_name_need_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    name = "nvidia/segformer-b0-finetuned-cityscapes-1024-1024"
    model = load_model(Spec(model=name, weights="random", device="cpu"))
    assert model.config.num_labels == 19
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(3.7e6, rel=0.02)


def test_data_is_named_in_one_word() -> None:
    assert parse_data(["cifar10", "limit=3"]) == {"dataset": "cifar10", "limit": 3}
    assert parse_data(["folder:a=b"]) == {"dataset": "folder", "domains": ["a=b"]}
    assert parse_data(["domains=[fog]"]) == {"domains": ["fog"]}
    shown = {"dataset": "folder", "options": {"roots": ["a"]}, "domains": ["fog"]}
    assert parse_data(["folder:a", "domains=[fog]"]) == shown
    with pytest.raises(ConfigError, match="several data sets"):
        parse_data(["folder:a", "cifar10"])
