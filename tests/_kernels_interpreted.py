"""Kernels in Triton's interpreter beside plain torch; `test_kernels.py` runs this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton.runtime import interpreter

from ostinato.checks import small_batches, small_model
from ostinato.domains.texture import _at_once, _described
from ostinato.experts.flat import FlatBranches
from ostinato.experts.routed import SCALE, BlockMap, Branch, Expert, Hooks, Pass
from ostinato.experts.stack import Layout, Rows, Stack, StackPass, moved_by
from ostinato.methods.ostinato._step import LearningPass
from ostinato.ops import kernels
from ostinato.ops.kernels.branches import Pair, fed_rows
from ostinato.ops.kernels.maps import Parts, moved_and_first, moved_rows

QUICK = (Phase.explicit, Phase.generate)  # an interpreter is slow at finding smaller examples
KINDS = {torch.float: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True, scope="module")
def bounds() -> Iterator[None]:
    """Whatever a kernel reads or writes lies in one of the tensors that it was given."""
    known: list[tuple[int, int]] = []
    builder, grid = interpreter.InterpreterBuilder, interpreter.GridExecutor
    before = builder.create_masked_load, builder.create_masked_store, grid._init_args_hst

    def check(pointers: Any, mask: Any) -> None:
        taken = pointers.data.astype(np.int64)[np.broadcast_to(mask.data, pointers.data.shape)]
        inside = [(taken >= low) & (taken < high) for low, high in known]
        assert np.any(inside, axis=0).all()

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return before[0](self, pointers, mask, *rest)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return before[1](self, pointers, value, mask, *rest)

    def take(self: Any, args: Any, kwargs: Any) -> Any:
        found = before[2](self, args, kwargs)
        stores = [one.untyped_storage() for one in found[0] if isinstance(one, Tensor)]
        known[:] = [(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in stores]
        return found

    builder.create_masked_load, builder.create_masked_store = load, store
    grid._init_args_hst = take
    yield
    builder.create_masked_load, builder.create_masked_store, grid._init_args_hst = before


def drawn(*shape: int, seed: int = 0, kind: torch.dtype = torch.float) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(kind)


def rows_of(layout: Layout, kind: torch.dtype, count: int = 4) -> Rows:
    """Random rows; the first is the source's."""
    stack = Stack(layout, "cpu", kind)
    now = stack.now
    now.matrices[1:count] = 0.1 * drawn(*now.matrices[1:count].shape, seed=3).to(kind)
    now.vectors[1:count] = drawn(*now.vectors[1:count].shape, seed=4)
    return now


