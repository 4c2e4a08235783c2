"""Captured answers: the same as plain ones, for every version, without a new capture."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.api import adapt
from ostinato.checks import small_model
from ostinato.experts import compiled
from ostinato.experts.routed import Expert
from ostinato.experts.stack import StackPass
from ostinato.methods.base import Input
from ostinato.methods.ostinato import _turns as turns
from ostinato.methods.ostinato._answers import Answers
from ostinato.methods.ostinato._published import Placed
from ostinato.ops import kernels
from ostinato.speed._ways import trusting

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
clean, shifted = kit["clean"], kit["shifted"]
GPU = torch.cuda.is_available()


class Graph(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: operators are kept with the very tensors they had.

    A replay runs no Python of the work's own. Whatever was read from a tensor that has since been
    replaced is therefore read from the old one, as a graph would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **kwargs or {})
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, out in self.calls:
                if any(one.alias_info is not None for one in func._schema.returns):
                    if func._schema.is_mutable:
                        func(*args, **kwargs)
                    continue  # a view sees what its base is now
                for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                    old.detach().copy_(new)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [one for part in value for one in tensors(part)] if isinstance(value, (tuple, list)) else []
    )


def recorded(work: Callable[[], Any], pool: Any) -> tuple[Any, Callable[[], None]]:
    """In place of `turns.record`, where there is no GPU."""
    work()
    graph = Graph()
    with graph:
        result = work()
    return result, graph.replay


def open_unseen(self: Placed, index: torch.Tensor) -> StackPass:
    """A pass as a GPU has it, which is not asked whether all images have the same row."""
    shared = self.shared if self.table else ()
    return StackPass(index, self.rows, shared, maps=self.maps, branches=self.branches)


def traced(forward: Callable[..., Any]) -> Callable[..., Any]:
    """In place of compiled blocks, where there is no GPU: all but the generation of code."""
    made: Callable[..., Any] = torch.compile(forward, dynamic=False, backend="eager")
    return made


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, recorded operators stand in for real captures."""
    if not GPU:
        monkeypatch.setattr(compiled, "_compiled", traced)
        monkeypatch.setattr(turns, "record", recorded)
        monkeypatch.setattr(Placed, "open", open_unseen)
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
    assert fast.map_captures.made > 0 == plain.map_captures.made
    assert fast.map_captures.refused is None
    kinds = {size[4:] for size in fast.map_captures._kept}  # the source, maps, and what was learned
    assert kinds == ({(0,), (1,)} if preset == "forward-only" else {(0,), (1,), (1, 2, 2)})
    assert (fast.step_captures.made > 0) == (preset == "robust")
    for name, one in fast.export_state().tensors.items():
        assert torch.allclose(one.cpu(), plain.export_state().tensors[name].cpu(), atol=1e-3), name


@trusting()
def test_maps_of_a_captured_pass_are_the_plain_ones_and_the_caller_s_own(captured, statistics):
    fast, plain = (made(statistics, preset="forward-only", compile=how) for how in (True, False))
    batches = [Input(batch) for batch in shifted(4)]
    results = []
    for share, batch in zip((0.2, 0.6, 0.4, 0.2), batches, strict=True):
        results.append(
            (fast._passed(batch, Expert(), share), plain._passed(batch, Expert(), share))
        )
    assert fast.map_captures.made == 1
    for (logits, maps), (other, others) in results:
        assert torch.allclose(logits.cpu(), other.cpu(), atol=1e-4)
        for one, same in zip(maps, others, strict=True):
            for part, like in zip(one.tensors(), same.tensors(), strict=True):
                assert torch.allclose(part.cpu(), like.cpu(), atol=1e-4)


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
    for batch in shifted(8):
        method.step(batch)
    before = method.captures.made
    for size in (3, 5, 6, 7):
        for _ in range(turns.SEEN):
            method.predict(shifted(1)[0][:size])
    assert method.captures.made == before
    for size in (3, 5, 6, 7, 3):
        method.predict(shifted(1)[0][:size])
    assert method.captures.made == before + turns.KEPT - 1
    assert len(method.captures._kept) == turns.KEPT


@trusting()
def test_sizes_that_take_turns_are_not_captured_anew_all_the_time(captured, statistics):
    method = made(statistics, preset="forward-only")
    for batch in shifted(4):
        method.step(batch)
    for _ in range(6):
        for size in (1, 2, 3, 4, 5, 6, 7):
            method.predict(shifted(1)[0][:size])
    assert method.captures.made == turns.KEPT
    for _ in range(15):  # one of those left out comes often enough to take another one's place
        method.predict(shifted(1)[0][:7])
    assert method.captures.made == turns.KEPT + 1
    assert len(method.captures._kept) == turns.KEPT


@trusting()
def test_growth_drops_captures_of_the_old_rows_and_an_older_version_is_answered_plainly(
    captured, statistics
):
    method = made(statistics, preset="forward-only")
    batches = shifted(8)
    for batch in batches[:5]:
        method.step(batch)
    old, before = method.publisher.placed(method.version), method.captures.made
    method.publisher.stack._grow()
    method._republish()
    grown = method.publisher.placed(method.version)
    expected = method._forward(Input(batches[5].to(method.device)), grown, grown.index([1] * 8))
    assert torch.allclose(method.predict(batches[5]), expected.float(), atol=1e-5)
    assert method.captures.made == before + 1
    assert method.captures.answer(batches[5].to(method.device), old) is None
    assert {
        id(one.placed.rows) for kinds in method.captures._kept.values() for one in kinds.values()
    } == {id(grown.rows)}


