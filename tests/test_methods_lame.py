"""LAME: affinities and the fixed point against numpy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods.lame._laplacian import affinity, laplacian_assignment
from ostinato.models import VisionModel
from ostinato.ops.heads import final_features


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def fixed_point(logits, kernel, steps=500):
    unary = np.log(softmax(logits) + 1e-10)
    z = softmax(unary)
    for _ in range(steps):
        z = softmax(unary + kernel @ z)
    return z


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(20, 5, generator=generator), torch.randn(20, 8, generator=generator)


def test_neighbours_agree_with_scikit_learn(drawn):
    features = drawn[1]
    unit = (features / features.norm(dim=1, keepdim=True)).numpy()
    expected = NearestNeighbors(n_neighbors=5).fit(unit).kneighbors_graph().toarray()
    np.testing.assert_array_equal(affinity(features, "knn", 5).numpy(), expected)


def test_twins_are_neighbours_of_each_other_not_of_themselves():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    kernel = affinity(features, "knn", 2)
    assert torch.equal(kernel.diagonal(), torch.zeros(4))
    assert kernel[:3].sum(1).tolist() == [2, 2, 2]


def test_other_affinities_by_formula(drawn):
    unit = drawn[1].double().numpy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    np.testing.assert_allclose(affinity(drawn[1], "linear").numpy(), unit @ unit.T, atol=1e-5)
    distance = np.linalg.norm(unit[:, None] - unit[None], axis=2)
    width = np.sort(distance, axis=1)[:, 4].mean()
    expected = np.exp(-(distance**2) / (2 * width**2))
    np.testing.assert_allclose(affinity(drawn[1], "rbf", 5).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["knn", "rbf", "linear"])
def test_fixed_point_against_numpy(drawn, kind):
    logits, features = drawn
    kernel = affinity(features, kind, 5)
    given = laplacian_assignment(logits, kernel, steps=500).exp().numpy()
    expected = fixed_point(logits.double().numpy(), kernel.double().numpy())
    np.testing.assert_allclose(given, expected, atol=2e-3)
    np.testing.assert_allclose(given.sum(1), 1, rtol=1e-5)


def test_without_neighbours_nothing_changes(drawn):
    logits = drawn[0]
    still = laplacian_assignment(logits, torch.zeros(20, 20))
    torch.testing.assert_close(still, logits.log_softmax(1), atol=1e-5, rtol=0)


def test_neighbours_outvote_an_unsure_image():
    logits = torch.tensor([[0.1, 0.0], [0.0, 3.0], [0.0, 3.0], [0.0, 3.0]])
    kernel = affinity(torch.ones(4, 3), "knn", 3)
    assert laplacian_assignment(logits, kernel).argmax(1).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["knn", "rbf"])
def test_method_against_numpy_and_nothing_moves(kind):
    settings = {"affinity": kind, "neighbours": 3, "symmetric": True}
    method = adapt(small_model(), "lame", iterations=500, **settings)
    pixels = small_batches(1)[0]
    with torch.no_grad():
        features, logits = final_features(VisionModel(small_model()), pixels)
    kernel = affinity(features, kind, 3).double().numpy()
    expected = fixed_point(logits.double().numpy(), 0.5 * (kernel + kernel.T))
    out = method.step(pixels)
    np.testing.assert_allclose(out.logits.exp().numpy(), expected, atol=2e-3)
    assert not out.updated
    assert method.trained() == 0


def test_a_single_image_is_the_source_prediction():
    pixels = small_batches(1, size=1)[0]
    with torch.no_grad():
        logits = VisionModel(small_model())(pixels)
    given = adapt(small_model(), "lame", affinity="knn")(pixels)
    torch.testing.assert_close(given, logits.log_softmax(1), atol=1e-5, rtol=0)
    pulled = adapt(small_model(), "lame")(pixels)  # in rbf an image is its own neighbour too
    assert bool(pulled.isfinite().all())
    assert pulled.argmax() == logits.argmax()
