"""The descriptor of images by three kernels; the plain version is `domains.texture`.

One takes cosine transforms: an image is cut into cells of 8 × 8 pixels, of which grey is
transformed whole and the two colour planes by quarters. One counts every pixel by its tones and by
its steps to the right. Both leave sums of a few cells or pixels each, which the third adds up and
finishes. (One kernel for the first two would read pixels once, and need more registers than there
are.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.ops.kernels._cuts import on_device

CELLS, ROUNDS, WARPS = 16, 7, 4
"""Cells of 8 × 8 pixels that a program transforms at a time, how often, and its warps."""
PIXELS, TURNS = 1024, 4
"""Pixels that a program counts at a time, and how often."""
SUMS, COUNTS = 256, 120
"""Numbers that a program leaves: 3 · 64 of grey, 4 · 16 of colours; 3 · 32 tones, 3 · 8 steps."""


@triton.jit
def _planes(at, p_c, inside, R: tl.constexpr, G: tl.constexpr, B: tl.constexpr):
    """Red, green, blue, and the planes that are transformed: grey, red − green, blue − green."""
    red = tl.load(at, mask=inside, other=0.0)
    green = tl.load(at + p_c, mask=inside, other=0.0)
    blue = tl.load(at + 2 * p_c, mask=inside, other=0.0)
    return red, green, blue, R * red + G * green + B * blue, red - green, blue - green


@triton.jit
def _tones_of(values, inside, outside):
    values = tl.where(values == values, values, 0.0) * 32
    bins = tl.minimum(tl.maximum(values, 0.0), 31.0).to(tl.int32)
    return _counts(tl.where(inside, bins, 0), outside, 32)


@triton.jit
def _steps_of(values, inside, outside, edges):
    """How many steps are beyond none, one, two, ... of the edges."""
    beyond = tl.zeros(values.shape, tl.int32)
    for k in tl.static_range(7):
        beyond += (values > tl.load(edges + k)).to(tl.int32)
    return _counts(tl.where(inside, beyond, 0), outside, 8)


@triton.jit
def _counts(bins, outside, BINS: tl.constexpr):
    """A histogram; pixels outside are in its first bin, and taken off it."""
    return tl.histogram(bins, BINS) - tl.where(tl.arange(0, BINS) == 0, outside, 0)


@triton.jit
def _count(pixels, notes, edges, height, width, tiles, p_b, p_c, p_h, p_w,
           COUNTS: tl.constexpr, SIZE: tl.constexpr, TURNS: tl.constexpr,
           R: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Tones of some pixels of one image, and the steps to their neighbours on the right."""
    pixels += (tl.program_id(0) // tiles).to(tl.int64) * p_b
    begin = (tl.program_id(0) % tiles) * SIZE * TURNS
    reds, greens = tl.zeros((32,), tl.int32), tl.zeros((32,), tl.int32)
    blues = tl.zeros((32,), tl.int32)
    greys, firsts = tl.zeros((8,), tl.int32), tl.zeros((8,), tl.int32)
    seconds = tl.zeros((8,), tl.int32)
    for turn in range(TURNS):
        place = begin + turn * SIZE + tl.arange(0, SIZE)
        x = place % width
        inside = place < height * width
        at = pixels + place // width * p_h + x * p_w
        red, green, blue, grey, first, second = _planes(at, p_c, inside, R, G, B)
        outside = SIZE - tl.sum(inside.to(tl.int32), 0)
        reds += _tones_of(red, inside, outside)
        greens += _tones_of(green, inside, outside)
        blues += _tones_of(blue, inside, outside)
        inside = inside & (x + 1 < width)
        outside = SIZE - tl.sum(inside.to(tl.int32), 0)
        red, green, blue, grey_2, first_2, second_2 = _planes(at + p_w, p_c, inside, R, G, B)
        greys += _steps_of(tl.abs(grey_2 - grey), inside, outside, edges)
        firsts += _steps_of(tl.abs(first_2 - first), inside, outside, edges)
        seconds += _steps_of(tl.abs(second_2 - second), inside, outside, edges)
    notes += tl.program_id(0).to(tl.int64) * COUNTS
    tone, step = notes + tl.arange(0, 32), notes + 96 + tl.arange(0, 8)
    tl.store(tone, reds.to(tl.float32))
    tl.store(tone + 32, greens.to(tl.float32))
    tl.store(tone + 64, blues.to(tl.float32))
    tl.store(step, greys.to(tl.float32))
    tl.store(step + 8, firsts.to(tl.float32))
    tl.store(step + 16, seconds.to(tl.float32))


@triton.jit
def _sizes(plane, bank, whole, WIDTH: tl.constexpr):
    """Sizes of a cosine transform's responses; 0 for cells that are not whole."""
    ranks = tl.arange(0, WIDTH)
    basis = tl.load(bank + ranks[:, None] * WIDTH + ranks[None])
    return tl.abs(tl.dot(tl.where(whole, plane, 0.0), basis, input_precision="ieee"))


@triton.jit
def _put_sums(notes, sizes, squares, WIDTH: tl.constexpr):
    tl.store(notes + tl.arange(0, WIDTH), tl.sum(sizes, 0))
    tl.store(notes + WIDTH + tl.arange(0, WIDTH), tl.sum(squares, 0))


@triton.jit
def _transform(pixels, notes, grey_bank, colour_bank, height, width, tiles, p_b, p_c, p_h, p_w,
               SUMS: tl.constexpr, BC: tl.constexpr, TURNS: tl.constexpr, LIMIT: tl.constexpr,
               R: tl.constexpr, G: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Cosine transforms of some cells of one image: grey by cell, colours by its quarters.

    A cell's pixels go quarter by quarter, so that quarters are rows of the same tensor.
    """
    pixels += (tl.program_id(0) // tiles).to(tl.int64) * p_b
    columns = tl.cdiv(width, 8)
    quarter, rest = tl.arange(0, 64) // 16, tl.arange(0, 64) % 16
    down, right = (quarter // 2 * 4 + rest // 4)[None], (quarter % 2 * 4 + rest % 4)[None]
    sizes, squares = tl.zeros((BC, 64), tl.float32), tl.zeros((BC, 64), tl.float32)
    absent = tl.zeros((BC, 64), tl.float32)
    sizes_1, squares_1 = tl.zeros((BC * 4, 16), tl.float32), tl.zeros((BC * 4, 16), tl.float32)
    sizes_2, squares_2 = tl.zeros((BC * 4, 16), tl.float32), tl.zeros((BC * 4, 16), tl.float32)
    for turn in range(TURNS):
        cell = ((tl.program_id(0) % tiles) * TURNS + turn) * BC + tl.arange(0, BC)
        top, left = (cell // columns * 8)[:, None], (cell % columns * 8)[:, None]
        y, x = top + down, left + right
        inside = (y < height) & (x < width)
        at = pixels + y * p_h + x * p_w
        _red, _green, _blue, grey, first, second = _planes(at, p_c, inside, R, G, B)
        whole = (top + 8 <= height) & (left + 8 <= width)
        size = _sizes(grey, grey_bank, whole, 64)
        sizes += size
        squares += size * size
        absent += tl.where((size < LIMIT) & whole, 1.0, 0.0)
        full = (tl.sum(tl.reshape(inside.to(tl.int32), (BC * 4, 16)), 1) == 16)[:, None]
        size_1 = _sizes(tl.reshape(first, (BC * 4, 16)), colour_bank, full, 16)
        sizes_1 += size_1
        squares_1 += size_1 * size_1
        size_2 = _sizes(tl.reshape(second, (BC * 4, 16)), colour_bank, full, 16)
        sizes_2 += size_2
        squares_2 += size_2 * size_2
    notes += tl.program_id(0).to(tl.int64) * SUMS
    _put_sums(notes, sizes, squares, 64)
    tl.store(notes + 128 + tl.arange(0, 64), tl.sum(absent, 0))
    _put_sums(notes + 192, sizes_1, squares_1, 16)
    _put_sums(notes + 224, sizes_2, squares_2, 16)


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
def _finish(sums, counts, out, height, width, sum_tiles, count_tiles, SUMS: tl.constexpr,
            COUNTS: tl.constexpr, FLOOR: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """One part of one image's descriptor, from all that its programs left; logs are in double."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sums += image * sum_tiles * SUMS
    counts += image * count_tiles * COUNTS
    out += image * 369
    if part == 0:
        cells = ((height // 8) * (width // 8)).to(tl.float32)
        _strength(out, sums, cells, sum_tiles, 63, FLOOR, SUMS, 64, BT)
        places = tl.arange(0, 64)
        absent = _total(sums + 128, sum_tiles, SUMS, 64, BT) / cells
        tl.store(out + 126 + places, absent, mask=places < 63)
    elif part == 1:
        quarters = ((height // 4) * (width // 4)).to(tl.float32)
        _strength(out + 189, sums + 192, quarters, sum_tiles, 30, FLOOR, SUMS, 16, BT)
        _strength(out + 204, sums + 224, quarters, sum_tiles, 30, FLOOR, SUMS, 16, BT)
    elif part == 2:
        for colour in tl.static_range(3):
            _tones(out + 249 + 32 * colour, counts + 32 * colour, height, width, count_tiles,
                   COUNTS, BT)  # fmt: skip
    else:
        for plane in tl.static_range(3):
            _steps(out + 345 + 8 * plane, counts + 96 + 8 * plane, height, width, count_tiles,
                   COUNTS, BT)  # fmt: skip


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
    found = pixels.new_empty(count, 369)
    if not count:
        return found
    cells = triton.cdiv(height, 8) * triton.cdiv(width, 8)
    tiles = triton.cdiv(cells, CELLS * ROUNDS), triton.cdiv(height * width, PIXELS * TURNS)
    sums = pixels.new_empty(count * tiles[0], SUMS)
    counts = pixels.new_empty(count * tiles[1], COUNTS)
    named = {"R": luma[0], "G": luma[1], "B": luma[2]}
    with on_device(pixels):
        # Fused multiplications would round grey otherwise than the plain version does.
        _transform[(count * tiles[0],)](
            pixels, sums, *banks, height, width, tiles[0], *pixels.stride(), SUMS=SUMS,
            BC=CELLS, TURNS=ROUNDS, LIMIT=limit, **named,
            num_warps=WARPS, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        _count[(count * tiles[1],)](
            pixels, counts, edges, height, width, tiles[1], *pixels.stride(), COUNTS=COUNTS,
            SIZE=PIXELS, TURNS=TURNS, **named,
            num_warps=4, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        _finish[(count, 4)](
            sums, counts, found, height, width, *tiles, SUMS=SUMS, COUNTS=COUNTS, FLOOR=floor,
            BT=32, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return found
