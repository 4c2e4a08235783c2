"""The Gaussian mathematics against independent numpy and scikit-learn computations."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB

from ostinato.domains import _gaussian as gaussian

seeds = st.integers(0, 2**20)
kinds = st.sampled_from(["diag", "full"])
EPS = 1e-3


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def spd(seed: int, k: int, d: int) -> np.ndarray:
    a = draw(seed, k, d, d)
    return a @ a.transpose(0, 2, 1) / d + 0.2 * np.eye(d)


def tensor(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(a)).float()


def covariances(seed: int, k: int, d: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """As this library keeps them, and as full matrices."""
    full = spd(seed, k, d)
    if kind == "full":
        return full, full
    diagonal = full.diagonal(axis1=1, axis2=2).copy()
    return diagonal, np.stack([np.diag(row) for row in diagonal])


def scales(covariance: np.ndarray, kind: str) -> torch.Tensor:
    return torch.stack([gaussian.scale_of(tensor(one), kind, EPS) for one in covariance])


@settings(max_examples=40, deadline=None)
@given(seeds, kinds, st.integers(1, 5), st.integers(1, 4), st.integers(1, 8))
def test_distance(seed: int, kind: str, n: int, k: int, d: int) -> None:
    kept, full = covariances(seed, k, d, kind)
    z, mean = draw(seed + 1, n, d), draw(seed + 2, k, d)
    found = gaussian.distance(tensor(z), tensor(mean), scales(kept, kind)).numpy()
    for i in range(n):
        for j in range(k):
            shrunk = (1 - EPS) * full[j] + EPS * np.eye(d)
            delta = z[i] - mean[j]
            assert found[i, j] == pytest.approx(delta @ np.linalg.inv(shrunk) @ delta / d, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(seeds, kinds, st.integers(1, 9), st.integers(1, 3), st.integers(1, 6))
def test_corrected_distance(seed: int, kind: str, n: int, k: int, d: int) -> None:
    kept, full = covariances(seed, k, d, kind)
    z, mean = draw(seed + 1, n, d), draw(seed + 2, k, d)
    images = np.arange(1, k + 1) * 7
    found = gaussian.corrected_distance(
        tensor(z), tensor(mean), tensor(kept), scales(kept, kind), tensor(images), EPS
    )
    for j in range(k):
        inverse = np.linalg.inv((1 - EPS) * full[j] + EPS * np.eye(d))
        own = np.cov(z.T, ddof=1).reshape(d, d) if n > 1 else full[j]
        if kind == "diag":
            own = np.diag(np.diag(own))
        delta = z.mean(0) - mean[j]
        noise = np.trace(inverse @ own) * (1 / n + 1 / images[j])
        expected = (delta @ inverse @ delta - noise) / d
        assert float(found[j]) == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_correction_makes_the_expected_distance_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    variance = torch.rand(1, 400, generator=generator) + 0.2
    total = 0.0
    for _ in range(60):
        seen, batch = (
            variance.sqrt() * torch.randn(count, 400, generator=generator) for count in (40, 10)
        )
        total += gaussian.corrected_distance(
            batch, seen.mean(0)[None], variance, variance, torch.tensor([40.0]), 0.0
        ).item()
    assert abs(total / 60) < 0.005  # uncorrected it is 1/10 + 1/40


@settings(max_examples=60, deadline=None)
@given(seeds, kinds, st.integers(1, 12), st.integers(1, 8), st.integers(1, 500))
def test_updates_are_the_papers_closed_forms(
    seed: int, kind: str, n: int, d: int, count: int
) -> None:
    kept, full = covariances(seed, 1, d, kind)
    z, mean = draw(seed + 1, n, d), draw(seed + 2, d)
    inverse = np.linalg.inv((1 - EPS) * full[0] + EPS * np.eye(d))
    m = np.array([(row - mean) @ inverse @ (row - mean) / d for row in z])
    w = np.exp(-0.5 * m) / np.exp(-0.5 * m).sum()
    new_mean = (count * mean + sum(w[b] * z[b] for b in range(n))) / (count + 1)
    scatter = sum(w[b] * np.outer(z[b] - mean, z[b] - mean) for b in range(n))
    new_cov = (count * full[0] + scatter) / (count + 1)

    weights = gaussian.soft_weights(tensor(z), tensor(mean), scales(kept, kind)[0])
    got = gaussian.weighted_update(tensor(mean), tensor(kept[0]), count, tensor(z), weights)
    np.testing.assert_allclose(weights.numpy(), w, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(got[0].numpy(), new_mean, rtol=1e-3, atol=1e-3)
    wanted = new_cov if kind == "full" else np.diag(new_cov)
    np.testing.assert_allclose(got[1].numpy(), wanted, rtol=1e-3, atol=2e-3)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 12), st.floats(0.01, 1))
def test_ema(seed: int, n: int, momentum: float) -> None:
    z, mean, cov = draw(seed, n, 4), draw(seed + 1, 4), draw(seed + 2, 4) ** 2
    got = gaussian.ema_update(tensor(mean), tensor(cov), tensor(z), momentum)
    expected = (1 - momentum) * cov + momentum * ((z - mean) ** 2).mean(0)
    np.testing.assert_allclose(got[0], (1 - momentum) * mean + momentum * z.mean(0), atol=1e-5)
    np.testing.assert_allclose(got[1], expected, rtol=1e-4, atol=1e-5)


def labelled(seed: int, k: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal(size=d), rng.uniform(0.5, 2, d), (60, d)) for _ in range(k)]
    return np.concatenate(parts), np.repeat(np.arange(k), 60)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(2, 4), st.integers(1, 10))
def test_posterior_is_scikit_learns_naive_bayes(seed: int, k: int, d: int) -> None:
    x, y = labelled(seed, k, d)
    fitted = GaussianNB(priors=np.full(k, 1 / k), var_smoothing=0).fit(x, y)
    found = gaussian.posterior(tensor(x), tensor(fitted.theta_), tensor(fitted.var_))
    np.testing.assert_allclose(found.numpy(), fitted.predict_proba(x), atol=2e-4)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(2, 4), st.integers(2, 8))
def test_full_posterior_is_scikit_learns_quadratic_discriminant(seed: int, k: int, d: int) -> None:
    x, y = labelled(seed, k, d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = QuadraticDiscriminantAnalysis(priors=np.full(k, 1 / k), store_covariance=True)
        fitted = model.fit(x, y)
    factors = [gaussian.scale_of(tensor(c), "full", 0.0) for c in np.stack(fitted.covariance_)]
    found = gaussian.posterior(tensor(x), tensor(fitted.means_), torch.stack(factors))
    np.testing.assert_allclose(found.numpy(), fitted.predict_proba(x), atol=1e-3)


def test_posterior_survives_a_thousand_dimensions() -> None:
    mean = torch.stack([torch.zeros(1089), torch.full((1089,), 40.0)])
    found = gaussian.posterior(torch.full((1, 1089), 19.0), mean, torch.full((2, 1089), 1e-3))
    assert found.tolist() == [[1.0, 0.0]]


@settings(max_examples=25, deadline=None)
@given(seeds, kinds, st.integers(2, 30), st.integers(2, 30))
def test_merging_matches_the_moments_of_both(seed: int, kind: str, n: int, m: int) -> None:
    a, b = draw(seed, n, 3), draw(seed + 1, m, 3) + 2

    def moments(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        cov = np.cov(x.T, ddof=0)
        return tensor(x.mean(0)), tensor(cov if kind == "full" else np.diag(cov))

    found = gaussian.merged((*moments(a), n), (*moments(b), m))
    for got, wanted in zip(found, moments(np.concatenate([a, b])), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_no_covariance_is_euclidean() -> None:
    z, mean = torch.randn(4, 5), torch.randn(2, 5)
    ones = gaussian.scale_of(torch.rand(2, 5), "none", EPS)
    expected = torch.cdist(z, mean).square() / 5
    torch.testing.assert_close(gaussian.distance(z, mean, ones), expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(seeds, kinds, st.integers(2, 9), st.integers(1, 9))
def test_difference_of_two_sets(seed: int, kind: str, n: int, m: int) -> None:
    a, b = draw(seed, n, 4), draw(seed + 1, m, 4) + 1
    kept, full = covariances(seed, 1, 4, kind)
    inverse = np.linalg.inv((1 - EPS) * full[0] + EPS * np.eye(4))
    rest = np.concatenate([a - a.mean(0), b - b.mean(0)])
    pooled = rest.T @ rest / (n + m - 2)
    apart = a.mean(0) - b.mean(0)
    expected = (apart @ inverse @ apart - np.trace(inverse @ pooled) * (1 / n + 1 / m)) / 4
    found = gaussian.difference(tensor(a), tensor(b), scales(kept, kind)[0])
    assert float(found) == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_a_blend_that_looks_new_has_halves_four_times_as_far_apart() -> None:
    """The bound that the agreement of halves rests on, for every place of the change."""
    for changed in range(1, 100):
        share = changed / 100  # of the second domain, at unit distance from the first
        nearest = min(share**2, (1 - share) ** 2)
        older = max(0.0, 2 * share - 1)
        newer = min(1.0, 2 * share)
        assert (newer - older) ** 2 >= 4 * nearest - 1e-12
