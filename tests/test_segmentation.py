"""Labels of segmentation, from the file to the figure; windows and views in a spec."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, jaccard_score
from torch import Tensor, nn

import ostinato
from ostinato.data.datasets._files import decode_map
from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import open_dataset
from ostinato.data.streams import Stream, build_stream
from ostinato.errors import ConfigError, DataError, OstinatoError
from ostinato.methods._warmup import warm_up
from ostinato.methods.contract import resolve_config
from ostinato.models.dense import MultiView, SlidingWindow
from ostinato.registry import METHODS
from ostinato.running.job import open_job
from ostinato.running.provenance import spec_hash
from ostinato.running.results import RunFolder
from ostinato.running.runner import resume, run
from ostinato.running.spec import _VIEWS, Spec
from ostinato.scoring.forgetting import cells
from ostinato.scoring.metrics import mean_iou, record_step, score_pixels
from ostinato.scoring.summary import summarise
from ostinato.tables._cells import views_name
from ostinato.types import Batch, StepOutput

trees = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("_trees.py"))))


def by_hand(predicted: np.ndarray, truth: np.ndarray, classes: int) -> float:
    """mIoU from the definition: sets of pixels, one class after the other."""
    counted = truth != 255
    shares = []
    for c in range(classes):
        mine, right = (predicted == c) & counted, (truth == c) & counted
        union = np.logical_or(mine, right).sum()
        if union:
            shares.append(np.logical_and(mine, right).sum() / union)
    return float(np.mean(shares)) if shares else float("nan")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_miou_over_batches_domains_and_rounds(data: st.DataObject) -> None:
    """Counts add up over a domain's batches; void and absent classes are left out."""
    classes, seed = data.draw(st.integers(2, 7)), data.draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    used = data.draw(st.integers(1, classes))  # classes above are absent everywhere
    void = data.draw(st.sampled_from([0.0, 0.3, 0.95, 1.0]))
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    truths: dict[tuple[int, str], list[np.ndarray]] = {}
    answers: dict[tuple[int, str], list[np.ndarray]] = {}
    records = []
    for index, size in enumerate(sizes):
        key = (index // 2, "fog" if index % 2 else "night")
        truth = rng.integers(0, used, (size, 5, 6))
        truth[rng.random(truth.shape) < void] = 255
        logits = torch.from_numpy(rng.normal(size=(size, classes, 5, 6))).float()
        logits[:, used:] -= 20.0 * data.draw(st.booleans())
        batch = Batch(
            torch.zeros(size, 3, 5, 6), torch.from_numpy(truth), key[1], index, round=key[0]
        )
        records.append(record_step("r", batch, StepOutput(logits)))
        truths.setdefault(key, []).append(truth)
        answers.setdefault(key, []).append(logits.argmax(1).numpy())
    table = cells(records, "miou")
    for key, maps in truths.items():
        truth, answer = np.concatenate(maps), np.concatenate(answers[key])
        expected = by_hand(answer, truth, classes)
        if np.isnan(expected):
            assert key not in table
            continue
        assert table[key].value == pytest.approx(100 * expected, abs=1e-9)
        flat, said = truth[truth != 255], answer[truth != 255]
        present = np.union1d(flat, said)
        score = jaccard_score(flat, said, labels=present, average="macro")
        assert table[key].value == pytest.approx(100 * score, abs=1e-9)
    if table:
        found = summarise(records)
        assert {(c.round, c.domain): c.value for c in found.cells} == {
            key: score.value for key, score in table.items()
        }
        images = [sum(len(m) for m in truths[key]) for key in table]
        mean = np.average([s.value for s in table.values()], weights=images)
        assert found.mean == pytest.approx(mean)
    else:
        with pytest.raises(DataError, match="no labelled pixel"):
            summarise(records)


def test_confusion_counts_are_those_of_a_second_oracle() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 19, (2, 8, 8))
    truth[:, :3] = 255
    logits = torch.from_numpy(rng.normal(size=(2, 19, 8, 8)))
    found, bins = score_pixels(logits, torch.from_numpy(truth))
    for one, counts, label in zip(logits.argmax(1).numpy(), found, truth, strict=True):
        counted = label != 255
        expected = confusion_matrix(label[counted], one[counted], labels=range(19))
        assert counts == tuple(expected.ravel())
    assert sum(b.answers for b in bins) == 2 * 5 * 8


