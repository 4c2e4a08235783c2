"""A block's map in one pass over its tokens, each image by a row that is read where it lies.

The plain version is `experts.routed.moved` on gathered rows: `x ∘ factor + (x · down) · up + shift`
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

from ostinato.ops.kernels._cuts import Exactness, Tiles, exactness, on_device, padded

_TILES = {2: Tiles(64, 64, 4, 3, 3), 4: Tiles(32, 32, 4, 2, 2)}
"""By the size of a product's numbers in bytes."""


class Parts(NamedTuple):
    """What `Rows.block` gives: a block's tensors, a row each; `up` is None for a whole map."""

    down: Tensor
    up: Tensor | None
    factor: Tensor
    shift: Tensor
    prefix: Tensor


@triton.jit
def _kept(x, row, place, here, features, known, factor, shift, factor_r, shift_r, x_n, x_d,
          BACK: tl.constexpr):  # fmt: skip
    """All of a map but its product; the way back (of gradients) leaves out what is only added."""
    one = tl.load(x + place[:, None] * x_n + features[None] * x_d,
                  mask=here[:, None] & known[None], other=0.0).to(tl.float32)  # fmt: skip
    kept = one * tl.load(factor + row * factor_r + features, mask=known, other=0.0)[None]
    if not BACK:
        added = tl.load(shift + row * shift_r + features, mask=known, other=0.0).to(tl.float32)
        kept += added[None]
    return kept


@triton.jit
def _put(y, values, place, here, features, known, y_n, y_d, PREFIX: tl.constexpr):
    """Store tokens, but for prefix tokens."""
    mask = (here & (place >= PREFIX))[:, None] & known[None]
    values = values.to(y.dtype.element_ty)
    tl.store(y + place[:, None] * y_n + features[None] * y_d, values, mask=mask)


@triton.jit
def _put_prefix(x, y, row, image, features, known, prefix, first, prefix_r, prefix_n, first_b,
                x_n, x_d, y_n, y_d, PREFIX: tl.constexpr, BACK: tl.constexpr,
                FIRST: tl.constexpr):  # fmt: skip
    """Prefix tokens; `FIRST`: one more gradient by the first of them is added."""
    for k in tl.static_range(PREFIX):
        one = tl.load(x + k * x_n + features * x_d, mask=known, other=0.0).to(tl.float32)
        if not BACK:
            one += tl.load(prefix + row * prefix_r + k * prefix_n + features, mask=known, other=0.0)
        if FIRST and k == 0:
            more = tl.load(first + image * first_b + features, mask=known, other=0.0)
            one += more.to(tl.float32)
        tl.store(y + k * y_n + features * y_d, one.to(y.dtype.element_ty), mask=known)


