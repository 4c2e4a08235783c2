from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_jaccard_index,
)

from ostinato.errors import ConfigError, DataError
from ostinato.scoring.metrics import (
    _add_bins,
    _bin_answers,
    _score_images,
    calibration_error,
    cost,
    mean_iou,
    peak_memory,
    record_step,
    reliability,
)
from ostinato.scoring.record import Record, RecordedDecision
from ostinato.types import Batch, Decision, StepOutput


def step(images: int = 6, classes: int = 5, seed: int = 0, **more: object) -> Record:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator)
    batch = Batch(
        images=torch.zeros(images, 3, 2, 2),
        labels=torch.randint(classes, (images,), generator=generator),
        domain="fog",
        index=3,
        round=1,
        keys=tuple(f"k{i}" for i in range(images)),
    )
    return record_step("r", batch, StepOutput(logits, **more))  # type: ignore[arg-type]


def scene(size: int = 8, logit_size: int | None = None, seed: int = 0) -> tuple[Batch, StepOutput]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (2, size, size), generator=generator)
    labels[0, :2] = 255
    side = logit_size or size
    logits = 2 * torch.randn(2, 4, side, side, generator=generator)
    return Batch(torch.zeros(2, 3, size, size), labels, "night"), StepOutput(logits)


def test_a_record_survives_its_line_exactly() -> None:
    decision = Decision(2, True, float("inf"), 0.16, ((1, 0.5), (0, float("inf"))), 50, False)
    record = step(decision=decision, loss=0.25, used=4, updated=True, events=("rolled back",))
    line = record.to_line()
    assert "\n" not in line
    assert json.loads(line)["decision"]["distance"] is None
    again = Record.from_line(line)
    assert again == record
    assert again.decision is not None
    assert again.decision.distances == ((1, 0.5), (0, None))
    assert not again.decision.settled


def test_content_leaves_out_what_no_run_repeats() -> None:
    record = step()
    other = record.replace(seconds=9.0, peak_memory=5)
    assert other != record
    assert other.content() == record.content()
    assert record.replace(loss=1.0).content() != record.content()


@pytest.mark.parametrize("line", ["", "{", "[]", '{"run": "a"}', '{"nonsense": 1}'])
def test_a_damaged_line_is_a_data_error(line: str) -> None:
    with pytest.raises(DataError, match="not a record"):
        Record.from_line(line)


def test_sizes_that_disagree_are_refused() -> None:
    record = step()
    with pytest.raises(ConfigError, match="keys holds 2 images, the batch has 6"):
        record.replace(keys=("a", "b"))
    with pytest.raises(ConfigError, match="pattern"):
        record.replace(hits="01x000")
    decision = RecordedDecision(
        domain=0, is_new=False, distance=0.0, threshold=1.0, per_sample=(0,)
    )
    with pytest.raises(ConfigError, match="per_sample holds 1"):
        record.replace(decision=decision)


def test_scores_agree_with_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(400, 10, generator=generator)
    labels = torch.randint(10, (400,), generator=generator)
    hits, confidence = _score_images(logits, labels)
    expected = multiclass_accuracy(logits, labels, num_classes=10, average="micro")
    assert hits.count("1") / 400 == pytest.approx(float(expected))
    bins = _bin_answers(logits.softmax(1).max(1).values.numpy(), [int(h) for h in hits])
    expected = multiclass_calibration_error(logits.softmax(1), labels, num_classes=10, n_bins=15)
    assert calibration_error(bins) == pytest.approx(float(expected), abs=1e-6)
    assert np.allclose(confidence, logits.softmax(1).max(1).values.numpy(), atol=6e-6)


def test_only_the_classes_in_use_count() -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0, 2.0]])
    batch = Batch(
        torch.zeros(1, 3, 2, 2), torch.tensor([1]), "imagenet-r", classes=torch.tensor([1, 3])
    )
    record = record_step("r", batch, StepOutput(logits))
    assert record.hits == "1"
    assert record.confidence == (round(float(torch.tensor([1.0, 2.0]).softmax(0)[1]), 5),)
    assert record_step("r", batch, StepOutput(logits[:, [1, 3]])).content() == record.content()


