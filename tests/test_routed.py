"""Experts that images carry: passes, hooks, threads, and branches as one vector."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from ostinato.checks import small_batches, small_model
from ostinato.errors import StateError
from ostinato.experts.flat import FlatBranches, _adam
from ostinato.experts.maps import block_map
from ostinato.experts.routed import BlockMap, Branch, Expert, Hooks, Pass
from ostinato.ops.moments import token_moments
from ostinato.ops.snapshot import State

WIDTH = 32
WIDTHS = [("0", WIDTH), ("1", WIDTH)]


def learned(seed: int, rank: int = 4) -> tuple[Branch, ...]:
    """Branches that do something."""
    generator = torch.Generator().manual_seed(seed)
    flat = FlatBranches(WIDTHS, rank, seed, "x")
    return flat.branches(0.3 * torch.randn(flat.value.shape, generator=generator))


def maps(seed: int) -> tuple[BlockMap, ...]:
    """Maps that do something, prefix tokens included."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        source, domain = (torch.randn(4, 17, WIDTH, generator=generator) for _ in range(2))
        found.append(block_map(token_moments(source, 1), token_moments(2 * domain + 1, 1), 0.3))
    return tuple(found)


EXPERTS = [
    Expert(maps(0), learned(0)),
    Expert(maps(1)),
    Expert((), learned(2)),
    Expert(),
]


@pytest.fixture
def batch() -> Tensor:
    return small_batches(1, size=6)[0]


def run(hooks: Hooks, net: nn.Module, images: Tensor, now: Pass) -> Tensor:
    with torch.no_grad(), hooks.open(now):
        return net(images)


def test_without_a_pass_the_model_is_its_source_to_the_bit(model, batch):
    with torch.no_grad():
        expected = model(batch)
        hooks = Hooks(model)
        assert torch.equal(model(batch), expected)
        assert torch.equal(run(hooks, model, batch, Pass([None] * 6, EXPERTS)), expected)
        assert torch.equal(run(hooks, model, batch, Pass([3] * 6, EXPERTS)), expected)
        changed = run(hooks, model, batch, Pass([0] * 6, EXPERTS))
        assert torch.equal(model(batch), expected)
    assert not torch.allclose(changed, expected, atol=1e-2)
    assert hooks.blocks == 2
    assert hooks.prefix == 1
    assert [width for _, width in hooks.widths] == [WIDTH, WIDTH]


@pytest.mark.parametrize("shared", [(), learned(7, rank=8)], ids=["alone", "shared"])
@pytest.mark.parametrize(
    "owners", [[0, 1, 2, 3, 1, 0], [None, 0, 2, None, 1, 3], [2, 2, 0, 0, 0, 0]]
)
def test_each_image_goes_by_its_own_expert(model, batch, owners, shared):
    hooks = Hooks(model)
    together = run(hooks, model, batch, Pass(owners, EXPERTS, shared))
    for row, owner in enumerate(owners):
        alone = run(hooks, model, batch[row : row + 1], Pass([owner], EXPERTS, shared))
        assert torch.allclose(together[row], alone[0], atol=1e-4), (row, owner)
    with torch.no_grad():
        source = model(batch)
    for row, owner in enumerate(owners):
        if owner is None:
            assert torch.allclose(together[row], source[row], atol=1e-5)
        elif owner != 3 or shared:
            assert not torch.allclose(together[row], source[row], atol=1e-3)


def test_maps_can_be_made_on_the_way(model, batch):
    hooks = Hooks(model)
    made: list[BlockMap] = []
    kept: list[Tensor] = []

    def make(number: int, tokens: Tensor) -> BlockMap:
        assert number == len(made)
        made.append(maps(number)[number])
        return made[-1]

    now = Pass([0] * 6, [Expert()], make=make)
    first = run(hooks, model, batch, now)
    watched = Pass([0] * 6, [Expert(tuple(made))], keep=lambda tokens: tokens[:, 0])
    second = run(hooks, model, batch, watched)
    assert torch.equal(first, second)
    kept = watched.features
    assert [tuple(one.shape) for one in kept] == [(6, WIDTH), (6, WIDTH)]


def test_hooks_come_off(model, batch):
    with torch.no_grad():
        expected = model(batch)
    hooks = Hooks(model)
    hooks.remove()
    assert torch.equal(run(hooks, model, batch, Pass([0] * 6, EXPERTS)), expected)
    assert all(not module._forward_hooks for module in model.modules())


def test_a_pass_ends_with_an_exception(model, batch):
    hooks = Hooks(model)
    with torch.no_grad():
        expected = model(batch)
    with pytest.raises(RuntimeError, match="stop"), hooks.open(Pass([0] * 6, EXPERTS)):
        raise RuntimeError("stop")
    with torch.no_grad():
        assert torch.equal(model(batch), expected)