def off(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def exact_map(rows: Rows, tokens: Tensor, index: Tensor) -> Tensor:
    """The map in double precision, by gathered rows."""
    parts = [None if one is None else one[index].double() for one in rows.block(0)]
    return moved_by(parts, tokens.double())


@settings(max_examples=6, deadline=None, phases=QUICK)
@given(
    width=st.sampled_from([16, 24, 48, 100]),
    rank=st.sampled_from([4, 8, 20, 1000]),
    prefix=st.sampled_from([0, 1, 5]),
    tokens=st.sampled_from([1, 5, 33]),
    kind=st.sampled_from(list(KINDS)),
    pieces=st.sampled_from([1, 2]),
)
def test_maps(width, rank, prefix, tokens, kind, pieces):
    rows = rows_of(Layout(((width, min(rank, width), prefix),), ()), kind)
    given = drawn(3 * pieces, max(tokens, prefix), width, seed=1, kind=kind)
    index = torch.tensor([2, 0, 3])
    found = moved_rows(given, index, Parts(*rows.block(0)))
    expected = exact_map(rows, given, index.repeat_interleave(pieces))
    assert found.dtype == kind
    assert off(found, expected) < KINDS[kind]
    source = slice(pieces, 2 * pieces)
    assert torch.equal(found[source], given[source])  # row 0 changes no bit


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("rank", [8, 40], ids=["low rank", "whole"])
def test_gradients_of_maps(rank, prefix):
    rows = rows_of(Layout(((40, rank, prefix),), ()), torch.float)
    given = drawn(3, 7, 40).requires_grad_()
    index, weight, more = torch.tensor([2, 0, 3]), drawn(3, 7, 40, seed=2), drawn(3, 40, seed=3)
    exact = exact_map(rows, given, index)
    for all_tokens, first_tokens in ((1, 0), (0, 1), (1, 1)):
        moved, first = moved_and_first(given, index, Parts(*rows.block(0)))
        assert torch.equal(first, moved[:, 0])
        parts = [(moved * weight).sum()] * all_tokens + [(first * more).sum()] * first_tokens
        (found,) = torch.autograd.grad(parts, given)
        loss = all_tokens * (exact * weight).sum() + first_tokens * (exact[:, 0] * more).sum()
        (plain,) = torch.autograd.grad(loss, given, retain_graph=True)
        assert off(found, plain) < 2e-6


def test_feature_maps_with_channels_first_keep_their_strides():
    rows = rows_of(Layout(((24, 24, 0),), ((24, 4),)), torch.float)
    given = drawn(2, 24, 5, 3).permute(0, 2, 3, 1).reshape(2, 15, 24)
    assert not given.is_contiguous()
    index = torch.tensor([1, 3])
    found = moved_rows(given, index, Parts(*rows.block(0)))
    assert found.stride() == given.stride()
    assert off(found, exact_map(rows, given, index)) < 2e-6


def exact_branches(tokens: Tensor, index: Tensor, shared: Pair | None, own: Pair | None) -> Tensor:
    total = tokens.double()
    if shared is not None:
        one = Branch(shared.down.double(), shared.up.double())(tokens.double())
        total = total + one * (index > 0)[:, None, None]
    if own is not None:
        total = total + Branch(own.down[index].double(), own.up[index].double())(tokens.double())
    return total


@settings(max_examples=5, deadline=None, phases=QUICK)
@given(
    width=st.sampled_from([16, 40, 100]),
    ranks=st.sampled_from([(8, 4), (64, 32), (0, 20), (12, 0)]),
    tokens=st.sampled_from([1, 5, 33]),
    kind=st.sampled_from(list(KINDS)),
    pieces=st.sampled_from([1, 2]),
)
def test_branches(width, ranks, tokens, kind, pieces):
    rows = rows_of(Layout((), ((width, max(ranks[1], 1)),)), kind)
    down, up = drawn(width, ranks[0], seed=5, kind=kind), drawn(ranks[0], width, seed=6)
    shared = Pair(down, (0.1 * up).to(kind)) if ranks[0] else None
    own = Pair(*rows.feed(0)) if ranks[1] else None
    given = drawn(3 * pieces, tokens, width, seed=1, kind=kind)
    index = torch.tensor([2, 0, 3])
    found = fed_rows(given, index, shared, own)
    expected = exact_branches(given, index.repeat_interleave(pieces), shared, own)
    assert found.dtype == kind
    assert off(found, expected) < KINDS[kind]
    source = slice(pieces, 2 * pieces)
    assert torch.equal(found[source], given[source])


WIDTH = 32
LAYOUTS = [Layout(((WIDTH, rank, 1),) * 2, ((WIDTH, 4),) * 2) for rank in (WIDTH, 8)]


def learned(seed: int, rank: int) -> tuple[Branch, ...]:
    flat = FlatBranches([("0", WIDTH), ("1", WIDTH)], rank, seed, "x")
    return flat.branches(0.3 * drawn(len(flat.value), seed=seed))


def experts(rank: int) -> list[Expert]:
    def one(seed: int) -> BlockMap:
        low = rank < WIDTH
        up = 0.1 * drawn(rank if low else 0, WIDTH, seed=seed + 2)
        parts = (drawn(WIDTH, seed=seed), 0.1 * drawn(WIDTH, rank, seed=seed + 1), up)
        return BlockMap(*parts, drawn(WIDTH, seed=seed + 3), drawn(1, WIDTH, seed=seed + 4))

    return [
        Expert((one(0), one(5)), learned(0, 4)),
        Expert((one(20), one(25))),
        Expert((), learned(2, 4)),
    ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["whole", "low rank"])
def test_a_forward_with_kernels_answers_as_experts_one_by_one(layout, monkeypatch):
    model, batch = small_model(), small_batches(1, size=6)[0]
    known, shared = experts(layout.blocks[0][1]), learned(7, 8)
    hooks, stack = Hooks(model), Stack(layout, "cpu")
    held = stack.rows(known)
    owners = [0, 1, 2, None, 1, 0]
    index = torch.tensor([0 if owner is None else held[owner].number for owner in owners])
    scaled = tuple(Branch(one.down, SCALE * one.up) for one in shared)
    monkeypatch.setattr(Rows, "of", None)  # no row is copied for an image
    with torch.no_grad():
        with hooks.open(Pass(owners, known, shared)):
            plain = model(batch)
        with hooks.open(StackPass(index, stack.now, scaled)):
            fast = model(batch)
        source = model(batch)
    assert off(fast, plain) < 1e-5
    assert torch.equal(fast[3], source[3])


@pytest.mark.parametrize("layout", LAYOUTS, ids=["whole", "low rank"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_a_step_with_kernels_has_the_plain_gradients(layout, half, monkeypatch):
    model, batch = small_model(), small_batches(1, size=6)[0]
    known = experts(layout.blocks[0][1])[0]
    hooks, stack = Hooks(model), Stack(layout, "cpu", torch.bfloat16 if half else torch.float)
    (held,) = stack.rows([known])
    groups = [FlatBranches(hooks.widths, rank, 0, "x") for rank in (8, 4)]
    values = [0.3 * drawn(len(group.value), seed=rank) for rank, group in enumerate(groups)]

    def gradients(fused: bool, kind: torch.dtype) -> tuple[Tensor, ...]:
        monkeypatch.setattr(kernels, "ready", lambda *given: fused)
        hooks.alone = fused  # one token an image at the end, as where nobody reads the others
        shared, own = (g.leaves(v.to(kind)) for g, v in zip(groups, values, strict=True))
        row = torch.tensor([held.number])
        now: Any = LearningPass(row, stack.now, shared, own, class_token=True)
        narrow = torch.autocast("cpu", torch.bfloat16, enabled=half and kind == torch.float)
        with hooks.open(now), narrow:
            loss = model.to(kind)(batch.to(kind)).float().square().sum()
            loss = loss + sum(feature.float().std() for feature in now.features)
        leaves = [part for group in (shared, own) for one in group for part in (one.down, one.up)]
        return (loss.detach()[None], *torch.autograd.grad(loss, leaves))

    exact, plain = gradients(False, torch.double), gradients(False, torch.float)
    found = gradients(True, torch.float)
    for fast, usual, true in zip(found, plain, exact, strict=True):
        assert off(fast, true) < (2 * off(usual, true) + 0.01 if half else 1e-5)


@settings(max_examples=2, deadline=None, phases=QUICK)
@given(
    height=st.integers(64, 90),
    width=st.integers(64, 90),
    last=st.booleans(),
    levels=st.booleans(),
)
def test_texture(height, width, last, levels):
    pixels = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(height))
    pixels[0] = 0.3 + 0.05 * pixels[0]  # little texture: many responses are nearly absent
    pixels = (255 * pixels).round() / 255 if levels else pixels
    if last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    found, plain = _at_once(pixels), _described(pixels)
    assert torch.allclose(found, plain, rtol=1e-5, atol=2e-5)
    counts = found[:, 249:345].double().expm1() * height * width / 32
    usual = plain[:, 249:345].double().expm1() * height * width / 32
    assert torch.equal(counts.round(), usual.round())
