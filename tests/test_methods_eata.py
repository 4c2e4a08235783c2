"""EATA's two filters, weights and Fisher term; RDumb's reset."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.errors import ConfigError, MissingResource
from ostinato.methods.eata._fisher import fisher_diagonal
from ostinato.models import VisionModel
from ostinato.ops.snapshot import State

KAPPA, REDUNDANCY = 0.9, 0.8
LOOSE = {"kappa": KAPPA, "redundancy": REDUNDANCY, "lr": 0.05}


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def reference(logits, mean):
    """Loss, count and new mean prediction of one batch, in numpy."""
    p = softmax(logits.double().numpy())
    entropy = -(p * np.log(p)).sum(1)
    bound = KAPPA * math.log(p.shape[1])
    keep = entropy < bound
    if mean is not None:
        cosine = p @ mean / (np.linalg.norm(p, axis=1) * np.linalg.norm(mean))
        keep &= np.abs(cosine) < REDUNDANCY
    weighted = entropy * np.exp(bound - entropy)
    loss = weighted[keep].mean() if keep.any() else 0.0
    if keep.any():
        fresh = p[keep].mean(0)
        mean = fresh if mean is None else 0.9 * mean + 0.1 * fresh
    return loss, int(keep.sum()), mean


def test_both_filters_against_numpy_over_a_stream():
    method = adapt(small_model(), "eata", fisher_alpha=0.0, **LOOSE)
    mean, counts = None, []
    for batch in small_batches(6):
        out = method.step(batch)
        loss, used, mean = reference(out.logits, mean)
        assert out.used == used
        assert out.updated == (used > 0)
        if used:
            assert out.loss == pytest.approx(loss, rel=1e-3)
        np.testing.assert_allclose(method.mean.get(5).numpy(), mean, rtol=1e-4)
        counts.append(used)
    assert 0 < min(c for c in counts if c) <= max(counts) <= 8
    assert len(set(counts)) > 1


def test_fisher_term_against_numpy():
    prepared = prepare(small_model(), "eata", torch.cat(small_batches(4, seed=9)))
    method = adapt(small_model(), "eata", prepared=prepared, fisher_alpha=50.0, **LOOSE)
    mean = None
    for index, batch in enumerate(small_batches(4)):
        weights = method.weights
        term = sum(
            (prepared.tensors[n].double() * (p.detach() - weights.source[n]).double() ** 2).sum()
            for n, p in weights.parameters.items()
        )
        out = method.step(batch)
        loss, used, mean = reference(out.logits, mean)
        if used:
            assert out.loss == pytest.approx(loss + 50.0 * float(term), rel=1e-3)
        if index == 3:
            assert float(term) > 0


def test_fisher_diagonal_of_a_linear_model_has_a_closed_form():
    torch.manual_seed(0)
    layer = nn.Linear(3, 4)
    batches = list(torch.randn(10, 3).split(4))
    fisher = fisher_diagonal(layer, dict(layer.named_parameters()), batches)
    bias, weight = np.zeros(4), np.zeros((4, 3))
    for x in batches:
        p = softmax(layer(x).detach().double().numpy())
        error = p - np.eye(4)[p.argmax(1)]
        bias += error.mean(0) ** 2
        weight += (error.T @ x.double().numpy() / len(x)) ** 2
    np.testing.assert_allclose(fisher["bias"].numpy(), bias / 3, rtol=1e-4)
    np.testing.assert_allclose(fisher["weight"].numpy(), weight / 3, rtol=1e-4)
    assert layer.weight.grad is None


def test_preparation_takes_the_stated_images_in_the_stated_batches():
    images = torch.cat(small_batches(4, seed=9))
    given = prepare(small_model(), "eata", images, fisher_images=12, fisher_batch=5)
    model = VisionModel(small_model())
    norms = {n: p for n, p in model.base.named_parameters() if "norm" in n}
    expected = fisher_diagonal(model, norms, [images[:5], images[5:10], images[10:12]])
    assert given.tensors.keys() == expected.keys()
    assert all(torch.equal(given.tensors[n], v) for n, v in expected.items())


def test_missing_or_foreign_fisher_values_are_refused():
    with pytest.raises(MissingResource, match="ostinato prepare eata"):
        adapt(small_model(), "eata")
    with pytest.raises(ConfigError, match="prepare eata"):
        adapt(small_model(), "eata", prepared=State({"norm.weight": torch.ones(3)}))


def test_fisher_term_holds_weights_near_the_source():
    prepared = prepare(small_model(), "eata", torch.cat(small_batches(4, seed=9)))
    gaps = []
    for alpha in (0.0, 2000.0):
        method = adapt(
            small_model(), "eata", prepared=prepared, fisher_alpha=alpha, **(LOOSE | {"lr": 1e-3})
        )
        for batch in small_batches(9):
            method(batch)
        fisher = prepared.tensors
        weights = method.weights
        gaps.append(
            sum(
                float((fisher[n] * (p.detach() - weights.source[n]) ** 2).sum())
                for n, p in weights.parameters.items()
            )
        )
    assert gaps[1] < gaps[0]


def test_rdumb_starts_over_exactly_at_its_interval():
    batches = small_batches(8)
    method = adapt(small_model(), "rdumb", reset_every=3, **LOOSE)
    eta = adapt(small_model(), "eata", fisher_alpha=0.0, **LOOSE)
    source = VisionModel(copy.deepcopy(small_model()))
    for index, batch in enumerate(batches):
        if index % 3 == 0:
            eta.reset()
        out = method.step(batch)
        assert torch.equal(out.logits, eta(batch))
        with torch.no_grad():
            fresh = source(batch)
        assert torch.allclose(out.logits, fresh) == (index % 3 == 0)
        assert ("reset to the source model" in out.events) == (index % 3 == 2)
    assert method.counters["steps"] == 8
