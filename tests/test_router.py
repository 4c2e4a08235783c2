"""Routing of single images: whitening, splitting, founding, merging, bounds and state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostinato.domains._parting import parts
from ostinato.domains._splitting import split_off
from ostinato.domains.router import Router
from ostinato.domains.verdict import FAR, LEAST, SOURCE, View, fresh
from ostinato.errors import StateError
from ostinato.ops.snapshot import State
from ostinato.ops.whitening import Content, _bend, _even, _held_out, _shrunk, _whitener, _within

WIDTH = 24


def correlated(count: int, seed: int, width: int = WIDTH) -> Tensor:
    """Descriptors whose numbers depend on one another, as those of images do."""
    mix = torch.randn(width, width, generator=torch.Generator().manual_seed(5)) / width**0.5
    mix = mix + torch.eye(width)
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) @ mix


def shift(number: int, size: float = 4.0) -> Tensor:
    """Where a domain lies; different numbers, different directions."""
    way = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1000 + number))
    return size * way


@pytest.fixture(scope="module")
def content() -> Content:
    return Content.of(correlated(400, seed=0))


@pytest.fixture
def router(content: Content) -> Router:
    return Router(content, enough=10)


# Whitening.


def test_whitening_gives_the_identity():
    values = correlated(2000, seed=1).double()
    covariance = values.T @ values / len(values)
    matrix = _whitener(covariance)
    assert torch.allclose(
        matrix.T @ _shrunk(covariance) @ matrix, torch.eye(WIDTH).double(), atol=1e-9
    )
    diagonal = torch.diag(torch.rand(WIDTH).double() + 0.5)  # which shrinking leaves alone
    rows = torch.randn(
        50_000, WIDTH, dtype=torch.double, generator=torch.Generator().manual_seed(0)
    )
    placed = rows @ diagonal.sqrt() @ _whitener(diagonal)
    assert torch.allclose(placed.T @ placed / len(placed), torch.eye(WIDTH).double(), atol=0.05)


def test_the_unit_is_measured_on_images_that_the_coordinates_did_not_see():
    few = correlated(2 * WIDTH, seed=2).double()
    few = (few - few.mean(0)) / few.std(0)
    bent = _bend(few @ _even(_within([few])))
    matrix = _whitener(_within([bent]))
    seen = float(((bent - bent.mean(0)) @ matrix).square().sum(1).mean()) / WIDTH
    assert _held_out([few], matrix) > 1.1 * seen
    assert _held_out([few[:9]], matrix) == 1.0


def test_clean_images_lie_around_zero_with_spread_one():
    content = Content.of(correlated(1000, seed=3), [correlated(200, seed=5) * 2 + 3])
    placed = content.place(correlated(1000, seed=6))
    assert float(placed.mean(0).abs().max()) < 0.2
    assert 0.3 < float(placed.square().mean()) < 1.5


def test_altered_images_tell_how_content_varies_not_where_it_lies():
    clean = correlated(400, seed=0)
    wide = correlated(400, seed=7).clone()
    wide[:, 0] *= 8

    def apart(content: Content, values: Tensor) -> float:
        placed = content.place(values)
        return float((placed - placed.mean(0)).square().mean())

    plain = apart(Content.of(clean), wide)
    assert apart(Content.of(clean, [wide + 1]), wide) < 0.8 * plain
    groups = [clean.double(), wide.double()]
    moved = [clean.double(), wide.double() + 50]
    assert torch.allclose(_within(groups), _within(moved))


def test_numbers_that_never_vary_do_not_blow_up():
    values = correlated(100, seed=4)
    values[:, 3] = 7.0
    content = Content.of(values)
    other = values[:1].clone()
    other[:, 3] += 1e-3
    assert bool(content.place(other).isfinite().all())


# Splitting.


def test_fresh_counts_each_image_once():
    rows = correlated(6, seed=0).double()
    batch = torch.cat([rows[:3], rows[1:2], rows[4:5] + 1e-4])
    assert fresh(batch, rows[4:]).tolist() == [True, True, True, False, False]
    assert fresh(batch, rows[:0]).tolist() == [True, True, True, False, True]


def gaussian(count: int, seed: int, width: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.double)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_one_group_is_not_split(seed, fixed):
    assert split_off(gaussian(120, seed), torch.zeros(16).double(), 20, 5.5, fixed=fixed) is None


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_group_far_away_is_split_off(fixed, late):
    rows = gaussian(100, seed=0)
    mine = torch.arange(70, 100) if late else torch.arange(0, 90, 3)
    rows[mine] += 3.0  # 12 deviations along the diagonal
    group = split_off(rows, torch.zeros(16).double(), 20, 5.5, fixed=fixed)
    assert group is not None
    assert group.tolist() == mine.tolist()


def test_fewer_images_found_a_domain_where_they_lie_farther_off():
    mean = torch.zeros(16).double()

    def found(count: int, off: float) -> int:
        rows = gaussian(60, seed=0)
        rows[:count] += off / 4  # along the diagonal, so many deviations
        group = split_off(rows, mean, 20, 5.5, fixed=True)
        return 0 if group is None else len(group)

    assert found(LEAST - 1, 20) == 0
    assert found(LEAST, 20) == LEAST
    assert found(LEAST, 7) == 0
    assert found(30, 7) >= 27


def test_images_that_hardly_differ_count_as_fewer():
    rows = gaussian(60, seed=0)
    rows[:30] = rows[0] + 7 / 4 + 0.1 * gaussian(30, seed=1)
    assert split_off(rows, torch.zeros(16).double(), 20, 5.5, fixed=True) is None


def test_a_split_looks_at_the_latest_images():
    rows = torch.cat([gaussian(300, seed=0), gaussian(30, seed=1) + 3.0])
    group = split_off(rows, torch.zeros(16).double(), 20, 5.5, fixed=True)
    assert group is not None
    assert group.tolist() == list(range(300, 330))


# Streams.


def stream(kind: str, each: int = 60, domains: int = 3) -> list[tuple[Tensor, list[int]]]:
    """Batches with their true domains; 0 is clean."""
    truth = [domain for domain in range(domains + 1) for _ in range(each)]
    if kind != "blocks":
        order = torch.randperm(len(truth), generator=torch.Generator().manual_seed(3))
        truth = [truth[i] for i in order.tolist()]
    values = correlated(len(truth), seed=7)
    values = torch.stack([v + (shift(d) if d else 0) for v, d in zip(values, truth, strict=True)])
    size = 1 if kind == "single" else 20
    return [(values[at : at + size], truth[at : at + size]) for at in range(0, len(truth), size)]


@pytest.mark.parametrize("kind", ["blocks", "mixed", "single"])
def test_streams_find_their_domains(router, kind):
    batches = stream(kind)
    for values, _ in batches:
        router.observe(values)
    assert len(router.domains) == 3
    pairs = []
    view = router.view()
    for values, truth in batches:  # owners once everything is known
        found = view.decide(router.content.place(values)).owners()
        pairs += list(zip(truth, found, strict=True))
    names = {
        true: max(set(own), key=own.count)
        for true in range(4)
        if (own := [found for t, found in pairs if t == true])
    }
    assert names[0] == SOURCE
    assert len(set(names.values())) == 4
    right = sum(names[true] == found for true, found in pairs)
    assert right >= 0.98 * len(pairs)


def test_a_batch_that_founds_a_domain_belongs_to_it(router):
    change = router.observe(correlated(20, seed=8) + shift(1))
    assert change.founded == {1: 0}
    assert change.owners == [1] * 20
    again = router.observe(correlated(20, seed=9) + shift(1))
    assert again.founded == {}
    assert again.owners == [1] * 20


def test_clean_images_found_nothing(router):
    values = correlated(600, seed=11)
    for part in values.split(20):
        change = router.observe(part)
        assert change.founded == {}
        assert set(change.owners) == {SOURCE}
    assert router.domains == ()


def test_repeated_images_found_nothing(router):
    few = correlated(5, seed=12) + shift(1)
    for _ in range(20):
        change = router.observe(few)
        assert change.founded == {}
        assert change.owners == [SOURCE] * 5
    assert change.known == [False] * 5
    assert len(router.recent) == 5


def test_an_image_that_nothing_explains_goes_to_the_source(router):
    router.observe(correlated(40, seed=13) + shift(1))
    far = router.content.place(correlated(3, seed=14) + 10 * shift(2))
    verdict = router.view().decide(far)
    assert verdict.far.all()
    assert float(verdict.distance.min()) > FAR
    assert verdict.owners() == [SOURCE] * 3


def test_ever_new_styles_stay_within_the_limit(content):
    router = Router(content, enough=10, limit=4)
    for number in range(15):
        change = router.observe(correlated(20, seed=100 + number) + shift(number))
        assert len(router.domains) <= 4
        assert set(change.owners) <= {SOURCE, *router.domains}
        assert set(change.founded) <= set(router.domains)
    assert len(router.recent) <= router.memory


def test_memory_of_descriptors_is_bounded(content):
    router = Router(content, enough=10, memory=64)
    for part in correlated(300, seed=15).split(50):
        router.observe(part)
    assert len(router.recent) == len(router.owner) == 64


def test_domains_that_prove_to_be_one_are_merged(router):
    router.observe(correlated(30, seed=16) + shift(1))
    row = router.ids.index(1)
    router._move((router.owner == 1).nonzero()[:15, 0], 1, 2)  # as if one had been taken for two
    router.next_id = 3
    assert router.domains == (1, 2)
    merged: list[tuple[int, int]] = []
    for part in (correlated(160, seed=17) + shift(1)).split(20):
        merged += router.observe(part).merged
    assert merged == [(2, 1)]
    assert router.domains == (1,)
    assert float(router.counts[row]) == 190


def test_a_domain_that_loses_its_images_in_a_renewal_is_gone(router):
    """An empty domain has no mean; standing at the source's it would take its images."""
    router.observe(correlated(40, seed=16) + shift(1))
    router.next_id = 3
    router._move((router.owner == 1).nonzero()[:2, 0], 1, 2)
    router.sums[2] += 2 * (router.content.place(shift(3)[None])[0] - router.sums[2] / 2)
    router._view = None  # a mean that explains none of its images any more
    change = router.observe(correlated(100, seed=17) + shift(1))
    assert change.merged == ((2, 1),)
    assert router.domains == (1,)
    assert float(router.counts[1]) == 140
    clean = router.view().decide(router.content.place(correlated(100, seed=18)))
    assert clean.owners() == [SOURCE] * 100


