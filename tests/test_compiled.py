"""Compiled blocks: the same answers, compiled once for all blocks, domains and models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from ostinato.checks import small_model
from ostinato.experts.compiled import CompiledBlocks
from ostinato.experts.routed import Acting, Branch, Expert, Hooks, Pass
from ostinato.methods.ostinato._narrowed import Narrowed
from ostinato.ops.blocks import find_blocks


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counted() -> tuple[nn.Module, Hooks, CompiledBlocks, CompileCounter]:
    model, counter = small_model().eval(), CompileCounter()
    hooks = Hooks(model)

    def compile(forward: Any) -> Any:
        return torch.compile(forward, dynamic=False, backend=counter)

    return model, hooks, hooks.compiled(compile), counter


def learned(hooks: Hooks, seed: int) -> Acting:
    """A pass in which every network has a branch."""
    draw = torch.Generator().manual_seed(seed)
    shared = [
        Branch(torch.randn(width, 2, generator=draw), torch.randn(2, width, generator=draw))
        for _, width in hooks.widths
    ]
    return Pass([0] * 4, [Expert()], tuple(shared))


@pytest.mark.parametrize("alone", [False, True], ids=["all tokens", "first alone at the end"])
@torch.no_grad()
def test_compiled_blocks_answer_as_plain_ones_with_experts_between_them(alone):
    model, hooks, compiled, counter = counted()
    hooks.alone = alone
    images = torch.rand(4, 3, 32, 32)
    bare = model(images)
    for seed in (1, 2):
        with hooks.open(learned(hooks, seed)):
            plain = model(images)
        with compiled(), hooks.open(learned(hooks, seed)):
            ours = model(images)
        assert torch.allclose(ours, plain, atol=1e-5)
        assert not torch.allclose(plain, bare, atol=1e-3)
    assert counter.frame_count


@torch.no_grad()
def test_what_is_compiled_serves_all_blocks_experts_and_models():
    model, hooks, compiled, counter = counted()
    images = torch.rand(4, 3, 32, 32)
    with compiled():
        model(images)
    once = counter.frame_count
    for seed in (1, 2, 3):
        with compiled(), hooks.open(learned(hooks, seed)):
            model(images)
    assert counter.frame_count == once
    other = small_model().eval()
    with Hooks(other).compiled(lambda f: torch.compile(f, dynamic=False, backend=counter))():
        other(images)
    assert counter.frame_count == once
    with compiled():
        model(images[:2])
    assert counter.frame_count == 2 * once  # another batch size


def test_blocks_and_hooks_are_as_they_were_afterwards():
    model, _, compiled, _ = counted()
    blocks = list(find_blocks(model).values())
    before = [dict(block._forward_hooks) for block in blocks]
    with compiled():
        assert all("forward" in vars(block) for block in blocks)
    assert not any("forward" in vars(block) for block in blocks)
    assert [dict(block._forward_hooks) for block in blocks] == before


@pytest.mark.parametrize("called", ["by place", "by name"])
@torch.no_grad()
def test_layers_with_rounded_weights_answer_as_autocast_does_and_as_ever_without(called):
    layer, rounded = nn.Linear(4, 3), Narrowed()
    images = torch.rand(2, 4)

    def ask() -> torch.Tensor:
        return layer(images) if called == "by place" else layer(input=images)

    bare = ask()
    with torch.autocast("cpu", torch.bfloat16):
        plain = ask()
        with rounded.in_layers(layer):
            assert torch.equal(ask(), plain)
            with torch.autocast("cpu", enabled=False):  # as another thread may ask meanwhile
                assert torch.equal(ask(), bare)
            layer.weight.mul_(-1)
            rounded.refresh()
            changed = ask()
    with torch.autocast("cpu", torch.bfloat16):  # which keeps what it has rounded, too
        assert torch.equal(changed, ask())
    assert not torch.equal(changed, plain)
    assert "forward" not in vars(layer)
