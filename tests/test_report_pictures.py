"""Samples of segmentation runs, and the figures that show them."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.data.mosaic import mosaic_model
from ostinato.errors import DataError
from ostinato.report._per_class import iou_per_class, mean_classes
from ostinato.report._pictures import UNLABELED, colours_of, painted, predictions_in_pictures
from ostinato.report._runs import read_variants
from ostinato.report.figure import Figure, Missing
from ostinato.report.page import render
from ostinato.running import runner
from ostinato.running.runner import Interrupted, resume, run
from ostinato.running.samples import IGNORE, _judge, _middles, _shrink, read_samples
from ostinato.running.spec import Spec
from ostinato.types import Batch

make_run = runpy.run_path(str(Path(__file__).with_name("_report_runs.py")))["make_run"]
SPEC = {
    "model": "embedded-mosaic",
    "roots": "embedded",
    "method": "tent",
    "settings": {"lr": 0.01},
    "stream": "recurring",
    "batch_size": 1,
    "device": "cpu",
    "data": {
        "dataset": "camvid",
        "rounds": 2,
        "limit": 2,
        "domains": ["driving_fog", "driving_snow"],
    },
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of TENT over two rounds of two weathers."""
    out = tmp_path_factory.mktemp("runs")
    (folder,) = run(Spec.parse(SPEC), out=out, quiet=True)
    return folder.path


