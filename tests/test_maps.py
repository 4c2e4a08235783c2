"""When a domain's maps are made, from what, at which shares, and what that answers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from ostinato.errors import StateError
from ostinato.experts.routed import EVERY
from ostinato.methods.ostinato import maps as core
from ostinato.methods.ostinato.parts import LASTING, NEW, Domain, OstinatoConfig

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, clean_statistics = kit["build"], kit["shifted"], kit["clean_statistics"]


@pytest.fixture(scope="module")
def small():
    return clean_statistics()


@pytest.fixture
def trusting(monkeypatch):
    monkeypatch.setattr(core, "TRUSTED", 10.0)


@pytest.mark.parametrize(
    ("images", "due"), [(20, 40), (50, 80), (100, 240), (239, 240), (240, 960), (999, 3840)]
)
def test_maps_are_due_ever_more_rarely(images, due):
    domain = Domain(due=20, images=images)
    domain.made(enough=20)
    assert domain.due == due


def test_shares_are_tried_once_a_domain_lasts():
    config = OstinatoConfig(shares=(0.5, 0.2, 0.4))
    lasting = LASTING * config.enough
    assert Domain(due=20, images=50).shares_to_try(config) == (0.4, 0.2)  # the middle one first
    assert Domain(due=80, images=99, share=0.2).shares_to_try(config) == (0.2,)
    first = Domain(due=lasting, images=lasting, share=0.4)
    assert first.shares_to_try(config) == config.shares
    first.made(config.enough)
    assert first.shares_to_try(config) == (0.4,)
    first.share = 0.0  # the source answers: another chance
    assert first.shares_to_try(config) == config.shares


def test_new_domains_rest_on_few_images():
    recent = [torch.zeros(3, 2, 2)] * 100
    assert len(Domain(due=20, images=100, recent=recent).latest(20)) == NEW
    assert len(Domain(due=20, images=240, recent=recent).latest(20)) == 100


def test_every_second_block_has_a_map(small, trusting):
    method = build(small)
    for batch in shifted(4):
        method(batch)
    (domain,) = method.bank.domains.values()
    assert len(domain.maps) == -(-method.hooks.blocks // EVERY)
    assert len(domain.maps) == method.bank.places


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

    def passed(self, batch, expert, share=None):
        asked.append(share)
        return plain(self, batch, expert, share)

    monkeypatch.setattr(type(method), "_passed", passed)
    images = torch.cat(shifted(2))
    source = method.source_logits(method._receive(images, None, None))
    domain = Domain(due=8, images=16)
    method._make_maps(domain, images, None, source)
    assert asked == [0.35]
    assert domain.share == 0.35


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


def test_a_domain_that_took_another_in_makes_its_maps_anew(small, trusting):
    method = build(small, learn=False)
    for batch in shifted(8):
        method(batch)
    ((number, domain),) = method.bank.domains.items()
    method.bank.domains[9] = Domain(due=80, images=30)
    assert domain.due > domain.images
    method.bank.merge(9, number)
    assert method.bank.is_due(number)


def test_who_was_trusted_stays_so_where_nothing_speaks_against_it():
    sure, unsure = torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])
    some, others = torch.stack([sure, unsure] * 5), torch.stack([unsure, sure] * 5)
    assert core.doubt(some, others) > 0 > core.doubt(some, others, -core.CHANCE)
    assert core.doubt(torch.stack([unsure] * 9), torch.stack([sure] * 9), -core.CHANCE) > 0
