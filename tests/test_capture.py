"""Captured answers: the same as plain ones, for every version, without a new capture."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.api import adapt
from ostinato.checks import small_model
from ostinato.methods import _ostinato_capture as capture
from ostinato.methods._ostinato_answers import Answers
from ostinato.speed.ways import trusting

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
clean, shifted = kit["clean"], kit["shifted"]
GPU = torch.cuda.is_available()


def again(work: Callable[[], Any], pool: Any) -> tuple[Any, Callable[[], None]]:
    """What a capture does, by doing the work again: results stay where they were."""
    kept = work()

    def flat(value: Any) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        parts = vars(value).values() if hasattr(value, "__dict__") else value
        return [tensor for part in parts for tensor in flat(part)]

    def replay() -> None:
        for old, new in zip(flat(kept), flat(work()), strict=True):
            old.copy_(new)

    return kept, replay


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, captures that do the work again stand in for the real ones."""
    if not GPU:
        monkeypatch.setattr(capture, "record", again)
        monkeypatch.setattr(Answers, "_may_capture", lambda self: self.config.compile is not False)


@pytest.fixture(scope="module")
def statistics() -> Any:
    return kit["clean_statistics"]()


def made(statistics: Any, **settings: Any) -> Any:
    """The method on the small model, on a GPU where there is one."""
    model = small_model().to("cuda" if GPU else "cpu")
    return adapt(
        model, "ostinato", statistics=statistics, **kit["SETTINGS"] | {"compile": True} | settings
    )


def traffic() -> list[torch.Tensor]:
    """Two domains in blocks, clean images between, and a batch of both."""
    other = [1 - 0.5 * batch for batch in shifted(6, seed=5)]
    blocks = [*shifted(8), *clean(2), *other, *shifted(3, seed=1), *other[:2]]
    return [*blocks, torch.cat([shifted(1, seed=9)[0][:4], other[0][:4]])]


@pytest.mark.parametrize("preset", ["forward-only", "robust"])
@pytest.mark.parametrize("count_in", [True, False])
@trusting()
def test_captured_answers_equal_plain_ones(captured, statistics, preset, count_in):
    settings = {"preset": preset, "count_in": count_in}
    fast, plain = (
        made(statistics, compile=True, **settings),
        made(statistics, compile=False, **settings),
    )
    for batch in traffic():
        ours, theirs = fast.step(batch), plain.step(batch)
        assert torch.allclose(ours.logits.cpu(), theirs.logits.cpu(), atol=1e-4)
        assert ours.domains == theirs.domains
        assert ours.trust == theirs.trust
        assert (ours.updated, ours.events) == (theirs.updated, theirs.events)
        assert ours.version == theirs.version
    assert fast.captures.made > 0 == plain.captures.made
    assert fast.captures.refused is None
    assert fast.step_captures.refused is None
    assert (fast.step_captures.made > 0) == (preset == "robust")
    for name, one in fast.export_state().tensors.items():
        assert torch.allclose(one.cpu(), plain.export_state().tensors[name].cpu(), atol=1e-3), name


@trusting()
def test_fifty_captured_steps_equal_plain_ones_in_double_precision(captured, statistics):
    fast, plain = (
        adapt(
            small_model().double().to("cuda" if GPU else "cpu"),
            "ostinato",
            statistics=statistics,
            **kit["SETTINGS"] | {"compile": how},
        )
        for how in (True, False)
    )
    for method in (fast, plain):
        for batch in shifted(56):
            method.step(batch)
    assert fast.step_captures.made == 1
    ours, theirs = fast.bank.domains[1].branches, plain.bank.domains[1].branches
    assert ours.updates == theirs.updates >= 50
    assert float((ours.value - theirs.value).norm() / theirs.value.norm()) < 1e-4


@trusting()
def test_domains_come_and_go_without_a_new_capture(captured, statistics):
    method = made(statistics, preset="forward-only")
    batches = traffic()
    for batch in batches[:10]:
        method.step(batch)
        method.predict(batch)
    before = method.captures.made
    assert before
    known = len(method.bank.domains)
    for batch in batches[10:]:
        method.step(batch)
        method.predict(batch)
        method.learn()
    assert len(method.bank.domains) > known
    assert method.captures.made == before


@trusting()
def test_a_batch_size_is_captured_when_it_comes_again(captured, statistics):
    method = made(statistics, preset="forward-only")
    for batch in shifted(4):
        method.step(batch)
    before = method.captures.made
    for size in (3, 5, 6, 7):
        for _ in range(capture.SEEN):
            method.predict(shifted(1)[0][:size])
    assert method.captures.made == before
    for size in (3, 5, 6, 7, 3):
        method.predict(shifted(1)[0][:size])
    assert method.captures.made == before + 4
    assert len(method.captures._kept) == capture.KEPT


@trusting()
def test_answers_from_captures_are_the_caller_s_own(captured, statistics):
    method = made(statistics, preset="forward-only")
    for batch in shifted(4):
        method.step(batch)
    first, second = shifted(6)[-2:]
    answer = method.predict(first)
    kept = answer.clone()
    method.predict(second)
    assert torch.equal(answer, kept)


def test_a_model_that_cannot_be_captured_is_answered_plainly(captured, statistics, monkeypatch):
    def refuse(work: Any, pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(capture, "record", refuse)
    fast, plain = made(statistics, compile=True), made(statistics, compile=False)
    for batch in shifted(5):
        assert torch.equal(fast(batch), plain(batch))
    assert "capturing" in fast.captures.refused
    assert fast.captures.made == 1


@trusting()
def test_a_copy_makes_captures_of_its_own(captured, statistics):
    method = made(statistics, preset="forward-only")
    for batch in shifted(4):
        method.step(batch)
    twin = copy.deepcopy(method)
    batch = shifted(5)[-1]
    assert twin.captures.made == 0
    for _ in range(capture.SEEN + 1):
        answer = twin.predict(batch)
    assert twin.captures.made == 1
    assert torch.allclose(answer, method.predict(batch), atol=1e-5)