def test_deciding_changes_nothing(router):
    router.observe(correlated(40, seed=19) + shift(1))
    before = router.export_state().clone()
    view = router.view()
    parts = [tensor.clone() for tensor in (view.means, view.spreads, view.counts, view.mix)]
    view.decide(router.content.place(correlated(40, seed=20) + shift(2)))
    after = router.export_state()
    assert all(torch.equal(tensor, after.tensors[name]) for name, tensor in before.tensors.items())
    assert before.values == after.values
    router.observe(correlated(40, seed=20) + shift(2))  # what was published stays as it was
    now = (view.means, view.spreads, view.counts, view.mix)
    assert all(torch.equal(a, b) for a, b in zip(parts, now, strict=True))


def test_a_forgotten_domain_is_the_source_s_again(router):
    router.observe(correlated(40, seed=19) + shift(1))
    router.remove(1)
    assert router.domains == ()
    assert router.view().ids == (SOURCE,)
    assert not router.view().means.any()


# State.


def test_a_state_continues_to_the_same_result(router, content):
    batches = [values for values, _ in stream("mixed", each=80)]
    half = len(batches) // 2
    for values in batches[:half]:
        router.observe(values)
    other = Router(content, enough=10)
    other.import_state(router.export_state().clone())
    for values in batches[half:]:
        assert router.observe(values) == other.observe(values)
    ours, theirs = router.export_state(), other.export_state()
    assert ours.values == theirs.values
    assert all(torch.equal(t, theirs.tensors[name]) for name, t in ours.tensors.items())


