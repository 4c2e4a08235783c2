"""The training script for CamVid, on a few made-up frames."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "train_camvid.py"
SMALL = ["--height=32", "--width=32", "--batch=2", "--device=cpu", "--every=1"]


@pytest.fixture(scope="module")
def camvid(tmp_path_factory) -> Path:
    """Frames of 48 × 64 whose colour tells their classes, with a corner of void."""
    root = tmp_path_factory.mktemp("camvid")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        for kind in ("images", "labels"):
            (root / split / kind).mkdir(parents=True)
        for number in range(count):
            labels = np.kron(rng.integers(0, 11, (3, 4)), np.ones((16, 16))).astype(np.uint8)
            image = np.stack([labels * 20, 255 - labels * 20, labels * 7], 2).astype(np.uint8)
            labels[:4, :4] = 11
            Image.fromarray(labels).save(root / split / "labels" / f"{number}.png")
            Image.fromarray(image).save(root / split / "images" / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def trained(script, camvid, tmp_path_factory) -> Path:
    """What two steps leave behind."""
    out = tmp_path_factory.mktemp("out") / "segformer"
    script.main([f"--root={camvid}", f"--out={out}", "--epochs=1", *SMALL])
    return out


def test_two_steps_leave_a_model_that_runs_load(trained, camvid, script):
    from ostinato.data.datasets.camvid import CamVid
    from ostinato.models import IMAGENET, input_convention
    from ostinato.models.loading import load_model
    from ostinato.running.spec import Spec

    log = json.loads((trained / "train_log.json").read_text())
    assert [entry["steps"] for entry in log["checks"]] == [2]
    assert sorted(path.name for path in trained.iterdir()) == [
        "config.json",
        "model.safetensors",
        "train_log.json",
    ]
    model = load_model(Spec(model=str(trained), device="cpu"))
    assert tuple(model.config.id2label.values()) == CamVid.class_names
    assert input_convention(model) == IMAGENET
    score = script.check(model, *script.read_split(camvid, "val", "cpu"))
    assert score == pytest.approx(log["val_miou"], abs=0.01)


def test_training_starts_from_whole_models_and_from_encoders(trained, script, tmp_path):
    from transformers import SegformerModel

    whole = script.build_model("b0", str(trained), 0.1)
    encoder = SegformerModel.from_pretrained(trained)
    encoder.save_pretrained(tmp_path / "encoder")
    part = script.build_model("b0", str(tmp_path / "encoder"), 0.1)
    name = next(n for n, _ in whole.named_parameters() if n.startswith("segformer."))
    first, second = (dict(m.named_parameters()) for m in (whole, part))
    assert torch.equal(first[name], second[name])
    head = "decode_head.classifier.weight"
    assert first[head].shape == second[head].shape == (11, 256, 1, 1)
    assert not torch.equal(first[head], second[head])


def test_the_loss_falls(script, camvid, tmp_path):
    torch.manual_seed(0)
    recipe = script.Recipe(height=48, width=64, batch=4, lr=2e-3, warmup=0.0)
    images, labels = script.read_split(camvid, "train", "cpu")
    model = script.build_model("b0", None, 0.0)
    trainer = script.Trainer(model, recipe, torch.ones(11), tmp_path)
    model.train()
    losses = [float(trainer.step(script.normalized(images), labels.long(), 0.0)) for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]


def test_interrupted_training_keeps_the_best(script, camvid, tmp_path, monkeypatch):
    step = script.Trainer.step

    def interrupted(self, *arguments):
        if self.steps == 1:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(script.Trainer, "step", interrupted)
    script.main([f"--root={camvid}", f"--out={tmp_path}", "--epochs=9", *SMALL])
    assert (tmp_path / "model.safetensors").is_file()


def test_moving_without_change_gives_the_frame_back(script):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 3, 24, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 11, (6, 24, 32), dtype=torch.uint8, generator=generator)
    recipe = script.Recipe(height=24, width=32, smallest=1.0, largest=1.0, turn=0.0)
    still = replace(recipe, stretch=0.0)
    moved, truth = script.move(images, labels, still, generator)
    mirrored = [bool((truth[n] == labels[n].flip(-1)).all()) for n in range(6)]
    plain = [bool((truth[n] == labels[n]).all()) for n in range(6)]
    assert all(a or b for a, b in zip(mirrored, plain, strict=True))
    assert any(mirrored)
    assert any(plain)
    for n in range(6):
        frame = images[n].flip(-1) if mirrored[n] else images[n]
        assert torch.allclose(moved[n], frame.float() / 255, atol=1e-4)


def test_what_lies_outside_has_no_label(script):
    images = torch.full((2, 3, 24, 32), 200, dtype=torch.uint8)
    labels = torch.full((2, 24, 32), 3, dtype=torch.uint8)
    recipe = script.Recipe(height=24, width=32, smallest=0.5, largest=0.5, turn=0.0, stretch=0.0)
    moved, truth = script.move(images, labels, recipe, torch.Generator().manual_seed(1))
    assert set(truth.unique().tolist()) == {3, 255}
    assert ((truth == 3).float().mean((1, 2)) - 0.25).abs().max() < 0.08
    assert (moved.amax(1)[truth == 255] < 0.5).all()


def test_class_weights_are_median_over_frequency(script):
    labels = torch.tensor([[[0, 0, 0, 1]], [[0, 0, 255, 255]]], dtype=torch.uint8)
    # Class 0: 5 of 6 labelled pixels; class 1: 1 of the 4 in the frame that shows it.
    weights = script.class_weights(labels, 2, 1.0, 100.0)
    median = 1 / 4  # of two, torch takes the lower
    assert weights.tolist() == pytest.approx([median / (5 / 6), 1.0])
    assert script.class_weights(labels, 2, 1.0, 2.0).tolist() == pytest.approx([0.5, 1.0])


def test_the_clock_ends_training_with_a_decayed_rate(script, monkeypatch):
    recipe = script.Recipe(epochs=100, seconds=10.0)
    model = torch.nn.Linear(2, 2)
    trainer = script.Trainer(model, recipe, torch.ones(2), Path())
    monkeypatch.setattr(script.time, "monotonic", lambda: trainer.started + 9.0)
    assert trainer.progress(0) == pytest.approx(0.9)
    assert trainer.progress(95) == pytest.approx(0.95)
    assert script.rate(1.0, recipe) == pytest.approx(0.0)
    assert script.rate(recipe.warmup, recipe) == pytest.approx(recipe.lr)
