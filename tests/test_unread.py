"""Tokens that no answer rests on: found by trial, left out while experts act, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from ostinato.checks import small_batches, small_model
from ostinato.experts.frozen import bare_copy
from ostinato.experts.maps import block_map
from ostinato.experts.routed import Branch, Expert, Hooks, Pass, leaves
from ostinato.experts.stack import Layout, Stack, StackPass
from ostinato.experts.unread import leave_out_unread
from ostinato.models import VisionModel
from ostinato.ops.moments import token_moments

WIDTH = 32


def expert(seed: int, *, mapped: bool = True) -> Expert:
    """One that does something in a network of two blocks."""
    draw = torch.Generator().manual_seed(seed)
    source, domain = (torch.randn(4, 17, WIDTH, generator=draw) for _ in range(2))
    move = block_map(token_moments(source, 1), token_moments(2 * domain + 1, 1), 0.3)
    return Expert((move,) if mapped else (), branches(seed))


def branches(seed: int) -> tuple[Branch, ...]:
    draw = torch.Generator().manual_seed(seed)
    sizes = ((WIDTH, 4), (4, WIDTH))
    drawn = (tuple(0.3 * torch.randn(size, generator=draw) for size in sizes) for _ in range(2))
    return tuple(Branch(*pair) for pair in drawn)


EXPERTS = [expert(0), expert(1), expert(2, mapped=False), Expert()]
SHARED = branches(7)


def hooked(model: nn.Module) -> Hooks:
    hooks, vision = Hooks(model), VisionModel(model, normalize="none").eval()
    leave_out_unread(hooks, vision, vision.example())
    return hooks


class Lengths:
    """How many tokens a model's last feed-forward network was given, forward by forward."""

    def __init__(self, model: Any) -> None:
        self.seen: list[int] = []
        model.blocks[-1].mlp.fc1.register_forward_hook(self._note)

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.seen.append(inputs[0].shape[1])


def small_vit(**changes: Any) -> nn.Module:
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
    torch.manual_seed(0)
    return timm.models.VisionTransformer(**{"depth": 2, **settings, **changes}).eval()


@pytest.fixture
def batch() -> Tensor:
    return small_batches(1, size=6)[0]


def stacked(hooks: Hooks, owners: list[int]) -> StackPass:
    stack = Stack(Layout(((WIDTH, WIDTH, 1),), ((WIDTH, 4),) * len(hooks.widths)), "cpu")
    rows = stack.rows(EXPERTS[:2])
    return StackPass(torch.tensor([rows[owner].number for owner in owners]), stack.now)


@pytest.mark.parametrize(
    "make",
    [
        lambda hooks: Pass([0] * 6, EXPERTS, SHARED),
        lambda hooks: Pass([0, None, 1, 2, 3, 0], EXPERTS, SHARED),
        lambda hooks: stacked(hooks, [0, 1, 0, 1, 1, 0]),
    ],
    ids=["one domain", "mixed", "stack"],
)
@torch.no_grad()
def test_answers_are_the_same_without_tokens_that_nobody_reads(batch, make):
    model = small_vit()
    hooks, lengths = hooked(model), Lengths(model)
    assert hooks.alone
    with hooks.open(make(hooks)):
        narrow = model(batch)
        hooks.alone = False
        plain = model(batch)
    assert lengths.seen == [1, 17]
    assert torch.allclose(narrow, plain, atol=1e-5)


def test_gradients_are_the_same_without_tokens_that_nobody_reads(batch):
    model = small_vit().double()
    hooks = hooked(model)
    own = leaves(SHARED, torch.double)
    found = []
    for alone in (True, False):
        hooks.alone = alone
        now = Pass([0] * 6, [EXPERTS[2]], own, keep=hooks.pooled)
        with hooks.open(now):
            loss = model(batch.double()).square().sum() + now.features[-1].sum()
        found.append(torch.autograd.grad(loss, [part for branch in own for part in branch]))
    for narrow, plain in zip(*found, strict=True):
        assert torch.allclose(narrow, plain, rtol=1e-9, atol=1e-12)
    assert found[0][-1].abs().max() > 0


@torch.no_grad()
def test_the_source_model_and_whoever_asks_for_all_tokens_have_them_all(batch):
    model = small_vit()
    expected, hooks = model(batch), hooked(model)
    lengths = Lengths(model)
    assert torch.equal(model(batch), expected)
    with hooks.open(Pass([None] * 6, EXPERTS)):
        assert torch.equal(model(batch), expected)
    kept = Pass([0] * 6, EXPERTS, SHARED, keep=lambda tokens: tokens, whole=True)
    with hooks.open(kept):
        model(batch)
    assert lengths.seen == [17, 17, 17]
    assert [tokens.shape[1] for tokens in kept.features] == [17, 17]
    hooks.remove()
    assert not model.blocks[-1].mlp._forward_pre_hooks


@pytest.mark.parametrize(
    "changes",
    [{"global_pool": "avg"}, {"class_token": False, "global_pool": "avg"}, {"depth": 3}],
    ids=["mean of tokens", "no class token", "a map after the last block"],
)
@torch.no_grad()
def test_tokens_that_an_answer_or_a_map_rests_on_stay(batch, changes):
    model = small_vit(**changes)
    hooks, lengths = hooked(model), Lengths(model)
    assert not hooks.alone
    with hooks.open(Pass([0] * 6, [Expert((), branches(1) + branches(2))])):
        model(batch)
    assert lengths.seen[0] >= 16


def test_a_model_that_takes_no_such_image_keeps_its_tokens():
    model = small_vit()
    hooks, vision = Hooks(model), VisionModel(model, normalize="none").eval()
    leave_out_unread(hooks, vision, torch.zeros(1, 3, 20, 20))
    assert not hooks.alone


def test_copies_without_hooks_have_none_before_the_last_network_either():
    model = small_model()
    hooked(model)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in bare_copy(model).modules())