def _shorter(state: State) -> None:
    state.tensors["owner"] = state.tensors["owner"][:-1]


def _stranger(state: State) -> None:
    state.tensors["owner"] = state.tensors["owner"] + 7


def _no_source(state: State) -> None:
    state.values["ids"] = [4, *state.values["ids"][1:]]


def _narrow(state: State) -> None:
    state.tensors["recent"] = state.tensors["recent"][:, :-1]


def _without(state: State) -> None:
    del state.tensors["mix"]


def _no_ids(state: State) -> None:
    del state.values["ids"]


def _twice(state: State) -> None:
    state.values["ids"] = [0, 1, 1]
    for name in ("sums", "counts", "mix", "spreads"):
        tensor = state.tensors[name]
        state.tensors[name] = torch.cat([tensor, tensor[-1:]])


def _uncounted(state: State) -> None:
    state.tensors["counts"] = torch.zeros_like(state.tensors["counts"])


def _not_positive(state: State) -> None:
    state.tensors["spreads"] = -state.tensors["spreads"]


@pytest.mark.parametrize(
    "damage",
    [
        *(_shorter, _stranger, _no_source, _narrow, _without, _no_ids, _twice),
        *(_uncounted, _not_positive),
    ],
)
def test_damaged_states_are_refused_and_change_nothing(router, damage):
    router.observe(correlated(40, seed=19) + shift(1))
    before = router.export_state().clone()
    damaged = before.clone()
    damage(damaged)
    with pytest.raises(StateError):
        router.import_state(damaged)
    after = router.export_state()
    assert after.values == before.values
    assert all(torch.equal(t, after.tensors[name]) for name, t in before.tensors.items())


# When domains are tested for two.


def test_where_traffic_stays_looks_that_come_together_are_one_domain():
    gap = torch.zeros(16).double()
    gap[0] = 7.0
    first, second = gaussian(60, 1), gaussian(60, 2) + gap
    mixed = torch.stack([first, second], 1).flatten(0, 1)
    centre = mixed.mean(0)
    assert split_off(mixed, centre, 20, 5.5) is not None
    assert split_off(mixed, centre, 20, 5.5, stay=1.0) is None
    later = split_off(torch.cat([first, second]), centre, 20, 5.5, stay=1.0)
    assert later is not None


