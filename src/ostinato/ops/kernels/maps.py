"""A block's map in one pass over its tokens, each image by a row that is read where it lies.

The plain version is `ops.moments.moved` on gathered rows: `x ∘ factor + (x · down) · up + shift`
for tokens, `x + prefix` for prefix tokens. A row of a ViT-B's map is two matrices of 98 KB, so
images read it from the cache; the tokens come and go once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.ops.kernels import interpreted, product_kind

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Tiles(NamedTuple):
    """How a kernel cuts its work: tokens and features a step, warps, steps loaded ahead."""

    tokens: int
    features: int
    warps: int
    stages: int


TILES = {2: Tiles(64, 64, 4, 3), 4: Tiles(32, 32, 4, 2)}
"""By the size of a product's numbers in bytes."""


class Parts(NamedTuple):
    """What `Rows.block` gives: a block's tensors, a row each; `up` is None for a whole map."""

    down: Tensor
    up: Tensor | None
    factor: Tensor
    shift: Tensor
    prefix: Tensor


@triton.jit
def _finished(x, y, change, row, place, here, features, known, factor, shift, prefix,
              factor_r, shift_r, prefix_r, prefix_n, PREFIX: tl.constexpr, BACK: tl.constexpr,
              x_n, x_d, y_n, y_d):  # fmt: skip
    """Scale, add and store; the way back (of gradients) leaves out what is only added."""
    one = tl.load(x + place[:, None] * x_n + features[None] * x_d,
                  mask=here[:, None] & known[None], other=0.0).to(tl.float32)  # fmt: skip
    scale = tl.load(factor + row * factor_r + features, mask=known, other=0.0).to(tl.float32)
    moved = one * scale[None] + change
    if not BACK:
        added = tl.load(shift + row * shift_r + features, mask=known, other=0.0).to(tl.float32)
        moved += added[None]
    if PREFIX > 0:
        first = (place < PREFIX)[:, None]
        if not BACK:
            at = prefix + row * prefix_r + place[:, None] * prefix_n + features[None]
            one += tl.load(at, mask=first & known[None], other=0.0).to(tl.float32)
        moved = tl.where(first, one, moved)
    tl.store(y + place[:, None] * y_n + features[None] * y_d,
             moved.to(y.dtype.element_ty), mask=here[:, None] & known[None])  # fmt: skip


