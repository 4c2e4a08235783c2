"""Prompts: insertion and removal, pools, and the rules of DPCore, KFF and VDP."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from ostinato.api import adapt, prepare
from ostinato.checks import CLASSES, small_batches, small_model
from ostinato.errors import MissingResource, StateError
from ostinato.methods._anchor import Moments
from ostinato.methods._pools import PromptPool, class_weights, domain_weights, linked_groups
from ostinato.methods.dpcore import _coreset_weights
from ostinato.methods.vdp import _Homeostasis
from ostinato.ops.heads import final_features
from ostinato.ops.prompts import fresh_prompt, inserted, paste
from ostinato.ops.snapshot import State


def source_images() -> Tensor:
    return torch.cat(small_batches(4, seed=9))


@pytest.fixture(scope="module")
def anchor() -> State:
    return prepare(small_model(), "dpcore", source_images())


def test_each_image_may_have_its_own_prompts() -> None:
    model, images = small_model(), small_batches(1, size=2)[0]
    prompts = torch.randn(2, 1, 32)
    with torch.no_grad():
        with inserted(model, prompts):
            both = model(images)
        for n in range(2):
            with inserted(model, prompts[n]):
                torch.testing.assert_close(model(images[n : n + 1])[0], both[n])


def test_fresh_prompts_have_visual_prompt_tunings_range() -> None:
    prompt = fresh_prompt(small_model(), 500, generator=torch.Generator().manual_seed(0))
    bound = (6 / (3 * 64 + 32)) ** 0.5
    assert bound * 0.99 < float(prompt.abs().max()) <= bound
    assert abs(float(prompt.mean())) < 0.01


def test_coreset_weights_against_numpy() -> None:
    rng = np.random.default_rng(0)
    means, stds = rng.normal(size=(4, 6)), rng.uniform(size=(4, 6))
    mean, std = rng.normal(size=6), rng.uniform(size=6)
    gaps = np.linalg.norm(means - mean, axis=1) + np.linalg.norm(stds - std, axis=1)
    expected = np.exp(-gaps / 3) / np.exp(-gaps / 3).sum()
    pool = PromptPool()
    for m, s in zip(means, stds, strict=True):
        pool.add(torch.tensor(np.concatenate([m, s])), torch.zeros(2, 3))
    moments = Moments(torch.tensor(mean), torch.tensor(std))
    np.testing.assert_allclose(_coreset_weights(pool, moments, 3.0).numpy(), expected, rtol=1e-6)


def test_pulling_moves_each_pair_by_its_weight() -> None:
    pool = PromptPool()
    pool.add(torch.zeros(2), torch.zeros(1, 3))
    pool.add(torch.ones(2), torch.ones(1, 3))
    pool.pull(torch.tensor([0.25, 0.75]), torch.full((2,), 2.0), torch.full((1, 3), 4.0), 0.5, 1.0)
    keys, prompts = pool.both()
    torch.testing.assert_close(keys[:, 0], torch.tensor([0.25, 1.375]))
    torch.testing.assert_close(prompts[:, 0, 0], torch.tensor([1.0, 3.25]))


def test_rows_are_pulled_one_after_the_other_and_new_ones_added_last() -> None:
    pool = PromptPool()
    rows = torch.tensor([[1.0], [4.0], [2.0]])
    pool.take_in(rows[:1], rows[:1, None], torch.zeros(1, 0), 0.5)  # an empty pool: all new
    shares = torch.tensor([[0.0], [1.0], [0.5]])
    pool.take_in(rows, rows[:, None] * 10, shares, 0.5)
    keys, prompts = pool.both()
    # 1 to 4 by 1 x 0.5 is 2.5; on to 2 by 0.5 x 0.5. Prompts 1 to 40 by 1, on to 20 by 0.5.
    assert keys.flatten().tolist() == [2.375, 1.0]
    assert prompts.flatten().tolist() == [30.0, 10.0]


def gap_to(anchor: State, features: np.ndarray) -> float:
    mean, std = (anchor.tensors[n].numpy() for n in ("mean", "std"))
    first = np.linalg.norm(features.mean(0) - mean)
    return float(first + np.linalg.norm(features.std(0, ddof=1) - std))


def test_dpcore_decides_as_the_rule_says(anchor: State) -> None:
    """New or known, recomputed with numpy from the coreset alone."""
    method = adapt(small_model(), "dpcore", prepared=anchor, new_steps=30, temperature=0.5)
    kinds = []
    for images in small_batches(12):
        with torch.no_grad():
            before = gap_to(anchor, final_features(method.model, images)[0].numpy())
            expected_new = True
            if len(method.coreset):
                mean = final_features(method.model, images)[0].mean(0)
                std = final_features(method.model, images)[0].std(0)
                weights = _coreset_weights(method.coreset, Moments(mean, std), 0.5)
                blend = (weights[:, None, None] * method.coreset.both()[1]).sum(0)
                with inserted(method.model, blend):
                    after = gap_to(anchor, final_features(method.model, images)[0].numpy())
                expected_new = not after < 0.8 * before
        size = len(method.coreset)
        out = method.step(images)
        assert out.is_new == expected_new
        assert len(method.coreset) - size == expected_new  # every new pair is stored
        kinds.append(out.is_new)
    assert True in kinds
    assert False in kinds


def test_dpcore_takes_its_moments_from_sure_source_images() -> None:
    images = source_images()
    with torch.no_grad():
        features, logits = final_features(adapt(small_model(), "source").model, images)
    p = logits.double().softmax(1).numpy()
    entropy = -(p * np.log(p)).sum(1)
    kappa = float(np.median(entropy)) / np.log(CLASSES)
    found = prepare(small_model(), "dpcore", images, source_kappa=kappa)
    kept = features.numpy()[entropy < np.median(entropy)]
    assert 1 < len(kept) == found.values["images"] < len(images)
    np.testing.assert_allclose(found.tensors["mean"].numpy(), kept.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.tensors["std"].numpy(), kept.std(0, ddof=1), rtol=1e-4)
    unsure = prepare(small_model(), "dpcore", images, source_kappa=1e-9)
    assert unsure.values["images"] == len(images)
    usual = adapt(small_model(), "dpcore", prepared=found).config
    assert usual.source_kappa * np.log(1000) == pytest.approx(np.log(1000) / 2 - 1)


def test_dpcore_takes_many_steps_on_a_new_domain_and_one_on_a_known(
    anchor: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = adapt(small_model(), "dpcore", prepared=anchor, new_steps=4)
    taken = []
    original = method.update
    monkeypatch.setattr(method, "update", lambda b, o: taken.append(1) or original(b, o))
    assert method.step(small_batches(1)[0]).is_new
    assert len(taken) == 4
    method.config = method.config.replace(ratio=1e6)  # now everything is known
    method.coreset.add(torch.zeros(64), method.prompt)
    assert not method.step(small_batches(1)[0]).is_new
    assert len(taken) == 5


def test_dpcore_lowers_the_gap_with_nothing_but_prompts(anchor: State) -> None:
    images = small_batches(4)[3]
    losses = []
    for steps in (1, 30):
        method = adapt(small_model(), "dpcore", prepared=anchor, new_steps=steps)
        method(images)
        losses.append(method.last.loss)
        clean = small_model().state_dict()
        assert all(torch.equal(v, clean[k]) for k, v in method.model.base.state_dict().items())
    assert losses[1] < 0.9 * losses[0]


def test_prepared_files_of_another_kind_are_refused(anchor: State) -> None:
    with pytest.raises(MissingResource, match="ostinato prepare dpcore"):
        adapt(small_model(), "dpcore")
    with pytest.raises(StateError, match="Prepare again"):
        adapt(small_model(), "dpcore", prepared=State({"x": torch.zeros(1)}))


def test_domain_weights_against_numpy() -> None:
    rng = np.random.default_rng(1)
    keys, key = rng.normal(size=(5, 4)), rng.normal(size=4)
    distances = np.linalg.norm(keys - key, axis=1)
    radius = float(np.sort(distances)[2])
    raised = np.where(distances <= radius, np.exp(-distances / 3), 0)
    found = domain_weights(torch.tensor(keys), torch.tensor(key), radius, 3.0)
    assert found is not None
    np.testing.assert_allclose(found.numpy(), raised / raised.sum(), rtol=1e-6)
    assert domain_weights(torch.tensor(keys), torch.tensor(key), 1e-6, 3.0) is None


def test_class_weights_against_numpy() -> None:
    keys = np.array([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]])
    images = np.array([[1.0, 0.0, 0.0], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]])
    norm = np.linalg.norm
    cosine = images @ keys.T / (norm(images, axis=1)[:, None] * norm(keys, axis=1)[None])
    weights, known = class_weights(torch.tensor(keys), torch.tensor(images), 0.3, 0.5)
    for row in range(3):
        raised = np.where(cosine[row] > 0.3, np.exp(cosine[row] / 0.5), 0)
        assert bool(known[row]) == bool(raised.any())
        expected = raised / raised.sum() if raised.any() else np.zeros(2)
        np.testing.assert_allclose(weights[row].numpy(), expected, rtol=1e-6)
    assert known.tolist() == [True, True, False]


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 10_000))
def test_linked_groups_are_single_linkage(size: int, count: int, seed: int) -> None:
    count = min(count, size)
    points = torch.rand(size, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    apart = torch.cdist(points, points)
    mine = linked_groups(-apart, count)
    other = AgglomerativeClustering(count, metric="precomputed", linkage="single")
    labels = torch.tensor(other.fit_predict(apart.numpy()))
    assert torch.equal(mine[:, None] == mine[None], labels[:, None] == labels[None])


def test_a_full_pool_fuses_its_nearest_pairs() -> None:
    pool = PromptPool()
    for key, value in ((0.0, 1.0), (10.0, 2.0), (0.5, 3.0), (20.0, 4.0)):
        pool.add(torch.tensor([key]), torch.full((1, 1), value))
    pool.shrink(3)
    keys, prompts = pool.both()
    assert keys.flatten().tolist() == [0.25, 10.0, 20.0]
    assert prompts.flatten().tolist() == [2.0, 2.0, 4.0]


def test_kff_pools_follow_the_algorithm(anchor: State) -> None:
    batches = small_batches(2)
    method = adapt(
        small_model(), "kff", prepared=anchor, new_steps=2, max_entropy=99.0, max_classes=100
    )
    assert method.step(batches[0]).is_new
    assert len(method.domains) == 1
    assert len(method.classes) == 8  # the pool was empty: one per image
    with torch.no_grad():
        features = final_features(method.model, batches[1])[0]
    key = torch.cat([features.mean(0), features.std(0)])
    stored = method.domains.both()[0][0].clone()
    assert float((stored - key).norm()) < 25
    assert not method.step(batches[1]).is_new  # within the radius
    torch.testing.assert_close(method.domains.both()[0][0], stored + 0.1 * (key - stored))
    assert len(method.classes) == 8  # all alike above 0.005
    # The only domain's weight is one, so its prompt becomes what was just learned.
    torch.testing.assert_close(method.domains.both()[1][0], method.prompt.detach())


def test_kff_keeps_nothing_of_uncertain_images_and_bounds_its_pools(anchor: State) -> None:
    wary = adapt(small_model(), "kff", prepared=anchor, new_steps=1, max_entropy=1e-9)
    wary(small_batches(1)[0])
    assert len(wary.classes) == 0
    tight = adapt(
        small_model(), "kff", prepared=anchor, new_steps=1, domain_radius=1e-6, max_domains=2,
        max_classes=3, max_entropy=99.0,
    )  # fmt: skip
    for images in small_batches(5):
        assert tight.step(images).is_new
    assert (len(tight.domains), len(tight.classes)) == (2, 3)


def test_kff_moves_class_prompts_once_and_domain_prompts_every_step(anchor: State) -> None:
    method = adapt(small_model(), "kff", prepared=anchor, new_steps=3, weight_decay=0.0)
    starts: list[Tensor] = []
    original = method._choose_class_prompts

    def spy(predictions: Tensor) -> None:
        original(predictions)
        starts.append(method.class_prompts.detach().clone())

    method._choose_class_prompts = spy
    method(small_batches(1)[0])
    moved = (method.class_prompts.detach() - starts[0]).abs()
    assert float(moved.max()) == pytest.approx(1e-3, rel=1e-2)  # one AdamW step
    far = (method.prompt.detach() - method.start).abs()
    assert 0.15 < float(far.max()) <= 0.3 + 1e-3  # three of 0.1 each


def test_paste_adds_the_square_where_it_belongs() -> None:
    pixels = torch.rand(2, 3, 8, 12)
    prompt = torch.rand(3, 4, 4)
    out = paste(pixels, prompt, 0.5, (1.0, 0.0))
    expected = pixels.clone()
    expected[:, :, 4:, :4] += prompt
    assert torch.equal(out, expected)


def test_vdp_moves_prompts_alone_and_its_teacher_follows() -> None:
    images = small_batches(1)[0]
    method = adapt(small_model(), "vdp", lr=0.1, ema=0.9)
    assert torch.equal(method(images), adapt(small_model(), "source")(images))  # prompts were 0
    clean = small_model().state_dict()
    assert all(torch.equal(v, clean[k]) for k, v in method.model.base.state_dict().items())
    for name, student in method.trainable().items():
        assert float(student.detach().abs().max()) > 0.05
        torch.testing.assert_close(method.teacher.values[name], 0.1 * student.detach())


def test_homeostasis_against_its_formula() -> None:
    rng = np.random.default_rng(0)
    memory = _Homeostasis(torch.zeros(5), damping=1e-3)
    weight, value = np.zeros(5), np.zeros(5)
    for _ in range(2):
        start, gathered = value.copy(), np.zeros(5)
        for _ in range(3):
            gradient, change = rng.normal(size=5), rng.normal(size=5)
            gathered -= gradient * change
            value = value + change
            memory.record(torch.tensor(gradient), torch.tensor(change))
        weight += np.maximum(gathered / ((value - start) ** 2 + 1e-3), 0)
        memory.close(torch.tensor(value, dtype=torch.float32))
    now = rng.normal(size=5)
    expected = (weight * (now - value) ** 2).sum()
    assert float(memory.pull(torch.tensor(now))) == pytest.approx(expected, rel=1e-4)


def test_vdp_closes_a_domain_when_confidence_falls() -> None:
    method = adapt(small_model(), "vdp")
    images = small_batches(1)[0]
    method(images)
    assert method.last.events == ()
    method.seen["confidence"] = 1.5  # as if the last batch had been far surer
    method(images)
    assert method.last.events == ("confidence fell: the domain changed",)
    torch.testing.assert_close(method.memory.kept["anchor"], method.student.agnostic.detach())


@pytest.mark.parametrize("name", ["dpcore", "kff"])
def test_prompts_stand_behind_a_convolutional_stem_too(name: str) -> None:
    from ostinato.data.embedded import build_embedded

    torch.manual_seed(0)
    model = build_embedded(width=32, depth=2).eval()
    images = source_images()
    method = adapt(model, name, prepared=prepare(model, name, images), new_steps=3)
    # A token stands for 4 x 4 pixels, so the range is sqrt(6 / (3 * 16 + 32)).
    assert float(method.start.abs().max()) <= np.sqrt(6 / 80)
    assert float(method.start.abs().max()) > 0.9 * np.sqrt(6 / 80)
    source = {n: p.detach().clone() for n, p in model.named_parameters()}
    method(1 - images[:8])
    assert method.last.updated
    assert all(torch.equal(p, source[n]) for n, p in model.named_parameters())
    assert not torch.equal(method.prompt, method.start)
