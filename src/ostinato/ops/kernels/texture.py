"""The descriptor of images in one pass over their pixels; the plain version is `domains.texture`.

An image is cut into cells of 8 × 8 pixels, and a program takes some of them: grey is transformed by
cell, the two colour planes by its four quarters, and every pixel is counted by tone and by its step
to the right. What the programs of an image found is then added up and finished by another kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.ops.kernels.maps import _on

CELLS, WARPS = 32, 8
"""Cells that a program takes, and its warps."""
NOTES = 384
"""Numbers that it leaves: 3 · 64 of grey, 4 · 16 of colours, 3 · 32 tones, 3 · 8 steps."""
GREY, COLOUR, TONES, STEPS = (tl.constexpr(at) for at in (0, 192, 256, 352))


@triton.jit
def _tone_counts(values, inside, BINS: tl.constexpr, SIZE: tl.constexpr):
    """How many pixels are in each bin; pixels outside count in the first, and are taken off it."""
    values = tl.where(values == values, values, 0.0) * BINS
    bins = tl.minimum(tl.maximum(values, 0.0), BINS - 1.0).to(tl.int32)
    return _counts(tl.where(inside, bins, 0), inside, BINS, SIZE)


@triton.jit
def _step_counts(values, inside, edges, EDGES: tl.constexpr, SIZE: tl.constexpr):
    """How many steps are beyond none, one, two, ... of the edges."""
    beyond = tl.zeros(values.shape, tl.int32)
    for k in tl.static_range(EDGES):
        beyond += (values > tl.load(edges + k)).to(tl.int32)
    return _counts(tl.where(inside, beyond, 0), inside, EDGES + 1, SIZE)


@triton.jit
def _counts(bins, inside, BINS: tl.constexpr, SIZE: tl.constexpr):
    outside = SIZE - tl.sum(tl.reshape(inside.to(tl.int32), (SIZE,)), 0)
    found = tl.histogram(tl.reshape(bins, (SIZE,)), BINS)
    return (found - tl.where(tl.arange(0, BINS) == 0, outside, 0)).to(tl.float32)


@triton.jit
def _noted(notes, at, plane, bank, whole, BC: tl.constexpr, PIXELS: tl.constexpr,
           ABSENT: tl.constexpr, LIMIT: tl.constexpr):  # fmt: skip
    """Sums of a cosine transform's sizes and squares, and of near-zero responses where asked."""
    ranks = tl.arange(0, PIXELS)
    basis = tl.load(bank + ranks[:, None] * PIXELS + ranks[None])
    response = tl.dot(tl.where(whole, plane, 0.0), basis, input_precision="ieee")
    size = tl.abs(response)
    tl.store(notes + at + ranks, tl.sum(size, 0))
    tl.store(notes + at + PIXELS + ranks, tl.sum(response * response, 0))
    if ABSENT:
        none = tl.where((size < LIMIT) & whole, 1.0, 0.0)
        tl.store(notes + at + 2 * PIXELS + ranks, tl.sum(none, 0))


