"""Hard labels: the threshold, the loss, and TENT's segmentation form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.models import VisionModel
from ostinato.ops.consistency import pseudo_label_loss


def reference(logits, threshold):
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    top = (shifted / shifted.sum(1, keepdims=True)).max(1)
    kept = top[top >= threshold]
    return (-np.log(kept)).mean() if len(kept) else 0.0, len(kept)


@given(st.integers(0, 2**31), st.floats(0.05, 0.99), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_loss_and_count_against_numpy(seed, threshold, items):
    logits = 3 * torch.randn(items, 5, generator=torch.Generator().manual_seed(seed))
    loss, used = pseudo_label_loss(logits, threshold)
    expected, count = reference(logits.double().numpy(), threshold)
    assert int(used) == count
    assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_pixels_count_one_by_one():
    logits = 3 * torch.randn(2, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    flat = logits.permute(0, 2, 3, 1).reshape(-1, 5)
    assert float(pseudo_label_loss(logits, 0.7)[0]) == pytest.approx(
        reference(flat.double().numpy(), 0.7)[0], rel=1e-5
    )


def test_method_uses_the_threshold_and_rests_without_confident_images():
    pixels = small_batches(1)[0]
    with torch.no_grad():
        top = VisionModel(small_model())(pixels).softmax(1).amax(1)
    middle = float(top.sort().values[3:5].mean())
    out = adapt(small_model(), "pseudo_label", threshold=middle).step(pixels)
    assert out.used == 4
    assert out.updated
    assert out.loss == pytest.approx(float(-top[top >= middle].log().mean()), rel=1e-4)
    idle = adapt(small_model(), "pseudo_label", threshold=1.0)
    out = idle.step(pixels)
    assert out.used == 0
    assert not out.updated
    state = idle.weights
    assert all(torch.equal(p, state.source[n]) for n, p in state.parameters.items())


def test_tent_with_hard_labels_is_pseudo_label_without_threshold():
    batches = small_batches(3)
    tent = adapt(small_model(), "tent", labels="hard", lr=1e-2)
    other = adapt(small_model(), "pseudo_label", threshold=0.0, lr=1e-2)
    assert all(torch.equal(tent(b), other(b)) for b in batches)
    soft = adapt(small_model(), "tent", lr=1e-2)
    assert not all(torch.equal(soft(b), other(b)) for b in batches)