def test_samples_are_the_middle_images_seen_by_source_and_method(finished):
    from ostinato.running.job import open_stream

    samples = read_samples(finished)
    assert [s.index for s in samples] == [1, 3, 5, 7]
    stream = open_stream(Spec.parse(SPEC))
    assert _middles(stream) == [1, 3, 5, 7]
    source = mosaic_model()
    config = source.pretrained_cfg
    mean, std = (torch.tensor(config[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    for sample in samples:
        batch = stream[sample.index]
        assert (sample.domain, sample.round, sample.key) == (
            batch.domain, batch.round, batch.keys[0]
        )  # fmt: skip
        pixels = batch.images.float() / 255
        with torch.no_grad():
            expected = source((pixels - mean) / std).argmax(1)[0]
        assert (sample.before == expected.numpy()).all()
        assert (sample.image == batch.images[0].permute(1, 2, 0).numpy()).all()
        assert (sample.label == batch.labels[0].numpy()).all()
    assert samples[0].key == samples[2].key
    assert (samples[0].image == samples[2].image).all()
    # TENT at such a rate ends elsewhere than the source model, whose part does not move.
    assert (samples[0].before == samples[2].before).all()
    assert any((s.after != s.before).any() for s in samples)


def test_the_iou_of_a_sample_is_what_the_records_say(finished):
    from ostinato.running.results import RunFolder
    from ostinato.scoring.metrics import mean_iou

    records = RunFolder.open(finished).records()
    for sample in read_samples(finished):
        counts = np.array(records[sample.index].confusion[0]).reshape(10, 10)
        assert sample.after_iou == pytest.approx(100 * float(mean_iou(counts)))


def test_a_run_that_goes_on_keeps_the_same_samples(finished, tmp_path, monkeypatch):
    class Stopping(runner.RunProgress):
        def show(self, record):
            super().show(record)
            if record.index == 4:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "RunProgress", Stopping)
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            run(Spec.parse(SPEC), out=tmp_path, every=3, quiet=True)
    (place,) = [p.parent for p in tmp_path.glob("*/spec.json")]
    assert [s.index for s in read_samples(place)] == [1, 3]
    resume(place, quiet=True)
    again, first = read_samples(place), read_samples(finished)
    assert [s.index for s in again] == [1, 3, 5, 7]
    for one, other in zip(again, first, strict=True):
        assert (one.after == other.after).all()
        assert (one.before == other.before).all()
    assert not list((place / "samples").glob(".*"))


def test_runs_on_whole_images_keep_no_samples(tmp_path):
    spec = Spec.parse({"method": "source", "batch_size": 8, "device": "cpu",
                       "data": {"limit": 8, "domains": ["fog"]}})  # fmt: skip
    (folder,) = run(spec, out=tmp_path, quiet=True)
    assert not (folder.path / "samples").exists()
    assert not (folder.path / "data").exists()
    assert predictions_in_pictures(read_variants([folder.path])) == []
    assert iou_per_class(read_variants([folder.path])) == []


def test_judging_scales_logits_and_leaves_unlabelled_pixels_out():
    labels = torch.tensor([[[0, 0, 1, 1], [0, 0, 255, 255]]])
    logits = torch.tensor([[[[5.0, 0.0]], [[0.0, 5.0]], [[0.0, 0.0]]]])
    batch = Batch(images=torch.zeros(1, 3, 2, 4, dtype=torch.uint8), labels=labels, domain="fog",
                  index=0)  # fmt: skip
    answer, iou = _judge(batch, logits)
    assert answer.tolist() == [[0, 0, 1, 1]] * 2
    assert iou == pytest.approx(100.0)
    empty = Batch(images=batch.images, labels=torch.full_like(labels, IGNORE), domain="fog",
                  index=0)  # fmt: skip
    assert np.isnan(_judge(empty, logits)[1])


@pytest.mark.parametrize(
    ("shape", "kept"), [((64, 96), (64, 96)), ((360, 480), (180, 240)), ((1080, 1920), (180, 320))]
)
def test_what_is_kept_is_small(shape, kept):
    assert _shrink(np.zeros(shape, np.uint8)).shape == kept


def test_the_figure_shows_every_picture_and_its_numbers(finished):
    (figure,) = predictions_in_pictures(read_variants([finished]))
    assert isinstance(figure, Figure)
    samples = read_samples(finished)
    assert [row[1:4] for row in figure.data.rows] == [
        (s.domain, s.round + 1, s.key) for s in samples
    ]
    # Two domains, each with an image, a label, one prediction before and two after.
    assert len(re.findall(r"<image", figure.svg)) == 10
    for sample in samples:
        assert f">{sample.after_iou:.1f}<" in figure.svg
    for word in ("image", "label", "before", "round 1", "round 2", "no label", "driving"):
        assert f">{word}<" in figure.svg
    assert UNLABELED in figure.svg


def test_the_page_holds_both_figures(finished, tmp_path):
    page = render(read_variants([finished]))
    assert 'id="pictures-1"' in page
    assert 'id="iou-per-class"' in page
    assert "airplane" in page
    shutil.copytree(finished, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "samples")
    (missing,) = predictions_in_pictures(read_variants([tmp_path / "bare"]))
    assert isinstance(missing, Missing)


def test_a_damaged_sample_is_an_error_that_names_it(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "samples" / "000001.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"000001\.npz cannot be read"):
        read_samples(tmp_path / "run")


def test_per_class_iou_is_summed_over_a_round_and_averaged_over_seeds(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path, "source", seed=seed, pixels=True)
    (variant,) = read_variants([tmp_path])
    found = mean_classes(variant)
    for number in range(3):
        values = []
        for one in variant.runs:
            counts = sum(
                np.array(c).reshape(2, 2)
                for r in one.records
                if r.round == number
                for c in r.confusion
            )
            values.append(100 * counts[0, 0] / (counts[0].sum() + counts[1, 0]))
        assert found[number, "class 0"] == pytest.approx(np.mean(values))
    (figure,) = iou_per_class([variant])
    assert len(figure.data.rows) == 6


def test_colours_are_one_per_class_and_grey_is_for_none():
    from ostinato.data.datasets._scenes import CITYSCAPES_CLASSES
    from ostinato.data.datasets.camvid import CamVid
    from ostinato.data.embedded import CLASSES

    for names in (CamVid.class_names, CITYSCAPES_CLASSES, CLASSES):
        colours = colours_of(names)
        assert len(set(colours)) == len(names)
        assert UNLABELED not in colours
    assert colours_of(["tree"]) == colours_of(["vegetation"])
    pixels = painted(np.array([[1, 255, 7]], np.uint8), ["#000000", "#102030"])
    assert pixels.tolist() == [[[16, 32, 48], [154] * 3, [154] * 3]]
