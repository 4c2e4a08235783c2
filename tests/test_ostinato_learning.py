"""Learning on top of maps: what is learned from, what is kept of it, and what is forgotten."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch

from ostinato.methods.base import Input
from ostinato.methods.ostinato._bank import Domain
from ostinato.ops.losses import softmax_entropy

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, clean = kit["build"], kit["shifted"], kit["clean"]


@pytest.fixture(scope="module")
def small():
    return kit["clean_statistics"]()


def known(small):
    """A method that has met one domain and learned, and that domain."""
    method = build(small)
    for batch in shifted(5):
        method.step(batch)
    domain = method.bank.domains[1]
    assert domain.maps
    assert domain.branches is not None
    assert domain.branches.updates > 0
    return method, domain


def spoil(branches) -> None:
    """Make branches push every token the same way, far."""
    branches.value.fill_(3.0)
    branches.changes += 1


# What was learned and went wrong.


def test_spoilt_branches_are_dropped_and_the_maps_answer(small, trusting):
    method, domain = known(small)
    spoil(domain.branches)
    domain.variety = 100.0  # no answer is as varied as that
    batch = shifted(6)[5]
    output = method.step(batch)
    assert "rolled back domain 1" in output.events
    assert not output.updated
    assert domain.branches is None
    maps = method._mapped(Input(batch, None), domain)
    assert torch.allclose(output.logits, maps, atol=1e-5)


def test_shared_branches_start_anew_where_the_domain_s_own_are_not_at_fault(small, trusting):
    method, domain = known(small)
    shared = method.bank.shared
    assert shared.updates > 0
    domain.branches, domain.variety = None, 100.0
    output = method.step(shifted(6)[5])
    assert "rolled back the shared branches" in output.events
    assert shared.updates == 0
    assert not any(one.up.any() for one in shared.branches())


def test_varied_answers_keep_what_was_learned(small, trusting):
    method, domain = known(small)
    before = domain.branches
    output = method.step(shifted(6)[5])
    assert output.updated
    assert domain.branches is before
    assert not any("rolled back" in event for event in output.events)


# Images that wait to be learned from.


def test_an_image_of_another_domain_in_every_batch_costs_no_update(small, trusting):
    """Seven of eight are the domain's: eight batches hold seven micro-batches of it."""
    method, domain = known(small)
    learned = domain.branches.updates
    domain.waiting = 0
    strangers = clean(8, size=1, seed=5)
    for own, stranger in zip(shifted(14)[5:13], strangers, strict=True):
        method.step(torch.cat([own[:7], stranger]))
    assert domain.branches.updates - learned in (6, 7)


def test_an_update_counts_its_images_alone():
    domain = Domain(due=1)
    domain.add([torch.zeros(3, 2, 2)] * 11, bound=20, when=1)
    domain.learned_from(8)
    assert domain.waiting == 3
    domain.learned_from(8)
    assert domain.waiting == 0


# Buffers.


def bank_of(small, images: int):
    """A bank of two domains with room for so many images of 4×4."""
    method = build(small, buffer_mb=images * 48 / 2**20, micro=2, buffer=8)
    for number in (1, 2):
        method.bank.domains[number] = Domain(due=1)
    return method.bank


def fill(bank, owners):
    for owner in owners:
        bank.add(owner, [torch.full((3, 4, 4), owner, dtype=torch.uint8)], counted=False)
    return [len(bank.domains[number].recent) for number in (1, 2)]


def test_in_blocks_the_domain_at_hand_has_the_room(small):
    assert fill(bank_of(small, 8), [1] * 8 + [2] * 6) == [2, 6]


def test_in_mixed_traffic_domains_share_the_room(small):
    assert fill(bank_of(small, 8), [1, 2] * 20) == [4, 4]


def test_a_micro_batch_of_the_domain_at_hand_is_always_kept(small):
    assert fill(bank_of(small, 1), [1, 1, 1, 2, 2, 2]) == [0, 2]


def test_what_is_dropped_no_longer_waits():
    domain = Domain(due=1)
    domain.add([torch.zeros(3, 2, 2)] * 6, bound=5, when=1)
    assert (len(domain.recent), len(domain.arrived), domain.waiting) == (5, 5, 5)
    domain.drop_oldest(3)
    assert (len(domain.recent), len(domain.arrived), domain.waiting) == (2, 2, 2)
    domain.add([torch.zeros(3, 4, 4)], bound=5, when=2)  # fewer of another size are resized
    assert ([len(one[0]) for one in domain.recent], domain.arrived) == ([2] * 3, [1, 1, 2])
    domain.add([torch.zeros(3, 4, 4)] * 3, bound=5, when=3)  # more of them are not
    assert ([len(one[0]) for one in domain.recent], domain.arrived) == ([4] * 5, [1, 2, 3, 3, 3])


def test_a_kept_image_does_not_hold_its_batch(small):
    bank = bank_of(small, 100)
    for _ in range(8):
        batch = torch.zeros(50, 3, 4, 4, dtype=torch.uint8)
        bank.keep([batch[7]])
        bank.add(1, [batch[7]], counted=False)
    bank.found(4, torch.tensor([0] * 7 + [4]))
    assert bank.domains[4].maps == ()  # nobody else's: the source answers until it has its own
    for images in (bank.latest, bank.domains[1].recent, bank.domains[4].recent):
        held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in images}
        assert sum(held.values()) == 48 * len(images) > 0


# Confidence.


def test_learned_answers_are_as_sure_as_those_of_the_maps(small, trusting):
    """Branches that only sharpen: answers are given as unsure as those of the maps alone."""
    method, domain = known(small)
    domain.due, domain.place = 10**6, torch.empty(0)  # no maps are made on the way
    batches = shifted(60)[5:]
    plain = [float(softmax_entropy(method.step(batch).logits).mean()) for batch in batches[:3]]
    domain.unsure = wanted = 0.5 * (sum(plain) / 3 + math.log(5))
    tempered = [float(softmax_entropy(method.step(batch).logits).mean()) for batch in batches[3:]]
    assert domain.temperature > 1
    assert abs(sum(tempered[-5:]) / 5 - wanted) < 0.25 * abs(wanted - sum(plain) / 3)


def test_a_temperature_goes_with_what_was_learned(small, trusting):
    method, domain = known(small)
    domain.temperature = 3.0
    method._republish()
    batch = shifted(6)[5]
    warm = method.predict(batch)
    domain.temperature = 1.0
    method._republish()
    assert torch.allclose(3 * warm, method.predict(batch), atol=1e-5)
    domain.temperature, domain.variety = 3.0, 100.0
    method.step(batch)
    assert domain.temperature == 1.0
