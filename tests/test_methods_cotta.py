"""CoTTA's rules: views below the confidence threshold, the teacher's average, restoration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods import cotta
from ostinato.models import VisionModel
from ostinato.ops.augment import cotta_view, scaled_views


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def source_logits(pixels, model=None):
    with torch.no_grad():
        return VisionModel(model or small_model().eval())(pixels)


def test_teacher_is_the_moving_average_and_predicts_before_the_update():
    method = adapt(small_model(), "cotta", lr=1e-2, ema=0.9, restore=0.0)
    batches = small_batches(2)
    first = method(batches[0])
    torch.testing.assert_close(first, source_logits(batches[0]))
    for name, parameter in method.weights.parameters.items():
        expected = 0.9 * method.weights.source[name] + 0.1 * parameter.detach()
        torch.testing.assert_close(method.teacher.values[name], expected)
    before = method.teacher.logits(batches[1])
    with torch.no_grad():
        student = method.model(batches[1])
    second = method(batches[1])
    assert torch.equal(second, before)
    assert not torch.allclose(second, student)


@pytest.mark.parametrize("restore", [0.0, 0.25, 1.0])
def test_share_of_restored_weights(restore):
    method = adapt(small_model(), "cotta", lr=0.1, momentum=0.0, restore=restore, seed=4)
    method(small_batches(1)[0])
    now = torch.cat([p.detach().flatten() for p in method.weights.parameters.values()])
    source = torch.cat([v.flatten() for v in method.weights.source.values()])
    plain = adapt(small_model(), "cotta", lr=0.1, momentum=0.0, restore=0.0, seed=4)
    plain(small_batches(1)[0])
    moved = torch.cat([p.detach().flatten() for p in plain.weights.parameters.values()])
    could = moved != source
    assert could.float().mean() > 0.5
    back = (now == source)[could].float().mean()
    if restore in (0.0, 1.0):
        assert float(back) == restore
    else:
        assert abs(float(back) - restore) < 5 * (restore * (1 - restore) / int(could.sum())) ** 0.5
    assert torch.equal(now[~(now == source)], moved[~(now == source)])


def test_views_are_used_only_where_the_source_model_is_unsure(monkeypatch):
    calls = []

    def counted(pixels, generator):
        calls.append(len(pixels))
        return cotta_view(pixels, generator)

    monkeypatch.setattr(cotta, "cotta_view", counted)
    pixels = small_batches(1)[0]
    confidence = float(source_logits(pixels).softmax(1).amax(1).mean())
    for threshold, views in ((confidence - 1e-3, 0), (confidence + 1e-3, 3)):
        calls.clear()
        adapt(small_model(), "cotta", threshold=threshold, views=3)(pixels)
        assert calls == [8] * views


def test_prediction_below_the_threshold_is_the_mean_over_views():
    pixels = small_batches(1)[0]
    given = adapt(small_model(), "cotta", threshold=1.0, views=3, seed=7)(pixels)
    method = adapt(small_model(), "source", seed=7)
    views = [cotta_view(pixels, method.random.generator) for _ in range(3)]
    expected = torch.stack([source_logits(view) for view in views]).mean(0)
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("kind", ["symmetric", "plain", "hard"])
def test_loss_against_numpy(kind):
    method = adapt(small_model(), "cotta", loss=kind, lr=0.5, restore=0.0, ema=0.5)
    batches = small_batches(2)
    method(batches[0])
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a student far from its teacher, so that the directions differ
        for parameter in method.weights.parameters.values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
        student = softmax(method.model(batches[1]).numpy().astype(np.float64))
    teacher = softmax(method.teacher.logits(batches[1]).numpy().astype(np.float64))
    out = method.step(batches[1])
    forth = -(teacher * np.log(student)).sum(1).mean()
    back = -(student * np.log(teacher)).sum(1).mean()
    hard = -np.log(student[np.arange(8), teacher.argmax(1)]).mean()
    expected = {"symmetric": 0.5 * (forth + back), "plain": forth, "hard": hard}[kind]
    assert out.loss == pytest.approx(expected, rel=1e-4)
    assert forth != pytest.approx(back, rel=1e-3)


class Dense(nn.Module):
    """A per-pixel classifier with a receptive field, at half resolution."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        return 4 * self.last(torch.relu(self.norm(self.first(x))))


def test_segmentation_mixes_plain_and_multi_scale_predictions_per_pixel():
    pixels = small_batches(1, size=1)[0]
    model = Dense().eval()
    scales = (0.5, 1.0, 1.5)
    with torch.no_grad():
        plain = model(pixels).softmax(1)
        views = scaled_views(pixels, scales)
        mean = torch.stack([v.undo(model(v.pixels).softmax(1), (16, 16)) for v in views]).mean(0)
    threshold = float(plain.amax(1).median())
    sure = plain.amax(1, keepdim=True) > threshold
    expected = torch.where(sure, plain, mean)
    method = adapt(
        Dense(), "cotta", preset="acdc", normalize="none", scales=scales, threshold=threshold
    )
    out = method.step(pixels)
    torch.testing.assert_close(out.logits.exp(), expected)
    assert 0 < int(sure.sum()) < sure.numel()
    logp = plain.log().squeeze(0).flatten(1)
    labels = expected.argmax(1).flatten()
    hard = -logp[labels, torch.arange(len(labels))].mean()
    assert out.loss == pytest.approx(float(hard), rel=1e-4)
    assert out.updated


def test_acdc_preset_has_fourteen_views():
    config = cotta.Cotta.Config.parse(cotta.Cotta.presets["acdc"])
    assert len(scaled_views(torch.zeros(1, 3, 8, 8), config.scales)) == 14