def test_logits_are_brought_to_the_labels_resolution() -> None:
    truth = torch.tensor([[[0, 0, 1, 1]] * 2])
    coarse = torch.tensor([[[[5.0, -5.0]], [[-5.0, 5.0]]]])  # (1, 2, 1, 2)
    counts, _ = score_pixels(coarse, truth)
    assert counts == ((4, 0, 0, 4),)
    counts, _ = score_pixels(torch.nn.functional.interpolate(coarse, (8, 16)), truth)
    assert counts == ((4, 0, 0, 4),)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(1, 3), torch.zeros(1, 4, 4).long(), "predicts per pixel"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(1, 4, 4).long(), "do not fit"),
        (torch.zeros(1, 3, 4, 4), torch.full((1, 4, 4), 3), r"outside the model's 3 .* 3 to 3"),
        (torch.zeros(1, 3, 4, 4), torch.full((1, 4, 4), -1), "outside the model's 3"),
    ],
)
def test_labels_that_do_not_fit_are_refused(logits: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        score_pixels(logits, labels)


def scene(
    root: Path, label: tuple[int, int], image: tuple[int, int] = (18, 32), value: int = 0
) -> Path:
    """One CamVid frame with a label map of the given height and width."""
    trees.picture(root / "test/images/a.png", size=(image[1], image[0]))
    trees.label_map(root / "test/labels/a.png", np.full(label, value))
    return root


def camvid(root: Path, **more: Any) -> Stream:
    plain = {"dataset": "camvid", "domains": ["camvid"], "batch_size": 1, **more}
    return build_stream("continual", plain, roots={"camvid": root})


@pytest.mark.parametrize("label", [(18, 32), (36, 64), (9, 16), (37, 65)])
def test_a_label_map_may_have_another_resolution(label: tuple[int, int], tmp_path: Path) -> None:
    stream = camvid(scene(tmp_path, label), transform="half")
    assert stream[0].images.shape == (1, 3, 9, 16)
    assert stream[0].labels is not None
    assert stream[0].labels.shape == (1, *label)


@pytest.mark.parametrize("label", [(32, 18), (36, 32), (24, 32), (18, 40)])
def test_a_label_map_of_another_frame_is_an_error(label: tuple[int, int], tmp_path: Path) -> None:
    stream = camvid(scene(tmp_path, label))
    with pytest.raises(DataError, match=rf"{label[0]}×{label[1]}, its image 18×32.*same part"):
        stream[0]


def test_a_crop_needs_its_labels_cropped(tmp_path: Path) -> None:
    root = scene(tmp_path, (300, 400), image=(300, 400))
    with pytest.raises(ConfigError, match=r"cuts the image.*resize_labels"):
        camvid(root, transform="resize256-crop224")[0]
    both = camvid(root, transform="resize256-crop224", resize_labels=True)[0]
    assert both.labels is not None
    assert both.labels.shape[-2:] == both.images.shape[-2:] == (224, 224)


def test_class_numbers_out_of_range_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.png has label 12, .* 0 to 10 and 255"):
        camvid(scene(tmp_path, (18, 32), value=12))[0]
    from PIL import Image

    deep = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 256, np.uint16)).save(deep)  # 0 if cut to eight bits
    with pytest.raises(DataError, match="256 to 256; class numbers lie in 0 to 254"):
        decode_map(deep)
    pictures = np.zeros((2, 3, 4, 4), np.uint8)
    with pytest.raises(DataError, match="classes from 0 to 5; there are the classes 0 to 2"):
        ArrayDataset(pictures, np.array([[[0] * 4] * 4, [[5] * 4] * 4]), num_classes=3)
    with pytest.raises(DataError, match="from -1"):
        ArrayDataset(pictures, np.full((2, 4, 4), -1), num_classes=3)
    with pytest.raises(DataError, match=r"\(N,\) or \(N, H, W\)"):
        ArrayDataset(pictures, np.zeros((2, 4)), num_classes=3)


