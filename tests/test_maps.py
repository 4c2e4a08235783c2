"""When a domain's maps are made, from what, at which shares, and what that answers."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch

from ostinato.errors import StateError
from ostinato.experts.routed import EVERY
from ostinato.methods.ostinato import _trust as trust
from ostinato.methods.ostinato import maps as core
from ostinato.methods.ostinato._bank import Domain
from ostinato.methods.ostinato._timing import LASTING, NEVER, NEW
from ostinato.methods.ostinato.settings import OstinatoConfig

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, clean_statistics = kit["build"], kit["shifted"], kit["clean_statistics"]


@pytest.fixture(scope="module")
def small():
    return clean_statistics()


@pytest.mark.parametrize(
    ("images", "due", "untrusted"),
    [(20, 40, 40), (50, 240, 100), (100, 240, 200), (239, 240, 240), (240, NEVER, 960),
     (999, NEVER, 3840)],
)  # fmt: skip
def test_maps_are_due_ever_more_rarely(images, due, untrusted):
    for share, expected in ((0.4, due), (0.0, untrusted)):
        domain = Domain(due=20, images=images, share=share)
        domain.made(enough=20)
        assert domain.due == expected


def answers(count, classes, sure, rival=0.0):
    """Logits of items of all classes in turn; another class comes near the one that is said."""
    noise = 0.1 * torch.randn(count, classes, generator=torch.Generator().manual_seed(0))
    said = torch.nn.functional.one_hot(torch.arange(count) % classes, classes)
    return noise + sure * said + rival * said.roll(1, 1)


def test_a_map_that_shrinks_all_logits_alike_is_not_doubted_for_it():
    source, better = answers(60, 10, 1.0), answers(60, 10, 3.0)
    assert trust.doubt(0.2 * better, source) < 0
    few = [one[::10].repeat(10, 1) for one in (0.2 * better, source)]  # one class: it is doubted
    assert trust.doubt(*few) > 0
    assert torch.equal(trust.at_scale(3 * better, source), 3 * better)  # what is wider stays


@pytest.mark.parametrize(("rival", "trusted"), [(0.3, True), (2.0, False)])
def test_varied_answers_may_be_a_little_less_sure(rival, trusted):
    source = answers(60, 10, 3.0)
    found = answers(60, 10, 3.0, rival)
    assert (trust.doubt(found, source) < 0) is trusted
    assert trust.doubt(found[:6], source[:6]) > 0  # so few prove nothing about classes
    assert trust.doubt(found[::10].repeat(10, 1), source[::10].repeat(10, 1)) > 0


@pytest.mark.parametrize(("count", "classes"), [(64, 10), (50, 1000), (200, 3)])
def test_variety_to_be_expected_is_that_of_drawn_classes(count, classes):
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(400):
        drawn = torch.randint(classes, (count,), generator=generator)
        found.append(torch.special.entr(torch.bincount(drawn) / count).sum())
    assert trust.drawn_variety(count, classes) == pytest.approx(float(sum(found)) / 400, rel=0.01)
    assert trust.drawn_variety(10**6, classes) == pytest.approx(math.log(classes))


def test_shares_are_tried_once_a_domain_lasts():
    config = OstinatoConfig(shares=(0.5, 0.2, 0.4))
    lasting = LASTING * config.enough
    assert Domain(due=20, images=50).shares_to_try(config) == (0.4, 0.2)  # the middle one first
    assert Domain(due=80, images=99, share=0.2).shares_to_try(config) == (0.2,)
    first = Domain(due=lasting, images=lasting, share=0.4)
    assert first.shares_to_try(config) == (0.2, 0.4, 0.5)
    first.made(config.enough)
    assert first.shares_to_try(config) == (0.4,)
    first.share = 0.0  # the source answers: another chance
    assert first.shares_to_try(config) == (0.2, 0.4, 0.5)


@pytest.mark.parametrize(
    ("found", "counted"),
    [((True, False, True), [True, False, False]), ((False, True, True), [False, True, True])],
)
def test_a_large_share_needs_the_variety_of_the_middle_one(small, monkeypatch, found, counted):
    method, seen, told = build(small), [], iter(found)
    monkeypatch.setattr(core, "is_varied", lambda logits: next(told))

    def doubt(logits, source, trusted, varied):
        seen.append(varied)
        return 1.0

    monkeypatch.setattr(core, "doubt", doubt)
    domain = Domain(due=96, images=96)  # it lasts: all shares are tried
    method._make_maps(domain, torch.cat(shifted(2)), None)
    assert seen == counted
    assert domain.share == 0.0


def test_new_domains_rest_on_few_images():
    recent = [torch.zeros(3, 2, 2)] * 100
    assert Domain(due=20, images=100, recent=recent).window(20) == NEW
    assert Domain(due=20, images=240, recent=recent).window(20) == 100


def test_every_second_block_has_a_map(small, trusting):
    method = build(small)
    for batch in shifted(4):
        method(batch)
    (domain,) = method.bank.domains.values()
    assert len(domain.maps) == -(-method.hooks.blocks // EVERY)
    assert len(domain.maps) == method.bank.sizes[0]


def test_making_maps_answers_the_batch(small, trusting, monkeypatch):
    method, forwards = build(small, learn=False), []
    plain = type(method)._forward
    monkeypatch.setattr(
        type(method), "_forward", lambda *given: forwards.append(1) or plain(*given)
    )
    for batch in shifted(6):
        before = len(forwards)
        logits = method(batch)
        if method._made:
            assert len(forwards) == before  # nothing was asked twice
            with method.frozen():
                again = method.predict(batch)
            assert torch.allclose(logits, again, atol=1e-4)
    assert len(forwards) > 2


def test_what_the_source_said_is_not_asked_again(small, trusting, monkeypatch):
    method, asked = build(small, learn=False), []
    plain = type(method)._passed

    def passed(self, batch, expert, share=None, shared=None):
        asked.append(share)
        return plain(self, batch, expert, share, shared)

    monkeypatch.setattr(type(method), "_passed", passed)
    images = torch.cat(shifted(2))
    source = method.source_logits(method._receive(images, None, None))
    domain = Domain(due=8, images=16)
    method._make_maps(domain, images, None, source)
    assert asked == [0.4]
    assert domain.share == 0.4


def test_states_of_maps_after_every_block_are_refused(small, trusting):
    method = build(small)
    for batch in shifted(4):
        method(batch)
    state = method.export_state().clone()
    (number,) = method.bank.domains
    values = state.values["bank"][str(number)]
    values["blocks"] = 2 * values["blocks"]
    with pytest.raises(StateError, match="maps where"):
        method.bank.expected(state.part("bank"))


def test_maps_that_no_longer_fit_are_made_anew(small, trusting):
    method = build(small, learn=False)
    batches = shifted(12)
    for batch in batches[:8]:
        method(batch)
    (domain,) = method.bank.domains.values()
    due, maps = domain.due, domain.maps
    assert due > domain.images + 8
    domain.unsure = -1.0  # the next answers are far less sure than those were
    method(batches[8])
    assert domain.due == domain.images < due
    method(batches[9])
    assert domain.maps is not maps
    assert domain.excess != 0
    assert domain.due > domain.images


def test_maps_that_do_not_help_are_not_made_with_every_batch(small, trusting, monkeypatch):
    method = build(small, learn=False, buffer=16)
    batches = shifted(40)
    for batch in batches[:4]:
        method(batch)
    (domain,) = method.bank.domains.values()
    made = list[int]()
    make = type(method)._make_maps

    def made_in_vain(self, domain, *given):
        found = make(self, domain, *given)
        made.append(domain.images)
        domain.unsure = -1.0  # whatever is made, answers stay less sure
        return found

    monkeypatch.setattr(type(method), "_make_maps", made_in_vain)
    monkeypatch.setattr(
        method, "_window", lambda n: 16 if method._is_due(method.bank.domains[n]) else 0
    )
    domain.unsure = -1.0
    for batch in batches[4:]:
        method(batch)
    assert made == [48, 96, 232]  # at once, when the domain lasts, and twice as long after that


def test_a_domain_that_took_another_in_makes_its_maps_anew(small, trusting):
    method = build(small, learn=False)
    for batch in shifted(8):
        method(batch)
    ((number, domain),) = method.bank.domains.items()
    method.bank.domains[9] = Domain(due=80, images=30)
    assert domain.due > domain.images
    method.bank.merge(9, number)
    assert method._is_due(method.bank.domains[number])


def test_who_was_trusted_stays_so_where_nothing_speaks_against_it():
    sure, unsure = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.6, 0.4]).log()
    some, others = torch.stack([sure, unsure] * 5), torch.stack([unsure, sure] * 5)
    assert trust.doubt(some, others) > 0 > trust.doubt(some, others, trusted=True)
    assert trust.doubt(torch.stack([unsure] * 9), torch.stack([sure] * 9), trusted=True) > 0


def test_maps_are_made_anew_from_images_that_lie_elsewhere(small, trusting):
    method = build(small, learn=False)
    batches = shifted(12)
    for batch in batches[:8]:
        method(batch)
    ((number, domain),) = method.bank.domains.items()
    assert domain.place_of > 0
    domain.due, domain.made_at, maps = 10_000, domain.images, domain.maps
    method(batches[8])
    assert domain.maps is maps  # they lie where the others did
    domain.place = domain.place + 9.0
    state = method.export_state().clone()
    moved = f"images of domain {number} moved"
    method(batches[9])
    assert moved in method.last.events
    assert domain.maps is not maps
    assert domain.made_at == domain.images
    after = method.export_state().clone()
    method.import_state(state)
    method(batches[9])
    assert kit["same_state"](method.export_state(), after)


def test_a_place_of_another_width_is_refused(small, trusting):
    method = build(small, learn=False)
    for batch in shifted(6):
        method(batch)
    state = method.export_state().clone()
    (number,) = method.bank.domains
    name = next(n for n in state.tensors if n.endswith(f"{number}/place"))
    state.tensors[name] = torch.zeros(3)
    with pytest.raises(StateError, match="place"):
        method.import_state(state)
