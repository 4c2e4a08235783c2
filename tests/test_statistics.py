"""Source statistics, alignment, the collapse guard, losses."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from ostinato.api import collect_statistics
from ostinato.checks import small_batches, small_model
from ostinato.errors import ConfigError, MissingResource
from ostinato.methods.dual_expert._guard import CollapseGuard
from ostinato.ops._tensors import read_tensors
from ostinato.ops.features import FeatureTaps
from ostinato.ops.losses import (
    alignment,
    confident_entropy,
    entropy_threshold,
    flatten_logits,
    softmax_entropy,
)
from ostinato.ops.optim import cosine, total_norm
from ostinato.ops.statistics import SourceStatistics, check_fits
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


def test_no_flipped_bit_in_a_statistics_file_passes(tmp_path, statistics):
    path = tmp_path / "s.safetensors"
    statistics.save(path)
    whole = path.read_bytes()
    draw = random.Random(0)
    header = int.from_bytes(whole[:8], "little")
    places = [draw.randrange(8 + header) for _ in range(60)]
    places += [draw.randrange(8 + header, len(whole)) for _ in range(60)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(MissingResource):
            SourceStatistics.load(path)


def test_statistics_of_earlier_versions_have_no_checksum_and_are_read(tmp_path, statistics):
    path = tmp_path / "s.safetensors"
    statistics.save(path)
    tensors, meta = read_tensors(path)
    path.write_bytes(save(tensors, {"format": "ostinato-statistics", "info": meta["info"]}))
    loaded = SourceStatistics.load(path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.means, statistics.means, strict=True))


def test_statistics_of_another_model_are_refused(statistics):
    with pytest.raises(ConfigError, match="of another model"):
        check_fits(statistics, 12)


def test_too_few_images():
    with pytest.raises(ConfigError, match="at least 2 images"):
        collect_statistics(small_model(), torch.rand(1, 3, 32, 32))


def test_alignment_equals_its_formula():
    rng, widths = np.random.default_rng(0), (4, 3, 4)
    features = [rng.normal(size=(6, width)) for width in widths]
    means, stds = ([rng.uniform(size=width) for width in widths] for _ in range(2))
    source = SourceStatistics(*(tuple(map(torch.tensor, one)) for one in (means, stds)), images=9)
    expected = np.mean(
        [
            np.linalg.norm(feature.mean(0) - mean) + np.linalg.norm(feature.std(0, ddof=1) - std)
            for feature, mean, std in zip(features, means, stds, strict=True)
        ]
    )
    found = alignment([torch.tensor(feature) for feature in features], source.means, source.stds)
    assert float(found) == pytest.approx(expected, rel=1e-6)


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
    assert guard.good(1) == verdicts.count("good") > 0
    collapsed = torch.full((10,), 0.01)  # not all of it: nought of nought would count as bad
    collapsed[0] = 0.91
    copy = CollapseGuard(window=40, tolerance=0.8)
    copy.import_state(guard.export_state().clone())
    first = [guard.observe(1, collapsed, 10) for _ in range(10)]
    assert "bad" in first
    assert [copy.observe(1, collapsed, 10) for _ in range(10)] == first
    assert copy.good(1) == guard.good(1)
    assert guard.strike(1) == 1
    assert guard.good(1) == 0
    assert guard.observe(1, collapsed, 10) == "learning"
    # Collapsed again before the mean is whole: no state to come back to.
    assert [guard.observe(1, collapsed, 10) for _ in range(6)] == ["learning"] * 2 + ["bad"] * 4
    assert guard.good(1) == 0


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
