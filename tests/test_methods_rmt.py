"""RMT: symmetric cross-entropy, the contrastive pull and class prototypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.errors import ConfigError, MissingResource
from ostinato.methods.rmt import _class_means, _contrastive_loss, _nearest_prototypes
from ostinato.models import VisionModel
from ostinato.ops.augment import cotta_view
from ostinato.ops.heads import final_features
from ostinato.ops.snapshot import State


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def symmetric(a, b):
    p, q = softmax(a), softmax(b)
    return -0.5 * ((q * np.log(p)).sum(1) + (p * np.log(q)).sum(1))


def contrast(views, temperature):
    """The loss spelled out anchor by anchor."""
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in views]
    items, total = len(unit[0]), []
    every = [(view, i) for view in range(len(unit)) for i in range(items)]
    for anchor in every:
        a = unit[anchor[0]][anchor[1]]
        others = [e for e in every if e != anchor]
        scores = {e: np.exp(a @ unit[e[0]][e[1]] / temperature) for e in others}
        friends = [e for e in others if e[1] == anchor[1]]
        total.append(-np.mean([np.log(scores[e] / sum(scores.values())) for e in friends]))
    return np.mean(total)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_objective_against_numpy(weight):
    method = adapt(small_model(), "rmt", contrast=weight, lr=0.02, ema=0.5, seed=5)
    generator = adapt(small_model(), "source", seed=5).random.generator
    rows = small_model().head.weight.detach().double().numpy()
    for batch in small_batches(3):
        view = cotta_view(batch, generator)
        with torch.no_grad():
            features, student = final_features(method.model, batch)
            seen, augmented = final_features(method.model, view)
        teacher = method.teacher.logits(batch)
        s, a, t, f, g = (x.double().numpy() for x in (student, augmented, teacher, features, seen))
        cosine = (f / np.linalg.norm(f, axis=1, keepdims=True)) @ (
            rows / np.linalg.norm(rows, axis=1, keepdims=True)
        ).T
        expected = (0.5 * symmetric(s, t) + 0.5 * symmetric(a, t)).mean()
        expected += weight * contrast([rows[cosine.argmax(1)], f, g], 0.1)
        out = method.step(batch)
        assert out.loss == pytest.approx(expected, rel=1e-3)
        torch.testing.assert_close(out.logits, student + teacher)


def test_contrastive_loss_prefers_views_that_agree():
    torch.manual_seed(0)
    features, other = torch.randn(6, 8), torch.randn(6, 8)
    close = _contrastive_loss([features, features + 0.01 * other], 0.1)
    far = _contrastive_loss([features, other], 0.1)
    assert close < far
    assert float(_contrastive_loss([features[:1], other[:1]], 0.1)) == pytest.approx(0.0, abs=1e-6)


def test_teacher_follows_the_student():
    method = adapt(small_model(), "rmt", lr=0.02, ema=0.9)
    method(small_batches(1)[0])
    for name, parameter in method.weights.parameters.items():
        expected = 0.9 * method.weights.source[name] + 0.1 * parameter.detach()
        torch.testing.assert_close(method.teacher.values[name], expected)


def test_class_means_by_hand():
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    rows = torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]])
    means = _class_means(features, torch.tensor([0, 0, 2]), rows)
    assert means.tolist() == [[2.0, 0.0], [8.0, 8.0], [0.0, 5.0]]
    near = _nearest_prototypes(torch.tensor([[0.1, 2.0]]), means)
    assert near.tolist() == [[0.0, 5.0]]


@pytest.mark.parametrize("with_labels", [True, False])
def test_prepared_prototypes(with_labels):
    images = torch.cat(small_batches(8, seed=9))
    labels = torch.arange(len(images)) % 5 if with_labels else None
    prepared = prepare(small_model(), "rmt", images, labels)
    with torch.no_grad():
        features, logits = final_features(VisionModel(small_model()), images)
    chosen = labels if with_labels else logits.argmax(1)
    for label in chosen.unique().tolist():
        torch.testing.assert_close(
            prepared.tensors["prototypes"][label], features[chosen == label].mean(0)
        )
    method = adapt(small_model(), "rmt", prototypes="source", prepared=prepared)
    plain = adapt(small_model(), "rmt")
    batch = small_batches(1)[0]
    assert method.step(batch).loss != plain.step(batch).loss
    assert method.needs(method.config) == {"prepared file"}
    assert plain.needs(plain.config) == frozenset()


def test_missing_or_foreign_prototypes_are_refused():
    with pytest.raises(MissingResource, match="ostinato prepare rmt"):
        adapt(small_model(), "rmt", prototypes="source")
    with pytest.raises(ConfigError, match="prepare rmt"):
        adapt(small_model(), "rmt", prototypes="source", prepared=State({"x": torch.ones(1)}))