def test_answers_that_are_not_numbers_are_wrong() -> None:
    hits, confidence = _score_images(torch.full((2, 3), torch.nan), torch.tensor([0, 0]))
    assert (hits, confidence) == ("00", (0.0, 0.0))
    record = step(loss=float("nan"))
    assert record.loss is None
    assert Record.from_line(record.to_line()) == record


def test_labels_must_fit() -> None:
    with pytest.raises(DataError, match="outside the model's 3 outputs"):
        _score_images(torch.zeros(1, 3), torch.tensor([3]))
    with pytest.raises(DataError, match="no labels"):
        record_step("r", Batch(torch.zeros(1, 3, 2, 2)), StepOutput(torch.zeros(1, 3)))
    batch, output = scene()
    assert batch.labels is not None
    batch.labels[1, 0, 0] = 7
    with pytest.raises(DataError, match="outside the model's 4 classes"):
        record_step("r", batch, output)


def test_segmentation_agrees_with_torchmetrics() -> None:
    batch, output = scene()
    record = record_step("r", batch, output)
    assert batch.labels is not None
    confusion = np.array(record.confusion).sum(0).reshape(4, 4)
    # Class 3 is in the predictions alone, so it counts as missed; drop it and a class is absent.
    expected = multiclass_jaccard_index(
        output.logits, batch.labels, num_classes=4, ignore_index=255
    )
    assert float(mean_iou(confusion)) == pytest.approx(float(expected))
    assert record.counted == 2 * 64 - 16
    assert record.correct == int(np.trace(confusion))
    counted = batch.labels != 255
    best = output.logits.softmax(1).max(1)
    expected = binary_calibration_error(
        best.values[counted], (best.indices == batch.labels)[counted].long(), n_bins=15
    )
    assert calibration_error(reliability([record])) == pytest.approx(float(expected), abs=1e-6)


def test_a_class_absent_from_both_does_not_count() -> None:
    logits = torch.zeros(1, 4, 2, 2)
    logits[:, 1] = 1.0
    labels = torch.tensor([[[1, 1], [1, 0]]])
    expected = multiclass_jaccard_index(logits, labels, num_classes=4, ignore_index=255)
    record = record_step("r", Batch(torch.zeros(1, 3, 2, 2), labels, "fog"), StepOutput(logits))
    value = float(mean_iou(np.array(record.confusion[0]).reshape(4, 4)))
    assert value == pytest.approx(float(expected))
    assert value == pytest.approx((3 / 4 + 0) / 2)
    assert np.isnan(mean_iou(np.zeros((4, 4))))


def test_small_logits_are_brought_to_the_labels_size() -> None:
    batch, output = scene(size=8, logit_size=4)
    record = record_step("r", batch, output)
    larger = torch.nn.functional.interpolate(
        output.logits, size=(8, 8), mode="bilinear", align_corners=False
    )
    assert record.content() == record_step("r", batch, StepOutput(larger)).content()


def test_bins_add_up_over_batches() -> None:
    generator = np.random.default_rng(0)
    confidence, right = generator.random(100), generator.integers(0, 2, 100)
    whole = _bin_answers(confidence, right)
    parts = _add_bins(
        [_bin_answers(confidence[:30], right[:30]), _bin_answers(confidence[30:], right[30:])]
    )
    assert np.allclose(whole, parts)
    assert calibration_error(()) is None
    with pytest.raises(DataError, match="binned differently"):
        _add_bins([_bin_answers([0.5], [1], 10), _bin_answers([0.5], [1], 15)])


def test_cost_leaves_the_warm_up_out() -> None:
    records = [
        step().replace(seconds=s, peak_memory=m, trained=7)
        for s, m in ((60.0, 10), (1.0, 30), (3.0, 20))
    ]
    result = cost(records)
    assert result.images_per_second == pytest.approx(12 / 4)
    assert result.seconds_per_batch == pytest.approx(2.0)
    assert (result.peak_memory, result.trained) == (30, 7)
    assert cost(records[:1]).images_per_second == pytest.approx(0.1)
    assert cost([]).images_per_second is None


def test_peak_memory_grows_with_use() -> None:
    before = peak_memory(torch.device("cpu"))
    held = np.ones(10_000_000)
    after = peak_memory(torch.device("cpu"))
    assert before is not None
    assert after is not None
    assert after >= max(before, held.nbytes)
