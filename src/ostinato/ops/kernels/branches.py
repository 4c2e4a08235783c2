"""Learned branches beside a feed-forward network, in one pass over its output.

The plain version is `experts.stack.StackPass.fed`: `z + gelu(z · down) · up` for the branch that
all domains share and for that of each image's row; the source's images (row 0) have neither.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.ops.kernels._cuts import Exactness, Tiles, exactness, on_device, padded

_TILES = {2: Tiles(64, 64, 4, 3, 3), 4: Tiles(32, 32, 4, 2, 2)}
"""By the size of a product's numbers in bytes."""


class Pair(NamedTuple):
    """A branch: (D, r) and (r, D), or a first dimension for a row each."""

    down: Tensor
    up: Tensor


@triton.jit
def gelu(x):
    """In its exact form."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _inner(hidden, one, matrix, row, features, known, down_r, down_k, down_n,
           RANK: tl.constexpr, BR: tl.constexpr,
           KIND: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Some more features of `z · down`."""
    ranks = tl.arange(0, BR)
    at = matrix + row * down_r + features[:, None] * down_k + ranks[None] * down_n
    some = tl.load(at, mask=known[:, None] & (ranks < RANK)[None], other=0.0)
    return tl.dot(one, some.to(KIND), hidden, input_precision=EXACT)


@triton.jit
def _outer(total, hidden, matrix, row, features, known, up_r, up_k, up_n,
           RANK: tl.constexpr, BR: tl.constexpr,
           KIND: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Some features of `hidden · up`, added to the total."""
    ranks = tl.arange(0, BR)
    at = matrix + row * up_r + ranks[:, None] * up_k + features[None] * up_n
    some = tl.load(at, mask=(ranks < RANK)[:, None] & known[None], other=0.0)
    return tl.dot(hidden, some.to(KIND), total, input_precision=EXACT)


@triton.jit
def _branches(z, y, index, shared_down, shared_up, down, up, tokens, pieces,
              z_b, z_n, z_d, y_b, y_n, y_d,
              shared_down_r, shared_down_k, shared_down_n, shared_up_r, shared_up_k, shared_up_n,
              down_r, down_k, down_n, up_r, up_k, up_n,
              WIDTH: tl.constexpr, SHARED: tl.constexpr, RANK: tl.constexpr,
              ALL: tl.constexpr, KIND: tl.constexpr, EXACT: tl.constexpr, AHEAD: tl.constexpr,
              BM: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr):  # fmt: skip
    """Some tokens of one image. A rank of 0 leaves a branch out; `ALL` counts the source in."""
    tiles = tl.cdiv(tokens, BM)
    image = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.load(index + image // pieces).to(tl.int64)
    place = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    here = place < tokens
    z += image * z_b
    y += image * y_b
    common = tl.zeros((BM, BS), tl.float32)
    own = tl.zeros((BM, BR), tl.float32)
    for k in range(0, WIDTH, BK):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        one = tl.load(z + place[:, None] * z_n + features[None] * z_d,
                      mask=here[:, None] & known[None], other=0.0).to(KIND)  # fmt: skip
        if SHARED > 0:
            common = _inner(common, one, shared_down, row, features, known, shared_down_r,
                            shared_down_k, shared_down_n, SHARED, BS, KIND, EXACT)  # fmt: skip
        if RANK > 0:
            own = _inner(own, one, down, row, features, known, down_r,
                         down_k, down_n, RANK, BR, KIND, EXACT)  # fmt: skip
    common = gelu(common)
    if not ALL:
        common = tl.where(row > 0, common, 0.0)
    common = common.to(KIND)
    own = gelu(own).to(KIND)
    for k in tl.range(0, WIDTH, BK, num_stages=AHEAD):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        mask = here[:, None] & known[None]
        before = tl.load(z + place[:, None] * z_n + features[None] * z_d, mask=mask, other=0.0)
        total = tl.zeros((BM, BK), tl.float32)
        if SHARED > 0:
            total = _outer(total, common, shared_up, row, features, known, shared_up_r,
                           shared_up_k, shared_up_n, SHARED, BS, KIND, EXACT)  # fmt: skip
        if RANK > 0:
            total = _outer(total, own, up, row, features, known, up_r,
                           up_k, up_n, RANK, BR, KIND, EXACT)  # fmt: skip
        total += before.to(tl.float32)
        tl.store(y + place[:, None] * y_n + features[None] * y_d,
                 total.to(y.dtype.element_ty), mask=mask)  # fmt: skip


def fed_rows(tokens: Tensor, index: Tensor, shared: Pair | None, own: Pair | None) -> Tensor:
    """(B, N, D) tokens with what branches add.

    Args:
        tokens: a feed-forward network's output.
        index: (images,) the row of each.
        shared: the branch of all rows but the source's.
        own: the branches, a row each.
    """
    return launched(tokens, index, shared, own, exactness(tokens), everywhere=False)


def launched(
    tokens: Tensor,
    index: Tensor,
    shared: Pair | None,
    own: Pair | None,
    exact: Exactness,
    *,
    everywhere: bool,
) -> Tensor:
    """Run the kernel; `everywhere`: row 0 is a row like any other."""
    fed = torch.empty_like(tokens)
    count, length, width = tokens.shape
    if not tokens.numel():
        return fed
    tiles = _TILES[exact.size]
    ranks = [0 if pair is None else pair.down.shape[-1] for pair in (shared, own)]
    four = [*(shared or (tokens, tokens)), *(own or (tokens, tokens))]  # a rank of 0 reads none
    with on_device(tokens):
        _branches[(triton.cdiv(length, tiles.tokens) * count,)](
            tokens, fed, index, *four, length, count // len(index),
            *tokens.stride(), *fed.stride(), *(step for one in four for step in _strides(one)),
            WIDTH=width, SHARED=ranks[0], RANK=ranks[1], ALL=everywhere, KIND=exact.kind,
            EXACT=exact.single, AHEAD=tiles.ahead, BM=tiles.tokens, BK=tiles.features,
            BS=padded(ranks[0]), BR=padded(ranks[1]),
            num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return fed


def _strides(matrix: Tensor) -> tuple[int, ...]:
    """Steps to the next row, and within a matrix; the same matrix serves all where it is one."""
    return (0, *matrix.stride()) if matrix.ndim == 2 else matrix.stride()
