"""Experts side by side: the same answers as one by one, rows that come and go, growth."""

from __future__ import annotations

import gc
import pickle
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ostinato.checks import small_batches, small_model
from ostinato.domains.router import Router
from ostinato.domains.routes import Routes, packed
from ostinato.experts.flat import FlatBranches
from ostinato.experts.maps import block_map
from ostinato.experts.routed import SCALE, BlockMap, Branch, Expert, Hooks, Pass
from ostinato.experts.stack import START, Layout, Stack, StackPass
from ostinato.ops.moments import token_moments
from ostinato.ops.whitening import Content
from ostinato.speed._ways import trusting

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, clean, shifted = kit["build"], kit["clean"], kit["shifted"]
clean_statistics = kit["clean_statistics"]

WIDTH, RANK = 32, 4
LAYOUT = Layout(((WIDTH, WIDTH, 1),) * 2, ((WIDTH, RANK),) * 2)
LOW = Layout(((WIDTH, 8, 1),) * 2, ((WIDTH, RANK),) * 2)
KINDS = {torch.float: 1e-5, torch.double: 1e-12}


def learned(seed: int, rank: int = RANK) -> tuple[Branch, ...]:
    generator = torch.Generator().manual_seed(seed)
    flat = FlatBranches([("0", WIDTH), ("1", WIDTH)], rank, seed, "x")
    return flat.branches(0.3 * torch.randn(flat.value.shape, generator=generator))


def maps(seed: int, rank: int = WIDTH) -> tuple[BlockMap, ...]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        source, domain = (torch.randn(4, 17, WIDTH, generator=generator) for _ in range(2))
        moments = token_moments(source, 1), token_moments(2 * domain + 1, 1)
        found.append(block_map(*moments, 0.3, rank))
    return tuple(found)


def experts(rank: int) -> list[Expert]:
    return [
        Expert(maps(0, rank), learned(0)),
        Expert(maps(1, rank)),
        Expert((), learned(2)),
        Expert(),
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layout", [LAYOUT, LOW], ids=["whole", "low rank"])
@pytest.mark.parametrize("shared", [(), learned(7, rank=8)], ids=["alone", "shared"])
@pytest.mark.parametrize("owners", [[0, 1, 2, 3, 1, 0], [None, 0, 2, None, 1, 3], [1] * 6, [0] * 6])
def test_rows_answer_as_experts_one_by_one(owners, shared, layout, kind):
    model, batch = small_model().to(kind), small_batches(1, size=6)[0].to(kind)
    known = experts(layout.blocks[0][1])
    hooks, stack = Hooks(model), Stack(layout, "cpu", kind)
    held = stack.rows(known)
    rows = [one.number for one in held]
    index = torch.tensor([0 if owner is None else rows[owner] for owner in owners])
    if shared:  # an expert without effect still has the shared branch: row 0 is the source alone
        owners = [None if owner == 3 else owner for owner in owners]
    single = int(index[0]) if len(set(owners)) == 1 else None
    with torch.no_grad():
        with hooks.open(Pass(owners, known, shared)):
            plain = model(batch)
        scaled = tuple(Branch(one.down, SCALE * one.up) for one in shared)
        for alone, at_once in {(single, False), (None, False), (None, True)}:
            now = StackPass(index, stack.now, scaled, single=alone)
            now.at_once = at_once  # as on a GPU
            with hooks.open(now):
                fast = model(batch)
            assert torch.allclose(fast, plain, rtol=KINDS[kind], atol=KINDS[kind])


@pytest.mark.parametrize("at_once", [True, False], ids=["gathered at once", "layer by layer"])
@pytest.mark.parametrize("alone", [True, False], ids=["one domain", "mixed"])
def test_rows_in_half_precision_answer_as_experts_one_by_one(alone, at_once):
    model, batch = small_model(), small_batches(1, size=6)[0]
    known, shared = experts(WIDTH), learned(7, rank=8)
    hooks, stack = Hooks(model), Stack(LAYOUT, "cpu", torch.bfloat16)
    held = stack.rows(known)
    rows = [one.number for one in held]
    owners = [0] * 6 if alone else [0, 1, 2, None, 1, 0]
    index = torch.tensor([0 if owner is None else rows[owner] for owner in owners])
    scaled = tuple(Branch(one.down.bfloat16(), (SCALE * one.up).bfloat16()) for one in shared)
    now = StackPass(index, stack.now, scaled, single=rows[0] if alone else None)
    now.at_once = at_once
    with torch.no_grad():
        with hooks.open(Pass(owners, known, shared)):
            exact = model(batch)
        with torch.autocast("cpu", torch.bfloat16):
            with hooks.open(Pass(owners, known, shared)):
                plain = model(batch)
            with hooks.open(now):
                fast = model(batch)
    off, usual = (float((one - exact).norm()) for one in (fast, plain))
    assert off < 1.5 * usual  # no farther from full precision than half precision is anyway
    assert off < 0.05 * float(exact.norm())


def test_source_rows_are_the_source_to_the_bit():
    model, batch = small_model(), small_batches(1, size=6)[0]
    with torch.no_grad():
        expected = model(batch)
        hooks, stack = Hooks(model), Stack(LAYOUT, "cpu")
        (held,) = stack.rows([experts(WIDTH)[0]])
        row = held.number
        index = torch.tensor([0, row, 0, row, 0, 0])
        with hooks.open(StackPass(index, stack.now)):
            found = model(batch)
    assert torch.equal(found[index == 0], expected[index == 0])
    assert not torch.allclose(found[index == row], expected[index == row], atol=1e-2)


def test_rows_are_kept_while_they_are_held_and_used_again_after():
    stack = Stack(LAYOUT, "cpu")
    expert = experts(WIDTH)[0]
    (held,) = stack.rows([expert])
    before = stack.now.matrices[held.number].clone()
    for seed in range(3 * START):
        stack.rows([Expert((), learned(seed))])
    gc.collect()
    assert stack.growths == 0
    assert stack.rows([expert]) == [held]
    assert torch.equal(stack.now.matrices[held.number], before)
    number = held.number
    del held
    gc.collect()
    others = [Expert((), learned(seed)) for seed in range(START - 1)]
    assert number in [row.number for row in stack.rows(others)]


def test_growth_keeps_rows_and_older_readers():
    stack = Stack(LAYOUT, "cpu")
    many = [Expert((), learned(seed)) for seed in range(2 * START)]
    first = stack.rows(many[:2])
    old = stack.now
    rows = stack.rows(many)
    assert rows[:2] == first
    assert stack.growths == 2
    assert len({row.number for row in rows}) == len(many)
    assert 0 not in [row.number for row in rows]
    for row in first:
        assert torch.equal(old.matrices[row.number], stack.now.matrices[row.number])


# Routing on the device.


def descriptors(count: int, seed: int, off: float = 0.0) -> Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed)) + off


