"""Every part of `robust` can be turned off, and the rows of `ablation-objective` do so."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.methods.ostinato import maps as core
from ostinato.registry import TABLES

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, clean = kit["build"], kit["shifted"], kit["clean"]


@pytest.fixture(scope="module")
def small():
    return kit["clean_statistics"]()


def run(small, monkeypatch, **settings: Any):
    """The method after five batches of one domain whose maps are trusted."""
    monkeypatch.setattr(core, "TRUSTED", 10.0)
    method = build(small, **settings)
    for batch in shifted(5):
        method.step(batch)
    return method, method.bank.domains[1]


def test_a_branch_of_rank_0_is_none(small, monkeypatch):
    method, domain = run(small, monkeypatch, shared_rank=0)
    assert method.bank.shared.value.numel() == 0
    assert domain.branches.updates > 0
    method, domain = run(small, monkeypatch, domain_rank=0)
    assert domain.branches.value.numel() == 0
    assert any(one.up.any() for one in method.bank.shared.branches())
    again = build(small, domain_rank=0)
    again.import_state(method.export_state())
    batch = shifted(6)[5]
    assert torch.equal(again.predict(batch), method.predict(batch))


def test_alignment_and_entropy_are_the_whole_loss(small, monkeypatch):
    """Without either nothing moves: what is left of a branch is where it started."""
    _, domain = run(small, monkeypatch, alignment=0.0, entropy=0.0)
    assert domain.branches.updates > 0
    assert not any(one.up.any() for one in domain.branches.branches())
    _, domain = run(small, monkeypatch, entropy=0.0)
    assert any(one.up.any() for one in domain.branches.branches())


def test_without_forgetting_spoilt_branches_stay(small, monkeypatch):
    method, domain = run(small, monkeypatch, keep=0.0)
    domain.variety = 100.0
    output = method.step(shifted(6)[5])
    assert output.events == ()
    assert domain.branches is not None


def test_without_a_temperature_logits_stay_as_they_are(small, monkeypatch):
    method, domain = run(small, monkeypatch, temper=False)
    domain.unsure = 10.0  # no answer is as unsure as that
    method.step(shifted(6)[5])
    assert domain.temperature == 1.0
    _, usual = run(small, monkeypatch)
    assert usual.temperature >= 1.0


def test_without_trust_maps_act_whatever_they_do_to_answers(small, monkeypatch):
    monkeypatch.setattr(core, "TRUSTED", -10.0)  # no map is as sure as that
    for trust in (True, False):
        method = build(small, trust=trust)
        for batch in shifted(5):
            method.step(batch)
        assert bool(method.bank.domains[1].maps) is not trust


def test_one_expert_for_all(small, monkeypatch):
    method, _ = run(small, monkeypatch, max_domains=1)
    for batch in clean(2, seed=3):
        method.step(1 - batch)
        method.step((batch > 0.5).float())
    assert len(method.bank.domains) == 1


def test_every_row_turns_one_part_off() -> None:
    rows = [one for one in TABLES["ablation-objective"].variants if one.method == "ostinato"]
    changed = [name for row in rows for name in row.settings]
    assert all(len(row.settings) <= 1 for row in rows)
    assert len(changed) == len(set(changed))
    parts = {"entropy", "alignment", "shared_rank", "domain_rank", "settle", "kappa", "keep"}
    routing = {"max_domains", "true_domains", "count_in", "shares", "trust", "temper"}
    assert set(changed) == parts | routing