def test_a_pass_of_one_model_leaves_another_alone(model, batch):
    other = small_model(seed=1)
    hooks, others = Hooks(model), Hooks(other)
    with torch.no_grad():
        expected = other(batch)
        with hooks.open(Pass([0] * 6, EXPERTS)):
            changed = model(batch)
            assert torch.equal(other(batch), expected)
            with others.open(Pass([None] * 6, EXPERTS)):
                other(batch)
            assert torch.equal(model(batch), changed)  # the outer pass goes on
    assert torch.equal(run(hooks, model, batch, Pass([0] * 6, EXPERTS)), changed)


def test_threads_do_not_see_each_other_s_passes(model, batch):
    hooks = Hooks(model)
    owners: list[int | None] = [0, 1, 2, None]
    expected = [run(hooks, model, batch, Pass([owner] * 6, EXPERTS)) for owner in owners]
    wrong: list[object] = []
    barrier = threading.Barrier(len(owners))

    def work(owner: int | None, answer: Tensor) -> None:
        barrier.wait()
        for _ in range(10):
            found = run(hooks, model, batch, Pass([owner] * 6, EXPERTS))
            if not torch.equal(found, answer):
                wrong.append(owner)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(owners, expected, strict=True)
    ]
    with hooks.open(Pass([1] * 6, EXPERTS)):  # the starting thread's is no one else's
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# Branches as one vector.


def test_adam_equals_torch():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(20, generator=generator)
    ours, first, second = start.clone(), torch.zeros(20), torch.zeros(20)
    theirs = nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    for step in range(1, 6):
        grad = torch.randn(20, generator=generator)
        _adam(ours, grad, first, second, step, lr=0.1)
        theirs.grad = grad
        optimizer.step()
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_one_step_that_stands_for_several_has_their_moments_and_reach():
    grad = torch.randn(20, generator=torch.Generator().manual_seed(0))
    once, first, second = (torch.zeros(20) for _ in range(3))
    many, firsts, seconds = (torch.zeros(20) for _ in range(3))
    for step in range(1, 5):
        _adam(many, grad, firsts, seconds, step, lr=0.1)
    _adam(once, grad, first, second, 4, lr=0.4, times=4)
    assert torch.allclose(first, firsts)
    assert torch.allclose(second, seconds)
    assert torch.allclose(once, many, atol=1e-5)


def test_new_branches_do_nothing_and_are_seeded(model, batch):
    flat = FlatBranches(WIDTHS, 4, seed=0, label=1)
    assert torch.equal(flat.value, FlatBranches(WIDTHS, 4, seed=0, label=1).value)
    assert not torch.equal(flat.value, FlatBranches(WIDTHS, 4, seed=0, label=2).value)
    assert all(not branch.up.any() and branch.down.any() for branch in flat.branches())
    hooks = Hooks(model)
    with torch.no_grad():
        expected = model(batch)
    found = run(hooks, model, batch, Pass([0] * 6, [Expert((), flat.branches())]))
    assert torch.equal(found, expected)


def test_published_branches_stay_as_they_were():
    flat = FlatBranches(WIDTHS, 2, 0, "shared")
    published, live = flat.published(), flat.branches()
    before = [branch.down.clone() for branch in published]
    flat.step(torch.ones_like(flat.value), lr=0.1)
    assert all(torch.equal(b.down, old) for b, old in zip(published, before, strict=True))
    assert not torch.equal(live[0].down, before[0])


def test_branches_state_round_trip():
    flat, other = (FlatBranches(WIDTHS, 2, seed, "shared") for seed in (0, 1))
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(6, *flat.value.shape, generator=generator)
    for grad in grads[:3]:
        flat.step(grad, lr=0.1)
    other.import_state(flat.export_state().clone())
    for grad in grads[3:]:
        for one in (flat, other):
            one.step(grad, lr=0.1)
    assert torch.equal(flat.value, other.value)
    assert flat.updates == other.updates == 6


def test_branches_refuse_a_state_that_does_not_fit():
    flat = FlatBranches(WIDTHS, 2, 0, "shared")
    before = flat.value.clone()
    for state in (FlatBranches(WIDTHS, 3, 0, "shared").export_state(), State()):
        with pytest.raises(StateError, match="does not fit"):
            flat.import_state(state)
    headless = flat.export_state().clone()
    headless.tensors["value"] += 1
    del headless.values["updates"]
    with pytest.raises(StateError):
        flat.import_state(headless)
    assert torch.equal(flat.value, before)