def test_more_classes_than_outputs_is_refused_before_a_run(tmp_path: Path) -> None:
    trees.acdc_tree(tmp_path / "acdc")
    with pytest.raises(ConfigError, match="has 10 outputs, recurring needs 19"):
        open_job(Spec.parse({**MOSAIC, "roots": {"acdc": str(tmp_path / "acdc")}}))


MOSAIC: dict[str, Any] = {
    "model": "embedded-mosaic",
    "method": "source",
    "stream": "recurring",
    "roots": "embedded",
    "batch_size": 1,
    "device": "cpu",
    "data": {"dataset": "acdc", "rounds": 2, "limit": 2},
}


def mosaic_spec(**changes: Any) -> Spec:
    return Spec.parse({**MOSAIC, **changes})


def with_void(job_stream: Stream, void: set[str], patch: pytest.MonkeyPatch) -> Stream:
    """The stream with every pixel of some domains' labels void; the stand-in is everyone's."""
    dataset: Any = job_stream.segments[0].parts[0].dataset
    labels = dataset._labels.clone()
    for name in void:
        labels[dataset.indices(name)] = 255
    patch.setattr(dataset, "_labels", labels)
    return job_stream


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("source", {}),
        ("tent", {"preset": "acdc"}),
        ("dual_expert", {"preset": "source-free"}),
    ],
)
def test_images_without_a_valid_pixel_run_through(
    method: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are adapted to like any other, are part of no score, and spoil nobody else's."""
    from ostinato.running.job import open_stream

    spec = mosaic_spec(method=method, **more)
    results = []
    for void in (set(), {"night"}):
        stream = with_void(open_stream(spec), void, monkeypatch)
        (folder,) = run(spec, out=tmp_path / str(len(void)), quiet=True, stream=stream)
        results.append(folder)
    whole, part = (folder.summary() for folder in results)
    scores = {(c.round, c.domain): c.value for c in whole.cells}
    assert {(c.round, c.domain): c.value for c in part.cells} == {
        key: value for key, value in scores.items() if key[1] != "night"
    }
    empty = [r for r in results[1].records() if r.domain == "night"]
    assert [(r.counted, r.correct, sum(map(sum, r.confusion))) for r in empty] == [(0, 0, 0)] * 4
    assert part.images == whole.images == 16
    assert part.rf is not None


def test_a_preparation_survives_images_without_a_valid_pixel() -> None:
    net = nn.Conv2d(3, 4, 1)
    labels = torch.zeros(6, 5, 5, dtype=torch.long)
    labels[1:] = 255
    state = warm_up(
        net,
        dict(net.named_parameters()),
        torch.rand(6, 3, 5, 5, generator=torch.Generator().manual_seed(0)),
        labels,
        steps=12,
        lr=0.01,
        batch=1,
        generator=torch.Generator().manual_seed(0),
    )
    assert all(bool(value.isfinite().all()) for value in state.tensors.values())


def test_clean_statistics_of_a_model_that_cuts_images_up_are_those_of_the_pieces() -> None:
    from ostinato.data.embedded import SIZE, embedded_images
    from ostinato.data.mosaic import COLUMNS, ROWS, _mosaics, mosaic_model

    tiles = embedded_images("tune")[0][: 4 * ROWS * COLUMNS]
    whole, _ = _mosaics(tiles, torch.zeros(len(tiles), dtype=torch.long), 4)
    model = mosaic_model()
    found = ostinato.collect_statistics(model, whole)
    expected = ostinato.collect_statistics(model.tiles, tiles)
    assert (found.images, tiles.shape[-1]) == (4, SIZE)
    for one, other in zip(
        (*found.means, *found.stds), (*expected.means, *expected.stds), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


VIEWED = {"window": [64, 64], "stride": [64, 48], "scales": [1.0, 1.5], "flip": True}


def test_a_run_with_windows_and_views(tmp_path: Path) -> None:
    spec = mosaic_spec(
        **VIEWED,
        method="dual_expert",
        preset="source-free",
        settings={"kappa": 5.0, "discriminator": {"evidence": 1}},
        data={"dataset": "acdc", "rounds": 1, "limit": 1, "domains": ["fog", "snow"]},
    )
    job = open_job(spec)
    assert isinstance(job.model, MultiView)
    assert isinstance(job.model.base, SlidingWindow)
    assert (job.model.scales, job.model.flip) == ((1.0, 1.5), True)
    assert (job.model.base.size, job.model.base.stride) == ((64, 64), (64, 48))
    (folder,) = run(spec, out=tmp_path, quiet=True)
    kept = RunFolder.open(folder.path)
    assert {key: kept.spec[key] for key in VIEWED} == VIEWED
    assert any(r.updated for r in kept.records())
    assert resume(folder.path, quiet=True).path == folder.path
    assert views_name(Spec.parse(kept.spec)) == "windows of 64×64 every 64×48, 4 views"
    cotta = resolve_config(METHODS["cotta"], "acdc", {})
    assert views_name(mosaic_spec(), cotta) == "14 of the method"
    assert views_name(mosaic_spec()) == "1"


def test_a_spec_without_views_is_stored_and_hashed_as_ever() -> None:
    plain = mosaic_spec()
    assert not _VIEWS & set(plain.stored())
    before = plain.model_dump(mode="json", exclude=_VIEWS)
    assert spec_hash(plain.stored()) == spec_hash(before)
    assert Spec.parse(plain.stored()) == plain
    for key, value in (("window", (8, 8)), ("scales", (0.5,)), ("flip", True)):
        changed = plain.replace(**{key: value})
        assert spec_hash(changed.stored()) != spec_hash(before)
        assert Spec.parse(changed.stored()) == changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": [512]}, "window"),
        ({"window": [0, 8]}, "height and width"),
        ({"stride": [8, 8]}, "stride goes with window"),
        ({"window": [8, 8], "stride": [9, 8]}, "no window sees"),
        ({"scales": [0.5, 0.5]}, "each once"),
        ({"scales": [0.0]}, "positive numbers"),
        (
            {"model": "embedded", "stream": "continual", "data": {"domains": ["fog"], "limit": 4},
             "roots": None, "window": [16, 16]},
            "window: windows and views are for segmentation",
        ),
        (
            {"model": "embedded", "stream": "continual", "data": {"domains": ["fog"], "limit": 4},
             "roots": None, "flip": True, "scales": [1]},
            "scales, flip: windows and views are for segmentation",
        ),
    ],
)  # fmt: skip
def test_impossible_views_fail_before_anything_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OstinatoError, match=message):
        run(mosaic_spec(**changes), out=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_acdc_end_to_end_at_full_label_resolution(tmp_path: Path) -> None:
    """Half-size images, full-size labels, 19 classes: the loop agrees with a plain computation."""
    root = trees.acdc_tree(tmp_path / "acdc")
    stream = build_stream(
        "recurring",
        {"dataset": "acdc", "rounds": 1, "batch_size": 1, "transform": "half"},
        roots={"acdc": root},
    )
    data = open_dataset("acdc", root)
    net = nn.Conv2d(3, 19, 1)
    records, answers, truths = [], [], []
    for batch in stream:
        with torch.no_grad():
            logits = net(batch.images.float() / 255)
        records.append(record_step("r", batch, StepOutput(logits)))
        assert batch.labels is not None
        full = nn.functional.interpolate(logits, batch.labels.shape[-2:], mode="bilinear")
        answers.append(full.argmax(1).numpy())
        truths.append(batch.labels.numpy())
    table = cells(records, "miou")
    for number, name in enumerate(data.domains()):
        chosen = slice(2 * number, 2 * number + 2)
        expected = by_hand(np.concatenate(answers[chosen]), np.concatenate(truths[chosen]), 19)
        assert table[0, name].value == pytest.approx(100 * expected)
    total = np.sum([r.confusion[0] for r in records], 0).reshape(19, 19)
    everything = by_hand(np.concatenate(answers), np.concatenate(truths), 19)
    assert float(mean_iou(total)) == pytest.approx(everything)
