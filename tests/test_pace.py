"""Learning where it pays: settled experts pass batches over, and learn at once when they must."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import pytest
import torch

from ostinato.methods.ostinato._timing import MARGIN
from ostinato.speed._ways import trusting

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted = kit["build"], kit["shifted"]


@pytest.fixture(scope="module")
def statistics():
    return kit["clean_statistics"]()


@trusting()
def test_a_settled_expert_passes_batches_over_more_and_more(statistics):
    method = build(statistics, spare=3, settle=2.0)
    always = build(statistics, spare=0, settle=2.0)
    learned = [method.step(batch).updated for batch in shifted(40)]
    assert sum(always.step(batch).updated for batch in shifted(40)) > 30
    places = [at for at, one in enumerate(learned) if one]
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert gaps[0] == 1
    assert gaps == sorted(gaps)
    assert gaps[-1] == 4  # three are passed over between two
    # An update stands for those that were passed over since the one before.
    assert method.bank.domains[1].branches.updates == places[-1] - places[0] + 1


@trusting()
def test_an_expert_that_no_longer_fits_learns_at_once(statistics):
    method = build(statistics, spare=8, settle=1.0)
    batches = shifted(60)
    for batch in batches[:30]:
        method.step(batch)
    domain = method.bank.domains[1]
    while not method.step(batches.pop()).updated:
        pass
    assert domain.skipped == 0
    assert not method.step(batches.pop()).updated
    domain.unsure = -1.0  # so that the next answers are far less sure than they were
    assert method.step(batches.pop()).updated
    assert domain.excess > MARGIN


@trusting()
def test_a_large_batch_of_a_settled_expert_is_one_update_that_counts_as_several(statistics):
    method = build(statistics, spare=0, settle=2.0)
    micro = method.config.micro
    large = torch.cat(shifted(3, size=micro, seed=7))
    for batch in shifted(8, size=micro):
        method.step(batch)
    learned = method.bank.domains[1].branches
    updates, changes = learned.updates, learned.changes
    assert updates >= 2
    output = method.step(large)
    assert output.updated
    assert len(output.logits) == 3 * micro
    assert (learned.updates, learned.changes) == (updates + 3, changes + 1)


@trusting()
def test_the_pace_goes_on_after_a_restart(statistics, tmp_path):
    method, other = (build(statistics, spare=3, settle=2.0) for _ in range(2))
    batches = shifted(30)
    for batch in batches[:18]:
        method.step(batch)
    method.save(tmp_path / "state", buffers=True)
    other.load(tmp_path / "state")
    for batch in batches[18:]:
        ours, theirs = method.step(batch), other.step(batch)
        assert ours.updated == theirs.updated
        assert torch.equal(ours.logits, theirs.logits)
