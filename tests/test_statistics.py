"""Source statistics, alignment, moments of small batches, the collapse guard, losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.api import collect_statistics
from ostinato.checks import small_batches, small_model
from ostinato.errors import ConfigError, MissingResource
from ostinato.ops.features import FeatureTaps
from ostinato.ops.guard import CollapseGuard
from ostinato.ops.leash import Leash
from ostinato.ops.losses import (
    confident_entropy,
    entropy_threshold,
    flatten_logits,
    softmax_entropy,
)
from ostinato.ops.optim import cosine, total_norm
from ostinato.ops.pace import Pace
from ostinato.ops.statistics import (
    RunningMoments,
    SourceStatistics,
    alignment,
    check_fits,
    excess,
    moments,
)
from ostinato.ops.trainable import norm_parameters


def test_collected_statistics_equal_numpy_over_all_images():
    model, images = small_model(), torch.cat(small_batches(3))
    stats = collect_statistics(model, images, batch_size=5)
    with torch.no_grad(), FeatureTaps(model) as taps:
        model((images - 0.5) / 0.5)
    for mean, std, feature in zip(stats.means, stats.stds, taps.features, strict=True):
        np.testing.assert_allclose(mean, feature.numpy().mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(std, feature.numpy().std(0, ddof=1), rtol=1e-3, atol=1e-6)
    assert stats.images == len(images)


def test_collecting_leaves_the_model_as_it_was():
    model = small_model().train()
    collect_statistics(model, torch.rand(4, 3, 32, 32))
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_statistics_file_round_trip(tmp_path, statistics):
    path = tmp_path / "s.safetensors"
    statistics.save(path)
    loaded = SourceStatistics.load(path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.means, statistics.means, strict=True))
    assert loaded.images == statistics.images
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(MissingResource, match="damaged"):
        SourceStatistics.load(path)
    with pytest.raises(MissingResource, match="collect_statistics"):
        SourceStatistics.load(tmp_path / "none")


def test_statistics_of_another_model_are_refused(statistics):
    with pytest.raises(ConfigError, match="of another model"):
        check_fits(statistics, 12)


def test_too_few_images():
    with pytest.raises(ConfigError, match="at least 2 images"):
        collect_statistics(small_model(), torch.rand(1, 3, 32, 32))


def test_alignment_equals_its_formula():
    rng = np.random.default_rng(0)
    feature, mean, std = rng.normal(size=(6, 4)), rng.normal(size=4), rng.uniform(size=4)
    source = SourceStatistics((torch.tensor(mean),), (torch.tensor(std),), images=9)
    expected = np.linalg.norm(feature.mean(0) - mean) + np.linalg.norm(feature.std(0, ddof=1) - std)
    assert float(alignment(moments([torch.tensor(feature)]), source)) == pytest.approx(expected)


@given(st.integers(1, 7), st.integers(2, 6))
def test_running_moments_equal_those_of_all_recent_images(size, count):
    generator = torch.Generator().manual_seed(size * 10 + count)
    parts = [torch.randn(size, 3, generator=generator, dtype=torch.float64) for _ in range(count)]
    running = RunningMoments(fill=1000)
    for part in parts:
        mean, std = running.blend(0, [part])[0]
    everything = torch.cat(parts)
    assert torch.allclose(mean, everything.mean(0))
    if len(everything) > 1:
        assert torch.allclose(std, everything.std(0).clamp_min(1e-3), atol=1e-6)


def test_running_moments_reach_the_present_images_alone():
    running = RunningMoments(fill=8)
    past = torch.randn(2, 3, requires_grad=True)
    running.blend(0, [past])
    now = torch.randn(2, 3, requires_grad=True)
    mean, std = running.blend(0, [now])[0]
    (mean.sum() + std.sum()).backward()
    assert past.grad is None
    assert now.grad is not None
    assert bool(now.grad.isfinite().all())


def test_running_moments_state():
    running, other = RunningMoments(8), RunningMoments(8)
    running.blend(3, [torch.randn(2, 4), torch.randn(2, 5)])
    other.import_state(running.export_state().clone())
    batch = [torch.randn(2, 4), torch.randn(2, 5)]
    first, second = running.blend(3, batch), other.blend(3, batch)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))


triples = st.lists(
    st.tuples(st.floats(-9, 9), st.floats(0, 3), st.floats(0.1, 3)), min_size=1, max_size=6
)


@given(st.lists(triples, min_size=1, max_size=3), st.floats(0, 4))
def test_excess_equals_numpy(blocks, tolerance):
    """Against the formula, block by block; source means are 0.5."""
    expected = []
    for block in blocks:
        mean, std, source = (np.array(column) for column in zip(*block, strict=True))
        allowed = tolerance * np.sqrt(np.maximum(source**2 - std**2, 0))
        off = np.maximum(np.abs(mean - 0.5) - allowed, 0) / source
        expected.append(max(np.sqrt((off**2).mean()), 1e-6))
    batch, stds = [], []
    for block in blocks:
        mean, std, source = (torch.tensor(column) for column in zip(*block, strict=True))
        batch.append((mean, std))
        stds.append(source)
    statistics = SourceStatistics(
        tuple(torch.full_like(s, 0.5) for s in stds), tuple(stds), images=9
    )
    found = float(excess(batch, statistics, tolerance))
    assert found == pytest.approx(np.mean(expected), rel=1e-3, abs=1e-4)


def test_excess_lets_frames_of_one_street_be():
    source = SourceStatistics((torch.zeros(3),), (torch.ones(3),), images=9)
    mean = torch.full((3,), 1.9, requires_grad=True)
    street = excess([(mean, torch.zeros(3))], source, 2.0)
    street.backward()
    assert street.item() <= 1e-6
    assert not mean.grad.any()  # within what source images themselves are off
    crowd = excess([(mean, torch.ones(3))], source, 2.0)
    assert crowd.item() == pytest.approx(1.9)  # images from all over have no such excuse


def test_excess_cannot_be_lowered_by_making_images_alike():
    source = SourceStatistics((torch.zeros(3),), (torch.ones(3),), images=9)
    std = torch.full((3,), 0.5, requires_grad=True)
    mean = torch.full((3,), 4.0, requires_grad=True)
    excess([(mean, std)], source, 2.0).backward()
    assert std.grad is None
    assert mean.grad.any()


@given(st.lists(st.integers(0, 2), max_size=40), st.floats(0.5, 100))
def test_pace_falls_with_a_groups_own_updates(updates, settle):
    pace, other = Pace(settle), Pace(settle)
    for group in updates:
        pace.count(group)
    other.import_state(pace.export_state())
    for group in range(3):
        had = updates.count(group)
        assert pace.share(group) == pytest.approx(settle / (settle + had))
        assert other.share(group) == pace.share(group)
    pace.forget(1)
    assert pace.share(1) == 1.0
    assert Pace(None).share(0) == 1.0


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=6))
def test_entropy_equals_numpy(values):
    p = np.exp(np.array(values) - max(values))
    p /= p.sum()
    expected = -(p * np.log(np.maximum(p, 1e-300))).sum()
    assert float(softmax_entropy(torch.tensor([values]))) == pytest.approx(expected, abs=1e-4)


def test_confident_entropy_keeps_those_below_and_divides_by_all():
    logits = torch.tensor([[9.0, 0.0], [0.1, 0.0]])
    threshold = entropy_threshold(0.4, 2)
    loss, used = confident_entropy(logits, threshold)
    assert int(used) == 1
    assert float(loss) == pytest.approx(float(softmax_entropy(logits)[0]) / 2)
    assert threshold == pytest.approx(0.4 * math.log(2))
    assert entropy_threshold(0.4, 1000, "nats") == 0.4


def test_weighted_entropy_lets_the_surest_lead():
    logits = torch.tensor([[9.0, 0.0], [2.0, 0.0], [0.1, 0.0]])
    threshold = 0.6
    entropy = softmax_entropy(logits).numpy().astype(float)
    weight = np.where(entropy < threshold, np.exp(threshold - entropy), 0)
    loss, used = confident_entropy(logits, threshold, weighted=True)
    assert int(used) == 2
    assert float(loss) == pytest.approx(float((weight * entropy).sum()) / 3, rel=1e-5)


def test_pixels_are_items():
    logits = torch.randn(2, 3, 4, 5)
    flat = flatten_logits(logits)
    assert torch.equal(flat[7], logits[0, :, 1, 2])


def test_guard_tells_collapse_from_noise_and_remembers():
    generator = torch.Generator().manual_seed(0)
    guard = CollapseGuard(window=40, tolerance=0.8)
    verdicts = []
    for _ in range(30):
        noisy = torch.rand(10, generator=generator)
        verdicts.append(guard.observe(1, noisy / noisy.sum(), images=10))
    assert verdicts[0] == "learning"
    assert "bad" not in verdicts
    collapsed = torch.zeros(10)
    collapsed[0] = 1
    copy = CollapseGuard(window=40, tolerance=0.8)
    copy.import_state(guard.export_state().clone())
    first = [guard.observe(1, collapsed, 10) for _ in range(10)]
    assert "bad" in first
    assert [copy.observe(1, collapsed, 10) for _ in range(10)] == first
    assert guard.strike(1) == 1
    assert guard.observe(1, collapsed, 10) == "learning"


def test_leash_follows_its_formula_and_continues():
    leash, copy = Leash(slack=0.2, rate=0.5), Leash(slack=0.2, rate=0.5)
    values = [4.0, 3.0, 3.4, 3.8, 3.0]
    average, best = values[0], values[0]
    for value in values:
        average += 0.5 * (value - average)
        best = min(best, average)
        expected = min(max(1 - (average / best - 1) / 0.2, 0), 1)
        copy.import_state(leash.export_state().clone())
        given = leash.allow(2, torch.tensor(value))
        assert float(given) == pytest.approx(expected, abs=1e-5)
        assert torch.equal(copy.allow(2, torch.tensor(value)), given)
    leash.forget(2)
    assert float(leash.allow(2, torch.tensor(100.0))) == 1


def test_cosine_and_norm():
    assert cosine(20, 10) == pytest.approx(0)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert float(total_norm([weight])) == pytest.approx(5)
    assert float(total_norm([])) == 0


def test_norm_parameters_by_block():
    names = norm_parameters(small_model(), blocks=range(0, 1))
    assert names
    assert all(name.startswith("blocks.0.") for name in names)
    assert any(name.startswith("norm.") for name in norm_parameters(small_model()))


def test_norms_of_a_numbered_stem_are_in_no_block() -> None:
    from ostinato.data.embedded import build_embedded

    found = norm_parameters(build_embedded(width=32, depth=2), blocks=range(2))
    assert {name.split(".")[0] for name in found} == {"blocks"}
    assert len(found) == 2 * 2 * 2
