"""ReservoirTTA: styles, routing, the quantile threshold, slots and their exact exchange."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor

from ostinato.api import adapt, prepare
from ostinato.checks import small_batches, small_model
from ostinato.errors import ConfigError, MissingResource
from ostinato.methods._style import cosine_filters, distance_quantile, image_moments, style_of
from ostinato.methods.reservoir._store import (
    Styles,
    assignments,
    clustering_loss,
    log_assignments,
    prediction_information,
)
from ostinato.methods.roid import correct_prior
from ostinato.ops.snapshot import State


@pytest.fixture(scope="module")
def prepared() -> State:
    return prepare(small_model(), "reservoir", torch.cat(small_batches(3, seed=9)))


def batches_of_styles(count: int) -> list[Tensor]:
    """Each of another contrast: far apart in style."""
    generator = torch.Generator().manual_seed(0)
    return [
        0.5 + 0.5 * (torch.rand(8, 3, 32, 32, generator=generator) - 0.5) * 0.7**n
        for n in range(count)
    ]


def test_style_is_the_log_variance_of_filter_responses() -> None:
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = style_of(image_moments(pixels))
    padded = np.pad(pixels.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    bank = cosine_filters().numpy()
    for channel, index in itertools.product(range(3), range(9)):
        responses = (windows[:, channel] * bank[index]).sum((-2, -1))
        expected = np.log(responses.var())
        assert float(found[9 * channel + index]) == pytest.approx(expected, abs=1e-3)


def test_style_tells_noise_from_smoothness_not_content() -> None:
    first, second, *_ = small_batches(6)
    *_, noisy = small_batches(6)
    a, b, c = (style_of(image_moments(x)) for x in (first, second, noisy))
    assert float((a - b).norm()) < 0.3 * float((a - c).norm())


def test_threshold_is_the_quantile_of_source_distances() -> None:
    moments = image_moments(torch.cat(small_batches(4, seed=9)))
    found = distance_quantile(moments, 8, 0.9, torch.Generator().manual_seed(5), draws=20)
    generator = torch.Generator().manual_seed(5)
    styles = [
        style_of(moments[torch.randperm(len(moments), generator=generator)[:8]]).numpy()
        for _ in range(20)
    ]
    apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(styles, 2)]
    assert found == pytest.approx(np.quantile(apart, 0.9), rel=1e-4)


def test_routing_follows_the_nearest_centroid_and_the_threshold(prepared: State) -> None:
    method = adapt(small_model(), "reservoir", prepared=prepared, centroid_lr=0.0)
    centroids = [style_of(prepared.tensors["style/moments"]).numpy()]
    for images in [*batches_of_styles(3), *batches_of_styles(3)]:
        style = style_of(image_moments(images)).numpy()
        distances = [np.linalg.norm(style - c) for c in centroids]
        known = list(distances)
        out = method.step(images)
        assert out.decision is not None
        assert out.is_new == (min(distances) > out.decision.threshold)
        if out.is_new:
            centroids.append(style)
            distances.append(0.0)
        assert out.domain == int(np.argmin(distances))
        assert out.decision.distance == pytest.approx(min(known), rel=1e-3, abs=1e-3)
    assert len(centroids) == len(method.slots) == 4


def test_slots_never_exceed_their_bound(prepared: State) -> None:
    method = adapt(small_model(), "reservoir", prepared=prepared, threshold=1e-6)
    for images in batches_of_styles(20):
        method(images)
    assert len(method.slots) == 16 == len(method.styles.centroids)


def test_each_slot_is_the_inner_method_run_on_its_own_batches_alone() -> None:
    """Swapping is exact: interleaved domains equal separate runs, to the bit."""
    far, near = batches_of_styles(2)[1], small_batches(1)[0]
    settings = {"lr": 1e-2, "momentum": 0.9, "nesterov": True}
    method = adapt(
        small_model(), "reservoir", threshold=1.0, centroid_lr=0.0, ensemble=False,
        inner_settings=settings,
    )  # fmt: skip
    order = [near, far, near, far, near]
    domains = [method.step(images).domain for images in order]
    assert domains == [0, 1, 0, 1, 0]
    alone = adapt(small_model(), "tent", **settings)
    for _ in range(3):
        alone(near)
    mine = method.slots.inner.export_state()
    for name, value in alone.export_state().tensors.items():
        assert torch.equal(value, mine.tensors[name]), name
    # The second slot began as a copy of the first after its first batch.
    second = adapt(small_model(), "tent", **settings)
    second(near)
    second(far)
    second(far)
    stored = method.slots.states[1]
    for name, value in second.export_state().tensors.items():
        assert torch.equal(value, stored.tensors[name]), name


def test_prediction_is_the_ensemble_of_parameters() -> None:
    method = adapt(
        small_model(), "reservoir", threshold=0.5, temperature=500.0, centroid_lr=0.0,
        inner_settings={"lr": 0.05},
    )  # fmt: skip
    near, far = small_batches(1)[0], batches_of_styles(2)[1]
    for images in (near, far, near):
        method(images)
    method.slots.park()  # what the next prediction rests on, before its update
    states = [state.clone() for state in method.slots.states]
    logits = method(far)
    apart = [float((style_of(image_moments(far)) - c).norm()) for c in method.styles.centroids]
    shares = torch.softmax(-torch.tensor(apart) / 500.0, 0).tolist()
    assert min(shares) > 0.01
    model = adapt(small_model(), "tent")
    with torch.no_grad():
        for name, parameter in model.weights.parameters.items():  # type: ignore[union-attr]
            parts = [s * t.tensors[f"weights/{name}"] for s, t in zip(shares, states, strict=True)]
            parameter.copy_(torch.stack(parts).sum(0))
        expected = model.model(far)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_new_slot_starts_from_the_most_informative_one(prepared: State) -> None:
    certain = torch.eye(4) * 20
    same = torch.zeros(4, 4)
    same[:, 0] = 20
    assert prediction_information(certain) == pytest.approx(np.log(4), rel=1e-3)
    assert prediction_information(same) == pytest.approx(0, abs=1e-3)
    method = adapt(small_model(), "reservoir", prepared=prepared, inner_settings={"lr": 0.1})
    images = small_batches(1)[0]
    for batch in batches_of_styles(3):
        method(batch)
    method.slots.park()
    found = []
    for state in method.slots.states:
        other = adapt(small_model(), "tent")
        other.weights.import_state(state.part("weights"))  # type: ignore[union-attr]
        with torch.no_grad():
            p = other.model(images).softmax(1).double().numpy()
        mean = p.mean(0)
        found.append(-(mean * np.log(mean)).sum() + (p * np.log(p)).sum(1).mean())
    assert method._most_informative(method._receive(images, None, None)) == int(np.argmax(found))


def test_clustering_loss_against_numpy() -> None:
    rng = np.random.default_rng(0)
    styles, centroids = rng.normal(size=(6, 3)), rng.normal(size=(2, 3))
    apart = np.sqrt(((styles[:, None] - centroids[None]) ** 2).sum(-1))
    q = np.exp(-apart / 2) / np.exp(-apart / 2).sum(1, keepdims=True)
    mean = q.mean(0)
    expected = -(q * np.log(q)).sum(1).mean() + (mean * np.log(mean)).sum()
    shares = assignments(torch.tensor(styles), torch.tensor(centroids), 2.0)
    np.testing.assert_allclose(shares.numpy(), q, rtol=1e-6)
    log_shares = log_assignments(torch.tensor(styles), torch.tensor(centroids), 2.0)
    assert float(clustering_loss(log_shares)) == pytest.approx(expected, rel=1e-6)


def test_a_style_upon_a_centroid_leaves_it_finite() -> None:
    styles = Styles(memory=4, lr=0.1, first=torch.zeros(3))
    styles.add(torch.ones(3))
    for _ in range(2):
        styles.learn(torch.zeros(3), 1.0, torch.Generator())
    assert bool(styles.centroids.isfinite().all())


@pytest.mark.parametrize(
    ("inner", "lr", "nesterov"),
    [
        ("tent", 2.5e-4, True),
        ("eta", 2.5e-4, True),
        ("eata", 2.5e-4, True),
        ("sar", 1e-3, False),
        ("roid", 2.5e-4, True),
    ],
)
def test_inner_methods_have_the_settings_of_the_release(
    inner: str, lr: float, nesterov: bool
) -> None:
    images = torch.cat(small_batches(4, seed=9))
    given = prepare(small_model(), "reservoir", images, inner=inner)
    method = adapt(small_model(), "reservoir", inner=inner, prepared=given)
    assert method.inner.name == {"eta": "eata"}.get(inner, inner)
    assert (method.inner.config.lr, method.inner.config.nesterov) == (lr, nesterov)
    if inner in ("eta", "eata"):
        assert method.inner.config.fisher_alpha == {"eta": 0.0, "eata": 2000.0}[inner]
    for batch in small_batches(3):
        assert bool(method(batch).isfinite().all())
    mine = adapt(small_model(), "reservoir", threshold=1.0, inner_preset="cifar100-c")
    assert mine.inner.config.optimizer == "adam"  # a preset of the inner method's own goes first


def test_the_ensemble_of_roid_is_corrected_by_the_prior() -> None:
    def logits(**settings: object) -> Tensor:
        method = adapt(small_model(), "reservoir", threshold=0.5, inner="roid", **settings)
        for images in (small_batches(1)[0], batches_of_styles(2)[1]):
            found = method(images)
        assert len(method.slots) == 2
        return found

    plain = logits(inner_settings={"prior_correction": False})
    torch.testing.assert_close(logits(), correct_prior(plain))


def test_styles_far_apart_leave_the_centroids_finite() -> None:
    styles = Styles(memory=4, lr=0.1, first=torch.zeros(3))
    styles.add(torch.full((3,), 1e3))
    for value in (0.0, 1e3, -1e3):
        styles.learn(torch.full((3,), value), 1.0, torch.Generator())
    assert bool(styles.centroids.isfinite().all())


def test_the_sample_of_styles_is_uniform_over_all_seen() -> None:
    counts = np.zeros(20)
    for seed in range(400):
        styles = Styles(memory=5, lr=0.0, first=None)
        generator = torch.Generator().manual_seed(seed)
        for n in range(20):
            styles._keep(torch.tensor([float(n)]), generator)
        assert styles.sample is not None
        counts[styles.sample.flatten().long().numpy()] += 1
    # Each of 20 is kept with probability 1/4: 100 of 400, give or take 4 standard deviations.
    assert counts.sum() == 2000
    assert np.abs(counts - 100).max() < 4 * np.sqrt(400 * 0.25 * 0.75)


def test_centroids_move_down_the_loss() -> None:
    styles = Styles(memory=8, lr=0.01, first=torch.tensor([0.0, 0.0]))
    styles.add(torch.tensor([1.0, 1.0]))
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(8, 2, generator=generator)
    for point in points:
        styles._keep(point, generator)
    before = float(clustering_loss(log_assignments(points, styles.centroids, 1.0)))
    for point in points[:3]:
        styles.learn(point, 1.0, generator)
    after = float(clustering_loss(log_assignments(points, styles.centroids, 1.0)))
    assert after < before


def test_needs_follow_threshold_and_inner_method() -> None:
    with pytest.raises(MissingResource, match="ostinato prepare reservoir"):
        adapt(small_model(), "reservoir")
    adapt(small_model(), "reservoir", threshold=1.0)
    with pytest.raises(MissingResource):
        adapt(small_model(), "reservoir", threshold=1.0, inner="dpcore")
    with pytest.raises(ConfigError, match="not itself"):
        adapt(small_model(), "reservoir", inner="reservoir")


def test_another_prepared_method_can_be_wrapped() -> None:
    settings = {"inner": "ecotta", "inner_settings": {"warm_steps": 2, "rank": 4}}
    images = torch.cat(small_batches(4, seed=9))
    given = prepare(small_model(), "reservoir", images, **settings)
    method = adapt(small_model(), "reservoir", prepared=given, **settings)
    for batch in small_batches(4):
        assert bool(method(batch).isfinite().all())


def test_weights_are_lent_and_come_back_even_after_an_error(prepared: State) -> None:
    method = adapt(small_model(), "reservoir", prepared=prepared, inner_settings={"lr": 1e-2})
    for images in batches_of_styles(3):
        method(images)
    weights, slots = method.inner.weights, method.slots
    assert weights is not None
    slots.park()
    before = {name: p.detach().clone() for name, p in weights.parameters.items()}
    parts = [state.part("weights").tensors for state in slots.states]
    shares = torch.softmax(torch.arange(float(len(parts))), 0)
    with suppress(RuntimeError), slots.lent(weights):
        mean = slots.mean(weights.parameters, shares)
        weights.import_state(mean)
        lent = {name: p.detach().clone() for name, p in weights.parameters.items()}
        raise RuntimeError("broken")
    assert not any(torch.equal(before[name], value) for name, value in lent.items())
    assert all(torch.equal(before[name], p) for name, p in weights.parameters.items())
    for name, value in mean.tensors.items():
        stacked = np.stack([part[name].numpy() for part in parts])
        expected = np.tensordot(shares.numpy(), stacked, 1)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_best_slot_is_the_one_with_the_highest_score(prepared: State) -> None:
    method = adapt(small_model(), "reservoir", prepared=prepared, inner_settings={"lr": 1e-2})
    for images in batches_of_styles(3):
        method(images)
    weights = method.inner.weights
    assert weights is not None
    method.slots.park()
    name = next(iter(weights.parameters))

    def score() -> float:
        return float(weights.parameters[name].detach().sum())

    sums = [float(s.part("weights").tensors[name].sum()) for s in method.slots.states]
    active = score()
    assert len(set(sums)) > 1
    assert method.slots.best(weights, score) == int(np.argmax(sums))
    assert score() == active
