"""DeYO: the fall of the label's probability, both filters and the weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods.deyo import _label_fall, _sample_weight
from ostinato.methods.deyo._shuffle import shuffle_patches
from ostinato.models import VisionModel


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def test_fall_of_the_label_by_hand():
    before = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3001, 0.3999]]))
    after = torch.log(torch.tensor([[0.4, 0.5, 0.1], [0.1, 0.1, 0.8]]))
    assert _label_fall(before, after).tolist() == pytest.approx([0.3, -0.4001], abs=1e-5)


def test_weight_by_hand():
    weight = _sample_weight(torch.tensor([0.5]), torch.tensor([0.3]), one=0.64)
    assert float(weight) == pytest.approx(math.exp(0.14) + math.exp(0.3), rel=1e-6)


@pytest.mark.parametrize(("sure", "falling"), [(0.5, 0.5), (0.9, 0.2), (0.2, 0.0)])
def test_objective_against_numpy(sure, falling):
    pixels = torch.cat(small_batches(6))
    shuffled = shuffle_patches(pixels, 2, adapt(small_model(), "source", seed=3).random.generator)
    with torch.no_grad():
        model = VisionModel(small_model())
        p = softmax(model(pixels).double().numpy())
        q = softmax(model(shuffled).double().numpy())
    entropy = -(p * np.log(p)).sum(1)
    rows, label = np.arange(len(p)), p.argmax(1)
    fall = p[rows, label] - q[rows, label]
    # Bounds between two samples, so that each filter drops a known share of them.
    ordered, falls = np.sort(entropy), np.sort(fall)
    bound = ordered[int(sure * 47)] + 1e-5
    plpd = falls[int(falling * 47)] + 1e-6
    keep = (entropy < bound) & (fall > plpd)
    weight = np.exp(0.4 * math.log(5) - entropy) + np.exp(fall)
    assert 0 < keep.sum() < len(p)
    settings = {"kappa": bound / math.log(5), "plpd": plpd, "grid": 2, "seed": 3}
    out = adapt(small_model(), "deyo", **settings).step(pixels)
    assert out.used == keep.sum()
    assert out.loss == pytest.approx((weight * entropy)[keep].mean(), rel=1e-4)


def test_rate_follows_the_batch_size():
    moves = []
    pixels = small_batches(1)[0]
    for batch, lr in ((pixels, 8e-3), (torch.cat([pixels, pixels]), 4e-3)):
        method = adapt(small_model(), "deyo", kappa=2.0, plpd=-2.0, lr=lr, grid=1)
        method(batch)
        weights = method.weights
        moves.append({n: p.detach() - weights.source[n] for n, p in weights.parameters.items()})
    for name, move in moves[0].items():
        torch.testing.assert_close(move, moves[1][name], rtol=1e-3, atol=1e-7)


def test_nothing_moves_when_no_sample_passes():
    out = adapt(small_model(), "deyo", plpd=1.0).step(small_batches(1)[0])
    assert not out.updated
    assert out.used == 0