@triton.jit
def _low_rank(x, y, index, down, up, factor, shift, prefix, tokens, pieces,
              x_b, x_n, x_d, y_b, y_n, y_d, down_r, down_k, down_n, up_r, up_k, up_n,
              factor_r, shift_r, prefix_r, prefix_n,
              WIDTH: tl.constexpr, RANK: tl.constexpr, PREFIX: tl.constexpr, BACK: tl.constexpr,
              KIND: tl.constexpr, EXACT: tl.constexpr,
              BM: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):  # fmt: skip
    """Some tokens of one image: down to the rank, then up again, feature by feature."""
    tiles = tl.cdiv(tokens, BM)
    image = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.load(index + image // pieces).to(tl.int64)
    place = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    here = place < tokens
    x += image * x_b
    y += image * y_b
    ranks = tl.arange(0, BR)
    hidden = tl.zeros((BM, BR), tl.float32)
    for k in range(0, WIDTH, BK):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        one = tl.load(x + place[:, None] * x_n + features[None] * x_d,
                      mask=here[:, None] & known[None], other=0.0)  # fmt: skip
        at = down + row * down_r + features[:, None] * down_k + ranks[None] * down_n
        matrix = tl.load(at, mask=known[:, None] & (ranks < RANK)[None], other=0.0)
        hidden = tl.dot(one.to(KIND), matrix.to(KIND), hidden, input_precision=EXACT)
    inner = hidden.to(KIND)
    for k in range(0, WIDTH, BK):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        at = up + row * up_r + ranks[:, None] * up_k + features[None] * up_n
        matrix = tl.load(at, mask=(ranks < RANK)[:, None] & known[None], other=0.0)
        change = tl.dot(inner, matrix.to(KIND), input_precision=EXACT)
        _finished(x, y, change, row, place, here, features, known, factor, shift, prefix,
                  factor_r, shift_r, prefix_r, prefix_n, PREFIX, BACK,
                  x_n, x_d, y_n, y_d)  # fmt: skip


@triton.jit
def _whole(x, y, index, down, factor, shift, prefix, tokens, pieces,
           x_b, x_n, x_d, y_b, y_n, y_d, down_r, down_k, down_n,
           factor_r, shift_r, prefix_r, prefix_n,
           WIDTH: tl.constexpr, PREFIX: tl.constexpr, BACK: tl.constexpr,
           KIND: tl.constexpr, EXACT: tl.constexpr,
           BM: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Some features of some tokens of one image, by a matrix of the whole width."""
    tiles = tl.cdiv(tokens, BM)
    image = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.load(index + image // pieces).to(tl.int64)
    place = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    here = place < tokens
    x += image * x_b
    y += image * y_b
    features = tl.program_id(1) * BK + tl.arange(0, BK)
    known = features < WIDTH
    change = tl.zeros((BM, BK), tl.float32)
    for k in range(0, WIDTH, BK):
        inner = k + tl.arange(0, BK)
        one = tl.load(x + place[:, None] * x_n + inner[None] * x_d,
                      mask=here[:, None] & (inner < WIDTH)[None], other=0.0)  # fmt: skip
        at = down + row * down_r + inner[:, None] * down_k + features[None] * down_n
        matrix = tl.load(at, mask=(inner < WIDTH)[:, None] & known[None], other=0.0)
        change = tl.dot(one.to(KIND), matrix.to(KIND), change, input_precision=EXACT)
    _finished(x, y, change, row, place, here, features, known, factor, shift, prefix,
              factor_r, shift_r, prefix_r, prefix_n, PREFIX, BACK,
              x_n, x_d, y_n, y_d)  # fmt: skip


def precision(tensor: Tensor) -> tuple[Any, str]:
    """What numbers a product with this tensor is taken in, and how exact single precision is."""
    if interpreted():  # which multiplies bfloat16 as if it were whole numbers
        return tl.float32, "ieee"
    exact = torch.get_float32_matmul_precision() == "highest"
    return TYPES[product_kind(tensor)], "ieee" if exact else "tf32"


def padded(rank: int) -> int:
    """A length that products can have: a power of two, 16 at least."""
    return max(16, 1 << (rank - 1).bit_length())


def moved_rows(tokens: Tensor, index: Tensor, parts: Parts) -> Tensor:
    """(B, N, D) tokens moved by the rows of their images.

    Args:
        tokens: any strides; more rows than indices are consecutive pieces of an image.
        index: (images,) the row of each; one for all is possible.
        parts: the block's tensors, a row each.
    """
    how = precision(tokens)
    if torch.is_grad_enabled() and tokens.requires_grad:
        moved: Tensor = _Moved.apply(tokens, index, parts, how)
        return moved
    return _launched(tokens, index, parts, how, back=False)


class _Moved(torch.autograd.Function):
    """The map with its gradient by tokens: the same map, transposed.

    Rows are not saved through autograd, which would take offence at other rows being written.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, index: Tensor, parts: Parts, how: Any) -> Tensor:
        ctx.rest = (index, parts, how)
        return _launched(tokens, index, parts, how, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        index, parts, how = ctx.rest
        return _launched(grad, index, parts, how, back=True), None, None, None


def _launched(
    tokens: Tensor, index: Tensor, parts: Parts, how: tuple[Any, str], *, back: bool
) -> Tensor:
    down, up, factor, shift, prefix = parts
    if back:
        down, up = (down.mT, None) if up is None else (up.mT, down.mT)
    moved = torch.empty_like(tokens)
    count, length, width = tokens.shape
    if not tokens.numel():
        return moved
    kind, exact = how
    tiles = TILES[4 if kind is tl.float32 else 2]
    cut = (triton.cdiv(length, tiles.tokens) * count,)
    sizes = (length, count // len(index), *tokens.stride(), *moved.stride())
    rest = (factor.stride(0), shift.stride(0), prefix.stride(0), prefix.stride(1))
    named = {
        "WIDTH": width, "PREFIX": prefix.shape[1], "BACK": back, "KIND": kind, "EXACT": exact,
        "BM": tiles.tokens, "BK": tiles.features,
        "num_warps": tiles.warps, "num_stages": tiles.stages,
    }  # fmt: skip
    with _on(tokens):
        if up is None:
            _whole[(*cut, triton.cdiv(width, tiles.features))](
                tokens, moved, index, down, factor, shift, prefix,
                *sizes, *down.stride(), *rest, **named,
            )  # fmt: skip
        else:
            _low_rank[cut](
                tokens, moved, index, down, up, factor, shift, prefix,
                *sizes, *down.stride(), *up.stride(), *rest,
                RANK=down.shape[2], BR=padded(down.shape[2]), **named,
            )  # fmt: skip
    return moved


def _on(tensor: Tensor) -> Any:
    """Triton launches on the current GPU, which must be the tensor's."""
    return torch.cuda.device_of(tensor)


def attempt(device: str) -> None:
    """Compile and run one small map; raises what Triton raises."""
    with torch.inference_mode(False), torch.no_grad():
        line = torch.zeros(1, 16, device=device)
        tokens, matrix = line.expand(1, 1, 16), torch.zeros(1, 16, 16, device=device)
        index = torch.zeros(1, dtype=torch.long, device=device)
        _launched(
            tokens, index, Parts(matrix, None, line, line, matrix[:, :0]),
            (tl.float32, "ieee"), back=False,
        )  # fmt: skip
