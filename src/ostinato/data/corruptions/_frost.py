"""Frost on glass, made from scratch: crystals are drawn, then matched to how real frost measures.

Photographs of frost are described here by a few measured numbers each: luma quantiles, contrast
per octave of spatial frequency, and colour. A drawing of crystals (ferns, needles, glitter, a
wrinkled film) gives the shapes; its octaves and quantiles are then moved to the measured ones in
turn. Everything is seeded and made once per process, in numpy on one thread, so that every worker
has the same textures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Array = npt.NDArray[np.float64]
SIZE = 512
_PROBABILITIES = (0, 0.005, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 0.995, 1)
_LUMA = np.array((0.299, 0.587, 0.114))


@dataclass(frozen=True)
class Fern:
    """One sort of crystal: a stem with side needles. Lengths are in pixels, angles in degrees."""

    count: int
    length: float
    angle: float
    needle: float
    gap: float = 2.0


@dataclass(frozen=True)
class Frost:
    """One kind of frost as measured at the scale it is applied to pictures of 224 pixels.

    Attributes:
        quantiles: luma at 0, 0.5, 2, 10, 25, 50, 75, 90, 98, 99.5 and 100 %.
        octaves: standard deviation of luma in octaves of frequency, from 3/8..3/4 cycles a pixel
            downwards; the last is all that is slower.
        colours: RGB at the lower quarter, the middle half and the upper quarter of luma.
        tint: RGB standard deviation of slow colour changes that leave luma alone.
        drift: standard deviation of a cut-out's mean luma beyond what the texture itself varies.
        ferns: the crystals drawn.
        wrinkles: how much of a wrinkled film is drawn.
        grain: how much fine glitter is drawn.
    """

    quantiles: tuple[float, ...]
    octaves: tuple[float, ...]
    colours: tuple[tuple[float, float, float], ...]
    tint: float
    drift: float
    ferns: tuple[Fern, ...] = ()
    wrinkles: float = 0.0
    grain: float = 0.0


_FILM = Frost(
    quantiles=(86.5, 98.0, 101.6, 109.6, 116.6, 127.2, 138.7, 151.1, 167.0, 176.8, 213.0),
    octaves=(2.23, 5.79, 4.49, 2.95, 2.88, 3.39, 3.11, 5.52, 8.14),
    colours=((49, 129, 149), (73, 147, 164), (114, 169, 181)),
    tint=9.4,
    drift=9.1,
    wrinkles=1.0,
)
_NEEDLES = Frost(
    quantiles=(78.4, 142.6, 158.8, 180.1, 194.6, 206.5, 215.9, 223.6, 231.2, 235.5, 246.6),
    octaves=(2.31, 7.59, 8.01, 7.72, 6.34, 4.88, 2.45, 4.88, 5.07),
    colours=((172, 176, 184), (202, 207, 216), (221, 227, 236)),
    tint=1.1,
    drift=6.6,
    ferns=(Fern(1500, 34, 14, 16, 3.0), Fern(260, 60, 20, 24, 4.0)),
    grain=0.3,
)
_GLITTER = Frost(
    quantiles=(28.7, 74.1, 94.7, 122.9, 141.4, 158.0, 172.6, 187.2, 213.5, 236.9, 252.5),
    octaves=(4.8, 13.55, 12.75, 9.13, 6.76, 4.74, 1.85, 5.8, 7.63),
    colours=((110, 125, 136), (145, 160, 173), (177, 192, 206)),
    tint=0.8,
    drift=6.5,
    ferns=(Fern(5000, 9, 50, 5), Fern(200, 22, 35, 14)),
    grain=1.0,
)
_FERNS = Frost(
    quantiles=(15.2, 45.1, 52.6, 69.3, 86.9, 110.2, 135.4, 159.5, 195.8, 220.0, 245.0),
    octaves=(7.13, 13.01, 13.26, 12.46, 12.11, 11.29, 5.77, 4.69, 15.04),
    colours=((58, 70, 83), (101, 112, 124), (156, 166, 176)),
    tint=1.2,
    drift=11.1,
    ferns=(Fern(1000, 32, 45, 9), Fern(120, 60, 40, 14)),
)
_FEATHERS = Frost(
    quantiles=(6.0, 19.8, 25.3, 39.3, 53.2, 77.3, 105.1, 129.2, 156.0, 172.7, 237.2),
    octaves=(4.59, 11.95, 12.27, 10.75, 9.51, 8.97, 14.59, 14.27, 11.72),
    colours=((30, 40, 40), (62, 83, 91), (110, 139, 152)),
    tint=5.7,
    drift=9.1,
    ferns=(Fern(70, 120, 35, 40, 3.0), Fern(160, 60, 45, 22, 2.5)),
)
# White needles are twice as common as any other kind, as they are in the usual set.
_MADE = (_FILM, _NEEDLES, _GLITTER, _FERNS, _FEATHERS)
_ORDER = (0, 1, 1, 2, 3, 4)
KINDS = len(_ORDER)
DRIFT = tuple(_MADE[kind].drift for kind in _ORDER)


def _draw(fern: Fern, rng: np.random.Generator) -> Array:
    """Crystals at random places and directions on a sheet that wraps around.

    They come in layers: each layer covers what is below it in part rather than adding to it.
    """
    sheet = np.zeros((SIZE, SIZE))
    layers = min(fern.count, 24)
    for layer in range(layers):
        count = fern.count * (layer + 1) // layers - fern.count * layer // layers
        _draw_layer(sheet, fern, count, rng)
    return sheet


def _draw_layer(sheet: Array, fern: Fern, count: int, rng: np.random.Generator) -> None:
    root, turn = rng.uniform(0, SIZE, (2, count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
    length, light = fern.length * rng.uniform(0.5, 1.4, (count, 1)), rng.uniform(0.4, 1, (count, 1))
    stem = np.arange(0, 1.4 * fern.length, fern.gap)[None]
    stem = stem + rng.normal(0, 0.2 * fern.gap, (count, stem.size))
    # Needles are longest at the root and vanish at the tip.
    reach = fern.needle * (1 - stem / length) * rng.uniform(0.6, 1.2, stem.shape)
    row, column = root[0] + stem * np.sin(turn), root[1] + stem * np.cos(turn)
    steps = np.arange(0, max(1.0, fern.needle * 1.2), 0.7)
    for side, gain in ((-1, 0.45), (1, 1.0)):  # One side faces the light.
        bend = (turn + side * np.deg2rad(fern.angle))[..., None]
        drawn = steps <= reach[..., None]
        rows = (row[..., None] + steps * np.sin(bend))[drawn]
        columns = (column[..., None] + steps * np.cos(bend))[drawn]
        _add(sheet, rows, columns, np.broadcast_to(gain * light[..., None], drawn.shape)[drawn])
    along = np.arange(0, 1.4 * fern.length, 0.5)[None]
    drawn = along <= length
    rows, columns = (root[0] + along * np.sin(turn))[drawn], (root[1] + along * np.cos(turn))[drawn]
    _add(sheet, rows, columns, np.broadcast_to(1.5 * light, drawn.shape)[drawn])


def _add(sheet: Array, row: Array, column: Array, light: Array) -> None:
    rows = np.round(row).astype(np.int64) % SIZE
    columns = np.round(column).astype(np.int64) % SIZE
    sheet[rows, columns] = 0.35 * sheet[rows, columns] + light


def _radius() -> Array:
    frequency = np.fft.fftfreq(SIZE)
    return np.asarray(np.hypot(frequency[:, None], frequency[None]))


def _coloured(rng: np.random.Generator, low: float, high: float) -> Array:
    """Smooth noise between two frequencies, unit variance."""
    radius = _radius()
    wave = np.fft.fft2(rng.normal(size=(SIZE, SIZE)))
    out = np.fft.ifft2(wave * ((radius > low) & (radius <= high))).real
    return np.asarray(out / out.std())


def _sketch(frost: Frost, rng: np.random.Generator) -> Array:
    sheet = sum((_draw(fern, rng) for fern in frost.ferns), np.zeros((SIZE, SIZE)))
    if frost.wrinkles:
        for low, high in ((0.1, 0.3), (0.03, 0.12), (0.004, 0.02)):
            bent = np.abs(_coloured(rng, low, high))
            sheet = sheet + frost.wrinkles * (1 - bent)
    if frost.grain:
        sheet = sheet + frost.grain * 0.4 * np.maximum(_coloured(rng, 0.08, 0.5), 0)
    return np.asarray(sheet + 0.05 * rng.normal(size=sheet.shape))


def _match_octaves(luma: Array, octaves: tuple[float, ...]) -> Array:
    """Scale every octave of frequencies to its measured standard deviation."""
    wave, radius = np.fft.fft2(luma), _radius()
    power = np.abs(wave) ** 2 / SIZE**4
    power[0, 0] = 0
    gain = np.ones_like(radius)
    high = 0.75
    for index, target in enumerate(octaves):
        low = high / 2 if index < len(octaves) - 1 else -1.0
        band = (radius <= high) & (radius > low)
        gain[band] = target / max(1e-9, float(np.sqrt(power[band].sum())))
        high /= 2
    gain[0, 0] = 1
    return np.asarray(np.fft.ifft2(wave * gain).real)


def _match_quantiles(luma: Array, quantiles: tuple[float, ...]) -> Array:
    """Give the values the measured distribution and keep their order."""
    order = np.argsort(luma, axis=None, kind="stable")
    ranks = np.empty(order.size)
    ranks[order] = (np.arange(order.size) + 0.5) / order.size
    return np.interp(ranks, _PROBABILITIES, quantiles).reshape(luma.shape)


def _colour(luma: Array, frost: Frost, rng: np.random.Generator) -> Array:
    """(3, SIZE, SIZE) levels: colour follows luma, with slow changes of tint."""
    knots = np.array(frost.colours)
    at = knots @ _LUMA
    slope = (knots[2] - knots[0]) / (at[2] - at[0])
    rgb = np.stack([knots[1, i] + (luma - at[1]) * slope[i] for i in range(3)])
    rgb += (luma - np.tensordot(_LUMA, rgb, 1))[None]
    warm = np.array((1.0, -0.35, -0.85))
    warm -= _LUMA @ warm
    return np.asarray(rgb + frost.tint * warm[:, None, None] * _coloured(rng, 0.002, 0.02))


def _make(frost: Frost, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    luma = _sketch(frost, rng)
    for _ in range(6):
        luma = _match_quantiles(_match_octaves(luma, frost.octaves), frost.quantiles)
    return _colour(luma, frost, rng).round().clip(0, 255)


@lru_cache(maxsize=1)
def _bank() -> Tensor:
    """(KINDS, 3, SIZE, SIZE) uint8."""
    made = np.stack([_make(frost, 1000 + i) for i, frost in enumerate(_MADE)])
    return torch.from_numpy(made.astype(np.uint8))[list(_ORDER)]


@lru_cache(maxsize=4)
def textures(height: int, width: int, scale: float, device: torch.device) -> Tensor:
    """(KINDS, 3, h, w) levels, larger than the image by a tenth at least, for cutting out."""
    bank = _bank()
    scale = max(scale, 1.1 * max(height, width) / SIZE)
    if scale != 1.0:
        size = round(SIZE * scale)
        shape = (size, size)
        bank = F.interpolate(bank.float(), shape, mode="bilinear").round().to(torch.uint8)
    return bank.float().to(device)
