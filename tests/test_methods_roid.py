"""ROID: likelihood ratio, weights, ensembling and prior correction against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods.roid import _roid_view, _sample_weights, _soft_likelihood_ratio, correct_prior
from ostinato.models import VisionModel


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def ratio(logits):
    p = np.minimum(softmax(logits), 0.99)
    return -(p * np.log(p / (1 - p) + 1e-5)).sum(1)


def weights_of(logits, mean, temperature):
    p = softmax(logits)
    diversity = 1 - p @ mean / (np.linalg.norm(p, axis=1) * np.linalg.norm(mean))
    diversity = (diversity - diversity.min()) / (diversity.max() - diversity.min())
    certainty = (p * np.log(p)).sum(1)
    certainty = (certainty - certainty.min()) / (certainty.max() - certainty.min())
    return np.where(diversity < diversity.mean(), 0, np.exp(diversity * certainty / temperature))


def drawn(seed, items=7, scale=2.0):
    return scale * torch.randn(items, 5, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31), st.sampled_from([0.2, 2.0, 20.0]))
@settings(max_examples=50, deadline=None)
def test_likelihood_ratio_against_numpy(seed, scale):
    logits = drawn(seed, scale=scale)
    expected = ratio(logits.double().numpy())
    np.testing.assert_allclose(
        _soft_likelihood_ratio(logits).numpy(), expected, rtol=2e-3, atol=1e-4
    )


@given(st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_weights_against_numpy(seed):
    logits = drawn(seed)
    mean = torch.rand(5, generator=torch.Generator().manual_seed(seed)) + 0.1
    mean = mean / mean.sum()
    expected = weights_of(logits.double().numpy(), mean.double().numpy(), 1 / 3)
    np.testing.assert_allclose(_sample_weights(logits, mean, 1 / 3).numpy(), expected, rtol=5e-3)


def test_a_single_image_has_weight_one():
    assert _sample_weights(drawn(0, items=1), torch.full((5,), 0.2), 1 / 3).tolist() == [1.0]


def test_likelihood_ratio_still_teaches_sure_samples():
    logits = torch.tensor([[6.0, 0.0, 0.0]], requires_grad=True)
    _soft_likelihood_ratio(logits).sum().backward()
    slope = float(logits.grad.norm())
    logits = torch.tensor([[6.0, 0.0, 0.0]], requires_grad=True)
    p = logits.softmax(1)
    (-(p * p.log()).sum()).backward()
    assert slope > 0
    assert slope > 0.5 * float(logits.grad.norm())


def test_prior_correction_against_numpy():
    logits = drawn(3)
    prior = softmax(logits.double().numpy()).mean(0)
    smooth = max(1 / 7, 1 / 5) / prior.max()
    expected = logits.double().numpy() * ((prior + smooth) / (1 + smooth * 5))
    np.testing.assert_allclose(correct_prior(logits).numpy(), expected, rtol=1e-5)


def test_objective_and_mean_prediction_over_a_stream():
    method = adapt(small_model(), "roid", prior_correction=False, seed=2, lr=0.01)
    generator = adapt(small_model(), "source", seed=2).random.generator
    mean = np.full(5, 0.2)
    for batch in small_batches(3):
        view = _roid_view(batch, generator)
        with torch.no_grad():
            augmented = method.model(view).double().numpy()
        out = method.step(batch)
        logits = out.logits.double().numpy()
        w = weights_of(logits, mean, 1 / 3)
        p, q = softmax(logits), softmax(augmented)
        distance = -0.5 * ((p * np.log(q)).sum(1) + (q * np.log(p)).sum(1))
        assert out.loss == pytest.approx((w * (ratio(logits) + distance)).sum() / 8, rel=1e-3)
        assert out.used == (w > 0).sum()
        mean = 0.9 * mean + 0.1 * p.mean(0)
        np.testing.assert_allclose(method.mean.get(5).numpy(), mean, rtol=1e-4)


def test_weights_are_ensembled_with_the_source_after_each_step():
    batch = small_batches(1)[0]
    free = adapt(small_model(), "roid", ensemble=1.0, lr=0.05)
    held = adapt(small_model(), "roid", ensemble=0.75, lr=0.05)
    free(batch)
    held(batch)
    for name, parameter in free.weights.parameters.items():
        expected = 0.75 * parameter + 0.25 * free.weights.source[name]
        torch.testing.assert_close(held.weights.parameters[name], expected)
    assert not torch.equal(free.model.base.norm.weight, free.weights.source["norm.weight"])


def test_prediction_is_corrected_by_the_prior():
    batch = small_batches(1)[0]
    with torch.no_grad():
        logits = VisionModel(small_model())(batch)
    torch.testing.assert_close(adapt(small_model(), "roid")(batch), correct_prior(logits))
