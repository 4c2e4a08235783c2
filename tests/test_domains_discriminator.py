"""Deciding and learning: streams of synthetic domains, state, and errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ostinato.domains.discriminator import (
    Discriminator,
    DiscriminatorConfig,
    Evidence,
    make_discriminator,
)
from ostinato.errors import ConfigError, InputError, StateError, UnknownName
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.registry import DISCRIMINATORS
from ostinato.types import Decision

D = 60
# Directions at random: per dimension, two domains are about 4 apart (squared).
CENTRES = 1.4 * torch.randn(4, D, generator=torch.Generator().manual_seed(99))


def draw(domain: int, count: int, generator: torch.Generator, d: int = D) -> Tensor:
    """Images of a domain: a shared factor (content) and noise, total variance about 0.5."""
    content = torch.randn(count, 1, generator=generator) * 0.3
    return CENTRES[domain, :d] + content + 0.65 * torch.randn(count, d, generator=generator)


def make(**settings: Any) -> Discriminator:
    return make_discriminator(DiscriminatorConfig(**settings))


def feed(fdd: Discriminator, z: Tensor, **extra: Any) -> Decision:
    evidence = Evidence(z, **extra)
    decision = fdd.decide(evidence)
    fdd.update(evidence, decision)
    return decision


def stream(batch: int, order: str, each: int, seed: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Batches of an unbroken stream of images; a batch may straddle a change of domain."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.cat([draw(int(domain), each, generator) for domain in order])
    for start in range(0, len(images) - batch + 1, batch):
        yield int(order[(start + batch // 2) // each]), images[start : start + batch]


def same(a: State, b: State) -> bool:
    keys = a.tensors.keys() == b.tensors.keys()
    return (
        keys
        and all(torch.equal(a.tensors[k], b.tensors[k]) for k in a.tensors)
        and json.dumps(a.values) == json.dumps(b.values)
    )


def pairs_of(pairs: Counter[tuple[int, int]], true: int) -> int:
    """The domain that most batches of a true domain went to."""
    return max((count, found) for (t, found), count in pairs.items() if t == true)[1]


# -- the rule ------------------------------------------------------------------------------------


def of_one_piece(fdd: Discriminator, z: Tensor) -> bool:
    """Whether the halves of a batch lie within 2τ, chance taken off, as domain 0 measures."""
    halves = [z[: len(z) // 2].numpy(), z[len(z) // 2 :].numpy()]
    one, two = (half.mean(0) for half in halves)
    scatter = sum(((half - half.mean(0)) ** 2).sum(0) for half in halves)
    chance = scatter / (len(z) - 2) * sum(1 / len(half) for half in halves)
    apart = ((one - two) ** 2 - chance) / (0.999 * fdd.variance(0).numpy() + 0.001)
    return bool(apart.mean() <= 2 * fdd.config.threshold)


@example(25, 47968)  # halves of the new domain's batch lie apart by chance
@settings(max_examples=25, deadline=None)
@given(st.integers(25, 80), st.integers(0, 10**6))
def test_large_batches_follow_the_papers_rule(batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    fdd = make()
    first = draw(0, batch, generator)
    decision = feed(fdd, first)
    assert (decision.domain, decision.is_new, decision.distance) == (0, True, float("inf"))
    torch.testing.assert_close(fdd.mean(0), first.mean(0))
    torch.testing.assert_close(fdd.variance(0), torch.full((D,), 0.3))

    z = draw(0, batch, generator)
    chance = z.var(0) * (2 / batch)
    expected = (((z.mean(0) - first.mean(0)) ** 2 - chance) / (0.999 * 0.3 + 0.001)).mean()
    founds = float(expected) > fdd.config.threshold and of_one_piece(fdd, z)
    decision = feed(fdd, z)
    assert decision.distance == pytest.approx(float(expected), abs=1e-4)
    assert (decision.domain, decision.is_new, decision.evidence) == (founds, founds, batch)
    if decision.distance > fdd.config.threshold:  # a rare draw, and the end of the story
        return
    assert fdd.count(0) == 2 * batch

    other = draw(1, batch, generator)
    founds = of_one_piece(fdd, other)
    decision = feed(fdd, other)
    assert decision.distance > fdd.config.threshold
    assert (decision.domain, decision.is_new, decision.settled) == (founds, founds, founds)
    if founds:
        back = feed(fdd, draw(0, batch, generator))
        assert min(back.distances, key=lambda pair: pair[1])[0] == 0
        assert back.domain == 0 or back.distance > fdd.config.threshold
        assert [k for k, _ in feed(fdd, draw(1, batch, generator)).distances][:2] == [0, 1]


def test_plain_rule_of_the_paper_by_settings() -> None:
    generator = torch.Generator().manual_seed(1)
    fdd = make(correction=False, evidence=1, threshold=0.15)
    first, z = draw(0, 50, generator), draw(0, 50, generator)
    feed(fdd, first)
    expected = ((z.mean(0) - first.mean(0)) ** 2 / (0.999 * 0.3 + 0.001)).mean()
    assert feed(fdd, z).distance == pytest.approx(float(expected), rel=1e-4)


def test_score_is_what_a_decision_reports() -> None:
    generator = torch.Generator().manual_seed(2)
    fdd = make()
    assert fdd.score(torch.zeros(3, D)).shape == (0,)
    for domain in (0, 1, 2):
        feed(fdd, draw(domain, 30, generator))
    z = draw(1, 30, generator)
    assert [d for _, d in fdd.decide(Evidence(z)).distances] == fdd.score(z).tolist()
    found = fdd.posterior(z)
    assert found.shape == (30, 3)
    assert (found.argmax(1) == 1).all()
    torch.testing.assert_close(found.sum(1), torch.ones(30))


# -- batches of any size --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 10, 24, 25, 30, 70])
def test_every_batch_size_finds_the_same_domains(batch: int, seed: int) -> None:
    fdd = make()
    order = "0120312"
    pairs = Counter((true, feed(fdd, z).domain) for true, z in stream(batch, order, 210, seed))
    assert len(fdd.domains) == 4
    assert len({pairs_of(pairs, true) for true in range(4)}) == 4
    right = sum(pairs[true, pairs_of(pairs, true)] for true in range(4))
    assert right / pairs.total() > 0.8


@pytest.mark.parametrize("batch", [1, 4])
def test_one_domain_stays_one_for_ten_thousand_images(batch: int) -> None:
    fdd = make()
    generator = torch.Generator().manual_seed(3)
    unsettled = 0
    for _ in range(4000):
        unsettled += not feed(fdd, draw(0, batch, generator, d=12)).settled
    assert fdd.domains == (0,)
    assert unsettled < 80
    assert sum(t.numel() for t in fdd.export_state().tensors.values()) < 12 * 60


def test_a_batch_across_a_change_founds_nothing_and_teaches_nothing() -> None:
    generator = torch.Generator().manual_seed(4)
    fdd = make()
    feed(fdd, draw(0, 50, generator))
    feed(fdd, draw(1, 50, generator))
    before = fdd.export_state().clone()
    mixed = torch.cat([draw(1, 25, generator), draw(2, 25, generator)])
    decision = feed(fdd, mixed)
    assert not decision.is_new
    assert not decision.settled
    after = fdd.export_state()
    assert torch.equal(after.tensors["domains/mean"], before.tensors["domains/mean"])
    assert feed(fdd, draw(2, 50, generator)).is_new


def test_batches_that_always_mix_are_taken_as_they_are() -> None:
    generator = torch.Generator().manual_seed(5)
    fdd = make()
    feed(fdd, draw(0, 50, generator))
    decisions = [
        feed(fdd, torch.cat([draw(2, 25, generator), draw(3, 25, generator)])) for _ in range(6)
    ]
    assert [d.is_new for d in decisions] == [False, False, False, True, False, False]
    assert all(d.settled for d in decisions[3:])


def test_small_batches_switch_between_known_domains_within_the_evidence() -> None:
    fdd = make()
    for _, z in stream(50, "01", 200):
        feed(fdd, z)
    generator = torch.Generator().manual_seed(6)
    for _ in range(30):
        feed(fdd, draw(0, 1, generator))
    domains = [feed(fdd, draw(1, 1, generator)).domain for _ in range(25)]
    assert domains[12:] == [1] * 13
    assert fdd.domains == (0, 1)


def test_the_first_domain_rests_on_all_of_its_first_images() -> None:
    generator = torch.Generator().manual_seed(7)
    fdd, images = make(), draw(0, 25, generator)
    decisions = [feed(fdd, images[i : i + 5]) for i in range(0, 25, 5)]
    assert [d.is_new for d in decisions] == [True] + [False] * 4
    assert [d.settled for d in decisions] == [False] * 4 + [True]
    torch.testing.assert_close(fdd.mean(0), images.mean(0))
    assert fdd.count(0) == 25


# -- reading only, state --------------------------------------------------------------------------

CASES: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({}, 7),
    ({}, 30),
    ({"covariance": "full"}, 10),
    ({"covariance": "none", "threshold": 0.5}, 10),
    ({"update": "ema"}, 10),
    ({"kind": "oracle"}, 10),
    ({"kind": "single"}, 10),
    ({"kind": "random", "seed": 3}, 10),
    ({"kind": "confidence-jump"}, 10),
]


def extras(true: int, step: int) -> dict[str, Any]:
    return {"oracle": f"domain {true}", "confidence": lambda: 0.9 - 0.3 * true + 0.001 * step}


@pytest.mark.parametrize(("config", "batch"), CASES)
def test_deciding_changes_nothing_and_repeats(config: dict[str, Any], batch: int) -> None:
    fdd = make(**config)
    for step, (true, z) in enumerate(stream(batch, "0120", 70)):
        evidence = Evidence(z, **extras(true, step))
        before, copy = fdd.export_state().clone(), z.clone()
        decision = fdd.decide(evidence)
        assert fdd.decide(evidence) == decision
        assert same(before, fdd.export_state())
        assert torch.equal(z, copy)
        known = set(fdd.domains)
        fdd.update(evidence, decision)
        assert decision.domain in fdd.domains
        assert decision.is_new == bool(set(fdd.domains) - known)


@pytest.mark.parametrize(("config", "batch"), CASES)
def test_saved_and_loaded_goes_on_with_the_same_bits(
    config: dict[str, Any], batch: int, tmp_path: Any
) -> None:
    fdd = make(**config)
    for step, (true, z) in enumerate(stream(batch, "01201", 40)):
        if step % 3 == 0:
            save_state(tmp_path / "fdd.safetensors", fdd.export_state(), {})
            twin = make(**config)
            twin.import_state(load_state(tmp_path / "fdd.safetensors")[0])
        evidence = Evidence(z, **extras(true, step), image_size=(32, 32))
        ours, theirs = fdd.decide(evidence), twin.decide(evidence)
        assert ours == theirs
        fdd.update(evidence, ours)
        twin.update(evidence, theirs)
        assert same(fdd.export_state(), twin.export_state())
    fdd.reset()
    assert fdd.domains == ()
    assert same(fdd.export_state(), make(**config).export_state())


def test_an_import_is_independent_of_its_source() -> None:
    generator = torch.Generator().manual_seed(11)
    fdd, twin = make(), make()
    feed(fdd, draw(0, 30, generator))
    snapshot = fdd.export_state()
    twin.import_state(snapshot)
    copy = snapshot.clone()
    feed(twin, draw(0, 30, generator))
    feed(fdd, draw(0, 7, generator))
    assert same(copy, snapshot)


def test_states_that_do_not_fit_are_refused_whole() -> None:
    generator = torch.Generator().manual_seed(12)
    fdd = make()
    feed(fdd, draw(0, 30, generator))
    before = fdd.export_state().clone()
    foreign = make(kind="single")
    with pytest.raises(StateError, match="kind 'single'"):
        fdd.import_state(foreign.export_state())
    full = make(covariance="full")
    feed(full, draw(0, 30, generator))
    with pytest.raises(StateError, match="covariance 'diag'"):
        fdd.import_state(full.export_state())
    broken = before.clone()
    del broken.tensors["domains/mean"]
    with pytest.raises(StateError, match="lacks 'mean'"):
        fdd.import_state(broken)
    assert same(before, fdd.export_state())


# -- keeping the number of domains bounded --------------------------------------------------------


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_remove_merge_and_the_nearest_pair(covariance: str) -> None:
    generator = torch.Generator().manual_seed(13)
    fdd = make(covariance=covariance)
    for domain in (0, 1, 2, 3):
        feed(fdd, draw(domain, 30, generator))
    apart = torch.cdist(*[torch.stack([fdd.mean(k) for k in range(4)])] * 2)
    apart.fill_diagonal_(9e9)
    older, younger = divmod(int(apart.argmin()), 4)
    assert fdd.nearest_pair() == (younger, older)
    means, between = (fdd.mean(0) + fdd.mean(2)) / 2, (fdd.mean(0) - fdd.mean(2)) ** 2 / 4
    fdd.merge(2, into=0)
    assert fdd.domains == (0, 1, 3)
    assert fdd.count(0) == 60
    torch.testing.assert_close(fdd.mean(0), means)
    torch.testing.assert_close(fdd.variance(0), 0.3 + between)
    fdd.remove(1)
    assert fdd.domains == (0, 3)
    with pytest.raises(InputError, match=r"no domain 1. Known: 0, 3"):
        fdd.mean(1)
    with pytest.raises(InputError, match="into itself"):
        fdd.merge(3, into=3)
    again = feed(fdd, draw(1, 30, generator))
    assert (again.domain, again.is_new) == (4, True)


def test_a_pair_needs_two_domains() -> None:
    with pytest.raises(InputError, match="there are 0"):
        make().nearest_pair()


def test_a_domain_may_be_retired_between_decision_and_update() -> None:
    generator = torch.Generator().manual_seed(14)
    fdd = make()
    feed(fdd, draw(0, 30, generator))
    evidence = Evidence(draw(1, 30, generator))
    decision = fdd.decide(evidence)
    fdd.remove(0)
    fdd.update(evidence, decision)
    assert fdd.domains == (1,)
    evidence = Evidence(draw(1, 5, generator))
    decision = fdd.decide(evidence)
    fdd.remove(1)
    before = fdd.export_state().clone()
    with pytest.raises(InputError, match="no domain 1"):
        fdd.update(evidence, decision)
    assert same(before, fdd.export_state())
    assert feed(fdd, draw(1, 5, generator)).domain == 2


def test_removing_the_provisional_domain_starts_afresh() -> None:
    generator = torch.Generator().manual_seed(15)
    fdd = make()
    feed(fdd, draw(0, 5, generator))
    fdd.remove(0)
    images = draw(1, 60, generator)
    for start in range(0, 60, 5):
        feed(fdd, images[start : start + 5])
    assert fdd.domains == (1,)
    assert float((fdd.mean(1) - CENTRES[1]).abs().mean()) < 0.2


# -- variants -------------------------------------------------------------------------------------


def test_every_variant_is_registered_and_declares_its_needs() -> None:
    assert DISCRIMINATORS.names() == ["confidence-jump", "fdd", "oracle", "random", "single"]
    needs = {name: make(kind=name).needs for name in DISCRIMINATORS}
    assert needs.pop("oracle") == {"domain labels"}
    assert set(needs.values()) == {frozenset()}
    with pytest.raises(UnknownName, match="Did you mean 'oracle'"):
        make(kind="orcale")


def test_oracle_follows_the_names() -> None:
    fdd = make(kind="oracle")
    generator = torch.Generator().manual_seed(16)
    names = ["fog", "snow", "fog", "rain", "snow"]
    found = [feed(fdd, draw(0, 2, generator), oracle=name).domain for name in names]
    assert found == [0, 1, 0, 2, 1]
    fdd.merge(1, into=2)
    assert feed(fdd, draw(0, 2, generator), oracle="snow").domain == 2
    fdd.remove(0)
    assert feed(fdd, draw(0, 2, generator), oracle="fog").domain == 3
    with pytest.raises(InputError, match="domain's name"):
        fdd.decide(Evidence(torch.zeros(1, D)))


def test_confidence_jumps_open_domains_and_confidence_is_asked_once() -> None:
    fdd = make(kind="confidence-jump", jump=0.2)
    asked = []

    def confident(value: float) -> dict[str, Any]:
        return {"confidence": lambda: asked.append(value) or value}

    found = [
        feed(fdd, torch.zeros(3, 4), **confident(c)).domain for c in (0.9, 0.85, 0.5, 0.55, 0.9)
    ]
    assert found == [0, 0, 1, 1, 2]
    assert len(asked) == 5
    with pytest.raises(InputError, match="needs the model's confidence"):
        fdd.decide(Evidence(torch.zeros(3, 4)))


def test_random_routing_keeps_the_domains_of_the_discriminator() -> None:
    fdd, lot = make(), make(kind="random", seed=1)
    drawn, right = [], []
    for _, z in stream(30, "012012", 240):
        right.append(feed(fdd, z).domain)
        drawn.append(feed(lot, z).domain)
        assert torch.equal(fdd._domains.mean, lot._domains.mean)
    assert fdd.domains == lot.domains == (0, 1, 2)
    agree = sum(a == b for a, b in zip(right, drawn, strict=True)) / len(right)
    assert agree < 0.75
    assert set(drawn[-20:]) == {0, 1, 2}


def test_single_has_one_domain_whatever_comes() -> None:
    fdd = make(kind="single")
    assert {feed(fdd, z).domain for _, z in stream(10, "0123", 50)} == {0}


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.full((2, D), float("nan")), "2 of 2 descriptors are not finite"),
        (torch.cat([torch.zeros(2, D), torch.full((1, D), float("inf"))]), "1 of 3"),
        (torch.zeros(0, D), r"\(B, 60\) with B ≥ 1, not \(0, 60\)"),
        (torch.zeros(D), "B, 60"),
        (torch.zeros(2, D + 1), r"not \(2, 61\)"),
        (torch.zeros(2, D, dtype=torch.float64), "float32, not torch.float64"),
    ],
)
def test_bad_descriptors_are_refused_and_change_nothing(z: Tensor, message: str) -> None:
    fdd = make()
    decision = feed(fdd, torch.zeros(3, D))
    before = fdd.export_state().clone()
    with pytest.raises(InputError, match=message):
        fdd.decide(Evidence(z))
    with pytest.raises(InputError, match=message):
        fdd.update(Evidence(z), decision)
    assert same(before, fdd.export_state())


def test_another_image_size_is_described_in_the_first_ones() -> None:
    small, large = torch.rand(30, 3, 32, 32), torch.rand(30, 3, 40, 32)
    fdd = make()
    feed(fdd, fdd.describe(small), image_size=(32, 32))
    smooth = F.interpolate(large, size=(32, 32), mode="bilinear", antialias=True)
    assert torch.equal(fdd.describe(large), fdd.describe(smooth))
    feed(fdd, fdd.describe(large), image_size=(40, 32))
    again = make()
    again.import_state(fdd.export_state())
    assert torch.equal(again.describe(large), fdd.describe(large))
    fdd.reset()
    assert not torch.equal(fdd.describe(large), again.describe(large))

    free = make(descriptor="rgb-histogram")
    feed(free, free.describe(small), image_size=(32, 32))
    assert torch.equal(free.describe(large), make(descriptor="rgb-histogram").describe(large))


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"threshold": 0}, {"evidence": 0}, {"route": "sample"}, {"covariance": "banded"}):
        with pytest.raises(ConfigError):
            DiscriminatorConfig.parse(wrong)