@triton.jit
def _describe(pixels, notes, grey_bank, colour_bank, edges, height, width, tiles,
              p_b, p_c, p_h, p_w, NOTES: tl.constexpr, BC: tl.constexpr, LUMA_R: tl.constexpr,
              LUMA_G: tl.constexpr, LUMA_B: tl.constexpr, LIMIT: tl.constexpr):  # fmt: skip
    """Some cells of one image."""
    SIZE: tl.constexpr = BC * 64
    image = (tl.program_id(0) // tiles).to(tl.int64)
    columns = tl.cdiv(width, 8)
    cell = (tl.program_id(0) % tiles) * BC + tl.arange(0, BC)
    top, left = (cell // columns * 8)[:, None], (cell % columns * 8)[:, None]
    # A cell's pixels go quarter by quarter, so that quarters are rows of the same tensor.
    quarter, rest = tl.arange(0, 64) // 16, tl.arange(0, 64) % 16
    y = top + (quarter // 2 * 4 + rest // 4)[None]
    x = left + (quarter % 2 * 4 + rest % 4)[None]
    inside = (y < height) & (x < width)
    pixels += image * p_b
    at = pixels + y * p_h + x * p_w
    red = tl.load(at, mask=inside, other=0.0)
    green = tl.load(at + p_c, mask=inside, other=0.0)
    blue = tl.load(at + 2 * p_c, mask=inside, other=0.0)
    grey = LUMA_R * red + LUMA_G * green + LUMA_B * blue
    first, second = red - green, blue - green
    notes += tl.program_id(0).to(tl.int64) * NOTES
    tones = notes + TONES + tl.arange(0, 32)
    tl.store(tones, _tone_counts(red, inside, 32, SIZE))
    tl.store(tones + 32, _tone_counts(green, inside, 32, SIZE))
    tl.store(tones + 64, _tone_counts(blue, inside, 32, SIZE))
    inner = inside & (x + 1 < width)
    next_red = tl.load(at + p_w, mask=inner, other=0.0)
    next_green = tl.load(at + p_c + p_w, mask=inner, other=0.0)
    next_blue = tl.load(at + 2 * p_c + p_w, mask=inner, other=0.0)
    next_grey = LUMA_R * next_red + LUMA_G * next_green + LUMA_B * next_blue
    steps = notes + STEPS + tl.arange(0, 8)
    tl.store(steps, _step_counts(tl.abs(next_grey - grey), inner, edges, 7, SIZE))
    step = tl.abs((next_red - next_green) - first)
    tl.store(steps + 8, _step_counts(step, inner, edges, 7, SIZE))
    step = tl.abs((next_blue - next_green) - second)
    tl.store(steps + 16, _step_counts(step, inner, edges, 7, SIZE))
    whole = (top + 8 <= height) & (left + 8 <= width)
    _noted(notes, GREY, grey, grey_bank, whole, BC, 64, True, LIMIT)
    # A quarter is whole where its last pixel is inside, and that is the last of its row.
    QUARTERS: tl.constexpr = BC * 4
    inside = tl.reshape(inside.to(tl.int32), (QUARTERS, 16))
    whole = (tl.sum(inside, 1) == 16)[:, None]
    first = tl.reshape(first, (QUARTERS, 16))
    second = tl.reshape(second, (QUARTERS, 16))
    _noted(notes, COLOUR, first, colour_bank, whole, QUARTERS, 16, False, LIMIT)
    _noted(notes, COLOUR + 32, second, colour_bank, whole, QUARTERS, 16, False, LIMIT)


@triton.jit
def _total(notes, tiles, NOTES: tl.constexpr, WIDTH: tl.constexpr, BT: tl.constexpr):
    """The sum over an image's programs of some numbers that they left."""
    total = tl.zeros((WIDTH,), tl.float32)
    for k in range(0, tiles, BT):
        tile = k + tl.arange(0, BT)
        at = notes + tile[:, None] * NOTES + tl.arange(0, WIDTH)[None]
        total += tl.sum(tl.load(at, mask=(tile < tiles)[:, None], other=0.0), 0)
    return total


@triton.jit
def _strength(out, notes, count, tiles, apart, FLOOR: tl.constexpr, NOTES: tl.constexpr,
              WIDTH: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """Log mean size and log unevenness of every frequency; the last one is none."""
    places = tl.arange(0, WIDTH)
    known = places < WIDTH - 1
    size = _total(notes, tiles, NOTES, WIDTH, BT) / count
    square = _total(notes + WIDTH, tiles, NOTES, WIDTH, BT) / count
    mean = tl.log(size.to(tl.float64) + FLOOR)
    uneven = tl.log(square.to(tl.float64) + FLOOR * FLOOR) - 2 * mean
    tl.store(out + places, mean.to(tl.float32), mask=known)
    tl.store(out + apart + places, uneven.to(tl.float32), mask=known)


@triton.jit
def _tones(out, notes, height, width, tiles, NOTES: tl.constexpr, BT: tl.constexpr):
    """log1p of a colour's histogram, relative to an even spread."""
    count = _total(notes, tiles, NOTES, 32, BT) * (32.0 / (height * width).to(tl.float32))
    tl.store(out + tl.arange(0, 32), tl.log(1.0 + count.to(tl.float64)).to(tl.float32))


@triton.jit
def _steps(out, notes, height, width, tiles, NOTES: tl.constexpr, BT: tl.constexpr):
    """Log share of the steps between two edges: differences of the shares beyond each."""
    count = _total(notes, tiles, NOTES, 8, BT)[None]
    all_steps = (height * (width - 1)).to(tl.float32)
    place = tl.arange(0, 8)
    above = tl.sum(tl.where(place[None] >= place[:, None], count, 0.0), 1) / all_steps
    beyond = tl.sum(tl.where(place[None] > place[:, None], count, 0.0), 1) / all_steps
    tl.store(out + place, tl.log((above - beyond).to(tl.float64) + 1e-3).to(tl.float32))


@triton.jit
def _finish(notes, out, height, width, tiles, NOTES: tl.constexpr, FLOOR: tl.constexpr,
            BT: tl.constexpr):  # fmt: skip
    """One part of one image's descriptor, from all that its programs left; logs are in double."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    notes += image * tiles * NOTES
    out += image * 369
    if part == 0:
        cells = ((height // 8) * (width // 8)).to(tl.float32)
        _strength(out, notes + GREY, cells, tiles, 63, FLOOR, NOTES, 64, BT)
        places = tl.arange(0, 64)
        absent = _total(notes + GREY + 128, tiles, NOTES, 64, BT) / cells
        tl.store(out + 126 + places, absent, mask=places < 63)
    elif part == 1:
        quarters = ((height // 4) * (width // 4)).to(tl.float32)
        _strength(out + 189, notes + COLOUR, quarters, tiles, 30, FLOOR, NOTES, 16, BT)
        _strength(out + 204, notes + COLOUR + 32, quarters, tiles, 30, FLOOR, NOTES, 16, BT)
    elif part == 2:
        for colour in tl.static_range(3):
            _tones(out + 249 + 32 * colour, notes + TONES + 32 * colour, height, width, tiles,
                   NOTES, BT)  # fmt: skip
    else:
        for plane in tl.static_range(3):
            _steps(out + 345 + 8 * plane, notes + STEPS + 8 * plane, height, width, tiles,
                   NOTES, BT)  # fmt: skip


def arranged(bank: Tensor) -> Tensor:
    """A cosine bank (n, 1, c, c) as (pixels, frequencies), with a last frequency of zeros.

    Pixels of a cell of 8 × 8 go quarter by quarter, as `_describe` has them.
    """
    count, _, cell, _ = bank.shape
    flat = bank.reshape(count, cell // 4, 4, cell // 4, 4).transpose(2, 3).reshape(count, -1)
    return torch.cat([flat, torch.zeros_like(flat[:1])]).T.contiguous()


def described(
    pixels: Tensor,
    banks: tuple[Tensor, Tensor],
    edges: Tensor,
    luma: tuple[float, float, float],
    floor: float,
    limit: float,
) -> Tensor:
    """(B, 3, H, W) in single precision to (B, 369); what `domains.texture.Texture` gives.

    Args:
        pixels: of 64 a side at least, in any strides.
        banks: the cosine banks of grey and of colours, `arranged`.
        edges: the 7 edges of the histogram of steps.
        luma: weights of red, green and blue.
        floor: size below which a response is rounding.
        limit: size below which it counts as absent.
    """
    count, _, height, width = pixels.shape
    tiles = triton.cdiv(triton.cdiv(height, 8) * triton.cdiv(width, 8), CELLS)
    notes = pixels.new_empty(count * tiles, NOTES)
    found = pixels.new_empty(count, 369)
    if not count:
        return found
    with _on(pixels):
        # Fused multiplications would round grey otherwise than the plain version does.
        _describe[(count * tiles,)](
            pixels, notes, *banks, edges, height, width, tiles, *pixels.stride(),
            NOTES=NOTES, BC=CELLS, LUMA_R=luma[0], LUMA_G=luma[1], LUMA_B=luma[2], LIMIT=limit,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        _finish[(count, 4)](
            notes, found, height, width, tiles, NOTES=NOTES, FLOOR=floor, BT=32, num_warps=4
        )
    return found