def test_where_traffic_stays_fewer_images_are_enough_for_what_comes_next():
    rows = torch.cat([gaussian(60, 1), gaussian(10, 2) + 2.4])  # ten deviations off
    mean = torch.zeros(16).double()
    assert split_off(rows, mean, 20, 5.5, stay=1.0, past=100) is not None
    assert split_off(rows, mean, 20, 5.5, stay=0.6, past=100) is None


def test_images_that_left_the_memory_still_tell_where_a_domain_lies():
    old, new = gaussian(200, 1), gaussian(50, 2)
    new[:, 0] += 6.5
    mean = torch.cat([old, new]).mean(0)
    rows = torch.cat([old[-4:], new])  # of the old ones hardly any are left
    assert split_off(rows, mean, 20, 5.5, stay=0.9, past=196) is not None
    assert split_off(rows, new.mean(0), 20, 5.5, stay=0.9) is None


def test_many_domains_in_one_pool_are_told_apart_by_ten_images_each():
    where = 14 * torch.eye(16)[:8].double()
    rows = gaussian(80, 3) + where.repeat(10, 1)
    groups = parts(rows.float(), LEAST, lambda a, b: 5.5)
    assert sorted(group.tolist() for group, _ in groups) == [
        list(range(k, 80, 8)) for k in range(8)
    ]
    one = parts(gaussian(80, 3).float(), LEAST, lambda a, b: 5.5)
    assert [len(group) for group, _ in one] == [80]


def test_clean_images_stay_the_source_s_when_the_first_domain_is_founded(router):
    router.observe(correlated(40, seed=1))
    for seed in (2, 3):
        change = router.observe(correlated(10, seed=seed) + shift(1))
    assert set(change.owners) == {1}
    assert router.owner.tolist() == [SOURCE] * 40 + [1] * 20


def test_the_domain_that_was_there_keeps_its_number(router):
    router.observe(correlated(60, seed=1) + shift(1))
    change = router.observe(correlated(60, seed=2) + shift(1) + 0.8 * shift(2))
    assert list(change.founded) == [2]
    assert set(change.owners) == {2}
    assert set(router.observe(correlated(20, seed=3) + shift(1)).owners) == {1}


@pytest.mark.parametrize("alone", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_one_large_group_is_one_in_any_traffic(seed, alone):
    assert split_off(gaussian(200, seed), torch.zeros(16).double(), 20, 5.5, alone=alone) is None


@pytest.mark.parametrize(("mixed", "least", "most"), [(False, 0, 1), (True, 2, 8)])
def test_an_old_domain_is_tested_seldom_until_its_images_move(
    router, monkeypatch, mixed, least, most
):
    """The more seldom where it comes alone: 400 images are known, and 240 follow."""
    tested: list[int] = []
    split = Router._split

    def counted(self: Router, domain: int) -> tuple[Tensor, Tensor | None]:
        tested.append(domain)
        return split(self, domain)

    router.observe(correlated(60, seed=1) - shift(3))  # another one is known

    def batch(seed: int) -> Tensor:
        mine, other = correlated(10, seed=seed) + shift(1), correlated(10, seed=seed + 50)
        return torch.stack([mine, other - shift(2)], 1).flatten(0, 1) if mixed else mine

    monkeypatch.setattr(Router, "_split", counted)
    for seed in range(40):
        router.observe(batch(100 + seed))
    assert len(router.domains) == 2 + mixed
    tested.clear()
    for seed in range(24):
        router.observe(batch(200 + seed))
    assert least <= len(tested) <= most
    tested.clear()
    router.observe(batch(300) + 0.7 * shift(2))
    assert tested, "images that moved are looked at once"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_renewed_among_near_domains_is_what_all_of_them_say(seed):
    """Far domains, however many, change nothing; those that an image could lie by are asked."""
    draw = torch.Generator().manual_seed(seed)
    means = torch.cat([shift(k)[None].double() for k in (1, 2, 3)])
    far = 1e3 * torch.randn(200, means.shape[1], generator=draw).double()
    every = torch.cat([torch.zeros_like(means[:1]), means, far])
    even = torch.ones(len(every)).double()
    view = View(tuple(range(len(every))), every, even, 50 * even, even / len(every))
    images = torch.cat([correlated(20, seed + k) + mean for k, mean in enumerate(means.float())])
    near = view.near(torch.tensor([1, 2]))
    assert near.ids == (SOURCE, 1, 2, 3)
    assert near.decide(images.double()).ids.tolist() == view.decide(images.double()).ids.tolist()
    few = View(near.ids, near.means, near.spreads, near.counts, near.mix)
    assert few.near(torch.tensor([3])) is few
