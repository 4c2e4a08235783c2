"""Bad input from the command line ends with one line that says what to do, and status 2."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from ostinato.cli import main
from ostinato.data.datasets._files import MOST_PIXELS, decode_rgb
from ostinato.errors import ConfigError, DataError
from ostinato.models.loading import load_model
from ostinato.running.spec import Spec, parse_pairs

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def inputs():
    spec = importlib.util.spec_from_file_location("attack_inputs", BENCHMARKS / "attack_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOSTILE = inputs()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", HOSTILE.SPECS)
def test_specs_that_are_none(name, tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_bytes(HOSTILE.SPECS[name])
    refused(capsys, "run", str(path), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [*HOSTILE.WEIGHTS, "folder.pth", "list.pth", "words.pth"])
def test_checkpoints_that_are_none(name, tmp_path):
    HOSTILE.write_weights(tmp_path)
    spec = Spec(model="vit_tiny_patch16_224", weights=str(tmp_path / name), device="cpu")
    with pytest.raises(DataError, match=name) as error:
        load_model(spec)
    assert "\n" not in str(error.value)


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.place),)


def test_a_checkpoint_runs_nothing(tmp_path):
    marker = tmp_path / "marker"
    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(DataError, match="safely"):
        load_model(Spec(model="vit_tiny_patch16_224", weights=str(path), device="cpu"))
    torch.save({"head.weight": Evil(marker)}, path)
    with pytest.raises(DataError, match="safely"):
        load_model(Spec(model="vit_tiny_patch16_224", weights=str(path), device="cpu"))
    assert not marker.exists()


def test_an_image_is_measured_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(HOSTILE.png_bomb(50_000))
    with pytest.raises(DataError, match=r"a\.png"):
        decode_rgb(path)
    Image.new("RGB", (100, 100)).save(path)
    monkeypatch.setattr("ostinato.data.datasets._files.MOST_PIXELS", 9_999)
    with pytest.raises(DataError, match=r"100×100 pixels, more than 9,999: resize"):
        decode_rgb(path)
    assert MOST_PIXELS > 50_000_000


@pytest.mark.parametrize("kind", ["file", "below", "proc", "device"])
def test_an_out_that_no_folder_can_be(kind, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    proc = "/proc/ostinato" if sys.platform == "linux" else str(file)
    place = {"file": str(file), "below": str(file / "x"), "proc": proc, "device": os.devnull}[kind]
    refused(
        capsys, "run", "--method", "source", "--data", "limit=4", "domains=[fog]", "--out", place
    )
    assert file.read_text() == "mine"


def test_settings_have_limits():
    with pytest.raises(ConfigError, match="deep"):
        parse_pairs([".".join("a" * 100) + "=1"])
    with pytest.raises(ConfigError, match="deep"):
        parse_pairs(["a=" + "[" * 100])
    with pytest.raises(ConfigError, match="aliases"):
        parse_pairs(["a=[&x 1, *x]"])
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_pairs(["a=2024-99-99"])
