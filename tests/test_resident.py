"""More domains than stay on the device: the same answers, bounded rows, experts that come back."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.experts.stack import START
from ostinato.methods.ostinato._bank import Domain
from ostinato.speed._ways import crowd, trusting

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, clean, shifted, same_state = (
    kit[name] for name in ("build", "clean", "shifted", "same_state")
)


@pytest.fixture(scope="module")
def statistics() -> Any:
    return kit["clean_statistics"]()


def traffic() -> list[torch.Tensor]:
    """Two domains in blocks and in turns, clean images between, and a batch of both."""
    other = [1 - 0.5 * batch for batch in shifted(6, seed=5)]
    blocks = [*shifted(6), *clean(1), *other, *shifted(2, seed=1), other[0], shifted(1, seed=2)[0]]
    return [*blocks, torch.cat([shifted(1, seed=9)[0][:4], other[0][:4]])]


@pytest.mark.parametrize("count_in", [True, False])
@trusting()
def test_answers_do_not_depend_on_how_many_experts_are_resident(statistics, count_in):
    few, all_ = (build(statistics, resident=n, count_in=count_in) for n in (1, 64))
    for batch in traffic():
        ours, theirs = few.step(batch), all_.step(batch)
        assert torch.allclose(ours.logits, theirs.logits, atol=1e-5)
        assert (ours.domains, ours.trust, ours.updated) == (
            theirs.domains, theirs.trust, theirs.updated
        )  # fmt: skip
        assert torch.allclose(few.predict(batch), all_.predict(batch), atol=1e-5)
    assert len(few.bank.domains) >= 2
    few._republish()  # the last batch needed both
    placed = few.publisher.placed(few.version, [1])
    assert len(placed.table) == 1
    assert placed.absent


@trusting()
def test_an_absent_expert_comes_back_for_an_answer(statistics):
    adapted = build(statistics, resident=1)
    batches = traffic()
    for batch in batches[:13]:
        adapted.step(batch)
    first, second = batches[0], batches[8]
    with adapted.frozen():
        for batch, number in ((first, 1), (second, 2), (first, 1)):
            adapted.predict(batch)
            assert set(adapted.last.domains) == {number}
            assert list(adapted.publisher.placed(adapted.version).table) == [number]
    assert adapted.publisher.stack.growths == 0


@trusting()
def test_a_thousand_domains_take_no_more_rows_than_are_resident(statistics):
    adapted = build(statistics, resident=20, max_domains=1000)
    batches = traffic()
    for batch in batches[:6]:
        adapted.step(batch)
    alone = adapted.predict(batches[0])
    crowd(adapted, 1000)
    assert torch.allclose(adapted.predict(batches[0]), alone, atol=1e-5)
    gc.collect()
    assert len(adapted.bank.domains) == 1000
    assert len(adapted.publisher.stack.now.matrices) <= 32
    before, written = adapted.publisher.stack.growths, []
    inner = adapted.publisher.stack._write
    adapted.publisher.stack._write = lambda *given: (written.append(given), inner(*given))
    adapted.step(batches[0])
    assert len(written) <= 2  # of the domain that learned, not of all that are resident
    for batch in batches[7:13]:  # one more domain, and it learns
        adapted.step(batch)
    assert adapted.publisher.stack.growths == before
    assert adapted.publisher.stack.now.matrices.shape[0] >= START


@trusting()
def test_what_is_noted_of_domains_that_are_gone_stays_small(statistics):
    adapted = build(statistics, resident=4)
    batches = traffic()
    for number, batch in enumerate(batches[:13]):
        adapted.publisher.used(range(100 * number, 100 * number + 50))
        adapted.step(batch)
        assert set(adapted.last.domains) <= set(adapted.publisher._used)
    assert len(adapted.publisher._used) <= 8 * 4


@trusting()
def test_experts_of_domains_not_used_lately_go_to_the_host(statistics, monkeypatch):
    places: dict[int, str] = {}

    def move(self: Domain, device: Any) -> None:
        places[id(self)] = "host" if device == "cpu" else "device"

    monkeypatch.setattr(Domain, "move", move)
    adapted = build(statistics, resident=1)
    batches = traffic()
    for batch in batches[:6]:
        adapted.step(batch)

    def here() -> list[int]:
        return [n for n, one in adapted.bank.domains.items() if places[id(one)] == "device"]

    assert here() == [1]
    for batch in batches[7:13]:
        adapted.step(batch)
        assert here() == list(adapted.bank._here)
    assert here() == [2]
    adapted.step(batches[0])
    assert len(here()) == 1


@trusting()
def test_a_state_is_the_same_however_many_are_resident(statistics, tmp_path):
    few, all_ = (build(statistics, resident=n) for n in (1, 64))
    for batch in traffic():
        few.step(batch)
    few.save(tmp_path / "state", buffers=True)
    all_.load(tmp_path / "state")
    assert same_state(few.export_state(), all_.export_state())
    assert list(few.bank._here) == list(all_.bank._here)[-1:]