def test_routes_decide_as_the_view_does():
    router = Router(Content.of(descriptors(300, 0)), enough=8)
    for number, off in enumerate((0.0, 1.5, -1.5, 3.0)):
        router.observe(descriptors(40, 1 + number, off))
    assert len(router.ids) == 4
    view, content = router.view(), router.content
    rows = [0, 5, 0, 7]
    routes = Routes(packed(view, rows), len(content.mean))
    batch = torch.cat([descriptors(5, 50 + k, off) for k, off in enumerate((0, 1.5, -1.5, 3, 1e9))])
    placed = content.place(batch)
    verdict, routed = view.decide(placed), routes(placed)
    assert routed.owners.tolist() == verdict.owners()
    assert torch.allclose(routed.distance, verdict.distance)
    table = dict(zip(view.ids, rows, strict=True))
    assert routed.rows.tolist() == [table[owner] for owner in verdict.owners()]
    assert set(routed.rows.tolist()) == {0, 5, 7}


# The whole method.


@trusting()
def test_an_expert_is_published_anew_only_when_it_changes():
    adapted = build(clean_statistics())
    for batch in shifted(6):
        adapted(batch)
    rest = iter(clean(8))
    while adapted.last.updated:  # images that wait are learned from meanwhile
        adapted(next(rest))
    before = dict(adapted.version.experts)
    assert before
    adapted(next(rest))
    assert all(adapted.version.experts[n] is expert for n, expert in before.items())
    learned_from = 0
    for batch in shifted(14)[6:]:
        was = dict(adapted.version.experts)
        adapted(batch)
        learned_from += adapted.last.updated
        if adapted.last.updated:
            assert any(adapted.version.experts[n] is not expert for n, expert in was.items())
    assert learned_from
    assert adapted.publisher.stack.growths == 0


@trusting()
def test_a_copy_answers_from_rows_of_its_own():
    adapted = build(clean_statistics())
    for batch in shifted(6):
        adapted(batch)
    copied = pickle.loads(pickle.dumps(adapted.publisher))
    batch = shifted(7)[-1]
    with adapted.frozen():
        expected = adapted.predict(batch)
        adapted.publisher = copied
        assert torch.equal(adapted.predict(batch), expected)
