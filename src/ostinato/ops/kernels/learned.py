"""Both branches of the one domain that learns, with gradients; see `branches` for what they do.

The plain version is `experts.routed.side_by_side`. On the way back one pass over tokens and
gradients takes the hidden numbers anew and gives the gradient by tokens; what is left are two
products for the gradients by the matrices.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.ops.kernels._cuts import Exactness, Tiles, exactness, on_device, padded
from ostinato.ops.kernels.branches import Pair, gelu, launched

_TILES = {2: Tiles(64, 64, 8, 2, 2), 4: Tiles(32, 32, 4, 2, 2)}
"""By the size of a product's numbers in bytes."""


@triton.jit
def _back(z, grad, by_z, hidden, by_hidden, down, up, tokens, scale,
          z_n, grad_n, by_n, down_k, up_r,
          WIDTH: tl.constexpr, RANK: tl.constexpr, KIND: tl.constexpr, EXACT: tl.constexpr,
          AHEAD: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
          BR: tl.constexpr):  # fmt: skip
    """The gradient by some tokens; hidden numbers, times `scale`, and the gradient by them."""
    place = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    here = place < tokens
    ranks = tl.arange(0, BR)
    used = ranks < RANK
    before = tl.zeros((BM, BR), tl.float32)
    by = tl.zeros((BM, BR), tl.float32)
    for k in range(0, WIDTH, BK):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        mask = here[:, None] & known[None]
        both = known[:, None] & used[None]
        one = tl.load(z + place[:, None] * z_n + features[None], mask=mask, other=0.0)
        matrix = tl.load(down + features[:, None] * down_k + ranks[None], mask=both, other=0.0)
        before = tl.dot(one.to(KIND), matrix, before, input_precision=EXACT)
        one = tl.load(grad + place[:, None] * grad_n + features[None], mask=mask, other=0.0)
        matrix = tl.load(up + ranks[None] * up_r + features[:, None], mask=both, other=0.0)
        by = tl.dot(one.to(KIND), matrix, by, input_precision=EXACT)
    bell = tl.exp(-0.5 * before * before) * 0.3989422804014327
    by *= 0.5 * (1.0 + tl.erf(before * 0.7071067811865476)) + before * bell
    inner = by.to(KIND)
    at = place[:, None] * RANK + ranks[None]
    kept = here[:, None] & used[None]
    tl.store(hidden + at, (scale * gelu(before)).to(KIND), mask=kept)
    tl.store(by_hidden + at, inner, mask=kept)
    for k in tl.range(0, WIDTH, BK, num_stages=AHEAD):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        mask = here[:, None] & known[None]
        both = used[:, None] & known[None]
        one = tl.load(grad + place[:, None] * grad_n + features[None], mask=mask, other=0.0)
        matrix = tl.load(down + features[None] * down_k + ranks[:, None], mask=both, other=0.0)
        total = tl.dot(inner, matrix, input_precision=EXACT)
        total += one.to(tl.float32)
        tl.store(by_z + place[:, None] * by_n + features[None],
                 total.to(by_z.dtype.element_ty), mask=mask)  # fmt: skip


def fed_by_two(tokens: Tensor, index: Tensor, shared: Pair, own: Pair, scale: float) -> Tensor:
    """Tokens of one domain with what both its branches add, times `scale`; can be differentiated.

    Args:
        tokens: (B, N, D), a feed-forward network's output.
        index: (1,) any row; branches are given.
        shared: the branch that it shares.
        own: its own.
        scale: of what is added.
    """
    flat = tokens.reshape(1, -1, tokens.shape[-1])
    fed: Tensor = _Fed.apply(flat, *shared, *own, index, scale, exactness(tokens))
    return fed.view(tokens.shape)


class _Fed(torch.autograd.Function):
    """Both branches, with gradients by tokens and by all four matrices."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        shared_down: Tensor,
        shared_up: Tensor,
        down: Tensor,
        up: Tensor,
        index: Tensor,
        scale: float,
        exact: Exactness,
    ) -> Tensor:
        half, rank = exact.dtype, shared_down.shape[1]
        downs = torch.cat([shared_down, down], 1).to(half)
        ups = (scale * torch.cat([shared_up, up])).to(half)
        ctx.save_for_backward(tokens, downs, ups)
        ctx.rest = (rank, scale, up.dtype, exact)
        shared, own = Pair(downs[:, :rank], ups[:rank]), Pair(downs[:, rank:], ups[rank:])
        return launched(tokens, index, shared, own, exact, everywhere=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, downs, ups = ctx.saved_tensors
        rank, scale, kind, exact = ctx.rest
        z, g = tokens[0], grad[0].contiguous()
        by_tokens, hidden, by_hidden = _gone_back(z, g, downs, ups, scale, exact)
        ranks = [rank, len(ups) - rank]
        by_downs = _product(z.to(downs.dtype).mT, by_hidden, kind).split(ranks, 1)
        by_ups = _product(hidden.mT, g.to(downs.dtype), kind).split(ranks)
        parts = (by_downs[0], by_ups[0], by_downs[1], by_ups[1])
        return by_tokens[None], *parts, None, None, None


def _gone_back(
    z: Tensor, grad: Tensor, downs: Tensor, ups: Tensor, scale: float, exact: Exactness
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient by tokens, hidden numbers times `scale`, and the gradient by them."""
    (count, width), rank = z.shape, len(ups)
    by_tokens = torch.empty_like(z)
    hidden, by_hidden = downs.new_empty(2, count, rank)
    tiles = _TILES[exact.size]
    if count:
        with on_device(z):
            _back[(triton.cdiv(count, tiles.tokens),)](
                z, grad, by_tokens, hidden, by_hidden, downs, ups, count, scale,
                z.stride(0), grad.stride(0), by_tokens.stride(0), downs.stride(0), ups.stride(0),
                WIDTH=width, RANK=rank, KIND=exact.kind, EXACT=exact.single,
                AHEAD=tiles.ahead, BM=tiles.tokens, BK=tiles.features, BR=padded(rank),
                num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
            )  # fmt: skip
    return by_tokens, hidden, by_hidden


def _product(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    """A product in the kind of gradients, without rounding it to the factors' kind on the way."""
    return a @ b if a.dtype == kind else torch.mm(a, b, out_dtype=kind)