@trusting()
def test_what_was_started_for_other_maps_is_done_over(captured, statistics):
    """The maps are made anew while a captured step is on its way: it must not be applied."""
    fast, plain = made(statistics, compile=True), made(statistics, compile=False)
    started = []
    inner = fast._start_step

    def start(batch: Any, domain: Any) -> Any:
        found = inner(batch, domain)
        started.append(found)
        for method in (fast, plain):  # due now, so that taking in makes the maps anew
            method.bank.domains[1].due = method.bank.domains[1].images
        return found

    fast._start_step = start
    for batch in shifted(14):
        ours, theirs = fast.step(batch), plain.step(batch)
        assert torch.allclose(ours.logits.cpu(), theirs.logits.cpu(), atol=1e-4)
        assert ours.updated == theirs.updated
    begun = [one for one in started if one is not None]
    assert len(begun) > 3
    assert all(one.maps is not fast.bank.domains[1].maps for one in begun)


@trusting()
def test_an_answer_says_the_version_that_gave_it(captured, statistics, monkeypatch):
    """Another thread publishes while a captured answer is on its way."""
    method = made(statistics, preset="forward-only")
    batches = shifted(8)
    for batch in batches[:5]:
        method.step(batch)
    inner, number = method.captures.answer, method.version.number

    def answer(pixels: Any, placed: Any) -> Any:
        found = inner(pixels, placed)
        method._republish()
        return found

    monkeypatch.setattr(method.captures, "answer", answer)
    method.predict(batches[6])
    assert method.last.version == number < method.version.number


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

    monkeypatch.setattr(turns, "record", refuse)
    fast, plain = made(statistics, compile="auto"), made(statistics, compile=False)
    told = made(statistics, compile=True)
    batches = shifted(8)
    for batch in batches:
        assert torch.equal(fast(batch), plain(batch))
    assert "capturing" in fast.captures.refused
    assert fast.captures.made == 1
    with pytest.warns(UserWarning, match="capturing"):
        told(torch.cat(batches))
    assert torch.equal(told(batches[3]), told.predict(batches[3]))  # said once


def test_a_model_that_cannot_be_compiled_is_captured_as_it_is(captured, statistics, monkeypatch):
    def refuse(forward: Any) -> Any:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no C compiler\nand a long trace")

        return compiled

    monkeypatch.setattr(compiled, "_compiled", refuse)
    told, plain = made(statistics, compile=True), made(statistics, compile=False)
    batches = shifted(8)
    with pytest.warns(UserWarning, match="without compiled blocks: RuntimeError: no C compiler$"):
        assert all(torch.equal(told(batch), plain(batch)) for batch in batches)
    assert told.captures.made
    assert told.captures.refused is None
    assert "forward" not in vars(told.model.base.blocks[0])


@pytest.mark.parametrize("compile", ["auto", True])
@trusting()
def test_captures_in_half_precision_follow_weights_that_change(captured, statistics, compile):
    settings = {"preset": "forward-only", "precision": "bf16"}
    fast = made(statistics, **settings | {"compile": compile})
    plain = made(statistics, compile=False, **settings)
    for batch in shifted(5):
        assert torch.allclose(fast(batch).cpu(), plain(batch).cpu(), atol=2e-2)
    before = fast.predict(batch)
    assert fast.captures.made
    assert fast.narrowed.kept
    for method in (fast, plain):
        with torch.no_grad():
            for weight in method.model.base.head.parameters():
                weight.mul_(-1)
    after = fast.predict(batch).cpu()
    assert torch.allclose(after, plain.predict(batch).cpu(), atol=2e-2)
    assert torch.allclose(after, -before.cpu(), atol=2e-2)


def test_a_machine_that_compiles_no_kernels_says_so_where_that_was_asked(
    captured, statistics, monkeypatch
):
    monkeypatch.setattr(kernels, "_refused", ["RuntimeError: Failed to find C compiler."])
    quiet, told = made(statistics, compile="auto"), made(statistics, compile=True)
    batch = shifted(1)[0]
    quiet(batch)
    with pytest.warns(UserWarning, match="without kernels: .*C compiler"):
        told(batch)
    told(batch)  # said once


@trusting()
def test_a_state_goes_between_captured_and_plain(captured, statistics, tmp_path):
    fast, plain = made(statistics, compile="auto"), made(statistics, compile=False)
    for batch in shifted(5):
        fast.step(batch)
    fast.save(tmp_path / "state", buffers=True)
    plain.load(tmp_path / "state")
    batch = shifted(6)[-1]
    assert torch.allclose(plain.predict(batch), fast.predict(batch), atol=1e-5)


@trusting()
def test_a_copy_makes_captures_of_its_own(captured, statistics):
    method = made(statistics, preset="forward-only")
    for batch in shifted(4):
        method.step(batch)
    twin = copy.deepcopy(method)
    batch = shifted(5)[-1]
    assert twin.captures.made == 0
    for _ in range(turns.SEEN + 1):
        answer = twin.predict(batch)
    assert twin.captures.made == 1
    assert torch.allclose(answer, method.predict(batch), atol=1e-5)


@trusting()
def test_an_expert_that_waits_on_the_host_comes_back_for_a_captured_answer(captured, statistics):
    fast, plain = made(statistics, resident=1), made(statistics, compile=False)
    for batch in traffic():
        ours, theirs = fast.step(batch), plain.step(batch)
        assert torch.allclose(ours.logits.cpu(), theirs.logits.cpu(), atol=1e-4)
        assert (ours.domains, ours.trust) == (theirs.domains, theirs.trust)
    for batch in (traffic()[0], traffic()[10], traffic()[0], traffic()[-1]):
        assert torch.allclose(fast.predict(batch).cpu(), plain.predict(batch).cpu(), atol=1e-4)
        assert fast.last.domains == plain.last.domains
    assert fast.captures.made
    assert fast.publisher.stack.growths == 0