@triton.jit
def _low_rank(x, y, index, down, up, factor, shift, prefix, first, tokens, pieces,
              x_b, x_n, x_d, y_b, y_n, y_d, down_r, down_k, down_n, up_r, up_k, up_n,
              factor_r, shift_r, prefix_r, prefix_n, first_b,
              WIDTH: tl.constexpr, RANK: tl.constexpr, PREFIX: tl.constexpr, BACK: tl.constexpr,
              FIRST: tl.constexpr, KIND: tl.constexpr, EXACT: tl.constexpr, AHEAD: tl.constexpr,
              BM: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr):  # fmt: skip
    """Some tokens of one image: down to the rank, then up again, feature by feature."""
    tiles = tl.cdiv(tokens, BM)
    tile, image = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.load(index + image // pieces).to(tl.int64)
    place = tile * BM + tl.arange(0, BM)
    here = place < tokens
    x += image * x_b
    y += image * y_b
    if tile == 0:
        every = tl.arange(0, BW)
        _put_prefix(x, y, row, image, every, every < WIDTH, prefix, first, prefix_r, prefix_n,
                    first_b, x_n, x_d, y_n, y_d, PREFIX, BACK, FIRST)  # fmt: skip
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
    for k in tl.range(0, WIDTH, BK, num_stages=AHEAD):
        features = k + tl.arange(0, BK)
        known = features < WIDTH
        kept = _kept(x, row, place, here, features, known, factor, shift, factor_r, shift_r,
                     x_n, x_d, BACK)  # fmt: skip
        at = up + row * up_r + ranks[:, None] * up_k + features[None] * up_n
        matrix = tl.load(at, mask=(ranks < RANK)[:, None] & known[None], other=0.0)
        kept += tl.dot(inner, matrix.to(KIND), input_precision=EXACT)
        _put(y, kept, place, here, features, known, y_n, y_d, PREFIX)


@triton.jit
def _whole(x, y, index, down, factor, shift, prefix, first, tokens, pieces,
           x_b, x_n, x_d, y_b, y_n, y_d, down_r, down_k, down_n,
           factor_r, shift_r, prefix_r, prefix_n, first_b,
           WIDTH: tl.constexpr, PREFIX: tl.constexpr, BACK: tl.constexpr,
           FIRST: tl.constexpr, KIND: tl.constexpr, EXACT: tl.constexpr,
           BM: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Some features of some tokens of one image, by a matrix of the whole width."""
    tiles = tl.cdiv(tokens, BM)
    tile, image = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.load(index + image // pieces).to(tl.int64)
    place = tile * BM + tl.arange(0, BM)
    here = place < tokens
    x += image * x_b
    y += image * y_b
    features = tl.program_id(1) * BK + tl.arange(0, BK)
    known = features < WIDTH
    if tile == 0:
        _put_prefix(x, y, row, image, features, known, prefix, first, prefix_r, prefix_n,
                    first_b, x_n, x_d, y_n, y_d, PREFIX, BACK, FIRST)  # fmt: skip
    change = tl.zeros((BM, BK), tl.float32)
    for k in range(0, WIDTH, BK):
        inner = k + tl.arange(0, BK)
        one = tl.load(x + place[:, None] * x_n + inner[None] * x_d,
                      mask=here[:, None] & (inner < WIDTH)[None], other=0.0)  # fmt: skip
        at = down + row * down_r + inner[:, None] * down_k + features[None] * down_n
        matrix = tl.load(at, mask=(inner < WIDTH)[:, None] & known[None], other=0.0)
        change = tl.dot(one.to(KIND), matrix.to(KIND), change, input_precision=EXACT)
    change += _kept(x, row, place, here, features, known, factor, shift, factor_r, shift_r,
                    x_n, x_d, BACK)  # fmt: skip
    _put(y, change, place, here, features, known, y_n, y_d, PREFIX)


def moved_rows(tokens: Tensor, index: Tensor, parts: Parts) -> Tensor:
    """(B, N, D) tokens moved by the rows of their images; see `moved_and_first` for gradients.

    Args:
        tokens: any strides; more rows than indices are consecutive pieces of an image.
        index: (images,) the row of each; one for all is possible.
        parts: the block's tensors, a row each.
    """
    return _launched(tokens, index, parts, exactness(tokens))


def moved_and_first(tokens: Tensor, index: Tensor, parts: Parts) -> tuple[Tensor, Tensor]:
    """The same, and each image's first token, (B, D); both can be differentiated.

    A gradient by the first token is then added on the way back, where picking it from the moved
    tokens would cost a pass over all of them.
    """
    moved, first = _Moved.apply(tokens, index, parts, exactness(tokens))
    return moved, first


class _Moved(torch.autograd.Function):
    """The map with its gradient by tokens: the same map, transposed.

    Rows are not saved through autograd, which would take offence at other rows being written.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, index: Tensor, parts: Parts, exact: Exactness
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.rest = (tokens.shape, index, parts, exact)
        moved = _launched(tokens, index, parts, exact)
        return moved, moved[:, 0].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, by_first: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        shape, index, parts, exact = ctx.rest
        if grad is None:
            if by_first is None:
                return None, None, None, None
            grad = by_first.new_zeros(shape)
        if by_first is not None and not parts.prefix.shape[1]:  # the first is a token like others
            grad = grad.index_add(1, index.new_zeros(1), by_first[:, None].to(grad.dtype))
            by_first = None
        return _launched(grad, index, parts, exact, back=True, first=by_first), None, None, None


def _launched(
    tokens: Tensor,
    index: Tensor,
    parts: Parts,
    exact: Exactness,
    *,
    back: bool = False,
    first: Tensor | None = None,
) -> Tensor:
    down, up, factor, shift, prefix = parts
    if back:
        down, up = (down.mT, None) if up is None else (up.mT, down.mT)
    moved = torch.empty_like(tokens)
    count, length, width = tokens.shape
    if not tokens.numel():
        return moved
    tiles = _TILES[exact.size]
    cut = (triton.cdiv(length, tiles.tokens) * count,)
    more = prefix if first is None else first.contiguous()
    lines = (factor, shift, prefix, more)
    sizes = (length, count // len(index), *tokens.stride(), *moved.stride())
    rest = (factor.stride(0), shift.stride(0), prefix.stride(0), prefix.stride(1), more.stride(0))
    named = {
        "WIDTH": width, "PREFIX": prefix.shape[1], "BACK": back, "FIRST": first is not None,
        "KIND": exact.kind, "EXACT": exact.single, "BM": tiles.tokens, "BK": tiles.features,
        "num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True,
    }  # fmt: skip
    with on_device(tokens):
        if up is None:
            _whole[(*cut, triton.cdiv(width, tiles.features))](
                tokens, moved, index, down, *lines, *sizes, *down.stride(), *rest, **named
            )
        else:
            _low_rank[cut](
                tokens, moved, index, down, up, *lines, *sizes, *down.stride(), *up.stride(), *rest,
                RANK=down.shape[2], BR=padded(down.shape[2]), BW=padded(width), AHEAD=tiles.ahead,
                **named,
            )  # fmt: skip
    return moved


def attempt(device: str) -> None:
    """Compile and run one small map; raises what Triton raises."""
    with torch.inference_mode(False), torch.no_grad():
        line, matrix = torch.zeros(1, 16, device=device), torch.zeros(1, 16, 16, device=device)
        index = torch.zeros(1, dtype=torch.long, device=device)
        parts = Parts(matrix, None, line, line, matrix[:, :0])
        _launched(matrix[:, :1], index, parts, Exactness(tl.float32, "ieee"))
