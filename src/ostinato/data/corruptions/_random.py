"""Random numbers that depend on an image's seed and a pixel's place, and on nothing else.

A counter-based generator: every number is a hash of (key, counter), made of integer operations
that give the same bits on every device, for any batch size and any number of threads. Normal and
uniform numbers come from the hash by table look-up, so no transcendental function (whose last bit
differs between vector units) takes part.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

_LEVELS = 1 << 16
_MASK = (1 << 64) - 1


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _mix64(x: Tensor) -> Tensor:
    """The splitmix64 finaliser on int64 tensors (wrap-around products, logical shifts)."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB, 64)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def image_keys(seeds: Tensor | Sequence[int], name: str, severity: int) -> Tensor:
    """One 64-bit key per image from its seed, the corruption's name and the severity."""
    if not isinstance(seeds, Tensor):
        seeds = torch.tensor([_signed(int(seed), 64) for seed in seeds], dtype=torch.int64)
    salt = zlib.crc32(name.encode()) * 2654435761 + severity * 0x9E3779B97F4A7C15
    return _mix64(_mix64(seeds.to(torch.int64) + _signed(salt & _MASK, 64)))


@lru_cache(maxsize=8)
def _counter(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device) * 747796405


@lru_cache(maxsize=8)
def _normal_table(device: torch.device) -> Tensor:
    """Normal quantiles at the middles of 2^16 equal probabilities, scaled to unit variance."""
    middles = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS
    table = torch.special.ndtri(middles)
    scaled: Tensor = table / table.square().mean().sqrt()
    return scaled.float().to(device)


class Draws:
    """Independent random numbers for a batch, one stream of them per image.

    `stream` separates uses within one corruption: equal arguments give equal numbers.

    >>> one = Draws(image_keys([7], "fog", 1)).bits(0, 4)
    >>> two = Draws(image_keys([3, 7], "fog", 1)).bits(0, 4)
    >>> torch.equal(one[0], two[1])
    True
    """

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    def bits(self, stream: int, count: int) -> Tensor:
        """(B, count) int32, all 32 bits random."""
        keys = _mix64(self.keys + _signed(stream * 0xD1342543DE82EF95, 64))
        first = keys.to(torch.int32)[:, None]
        second = (keys >> 32).to(torch.int32)[:, None]
        x = _counter(count, keys.device)[None] + first
        x ^= (x >> 16) & 0xFFFF
        x *= _signed(0x7FEB352D, 32)
        x ^= second
        x ^= (x >> 15) & 0x1FFFF
        x *= _signed(0x846CA68B, 32)
        x ^= (x >> 16) & 0xFFFF
        return x

    def words(self, stream: int, shape: tuple[int, ...]) -> Tensor:
        """(B, *shape) int32 in 0..65535: two numbers from every hash."""
        count = math.prod(shape)
        halves = self.bits(stream, (count + 1) // 2).view(torch.uint16).to(torch.int32)
        return halves[:, :count].reshape(-1, *shape)

    def normal(self, stream: int, shape: tuple[int, ...]) -> Tensor:
        """(B, *shape) standard normal numbers."""
        words = self.words(stream, shape)
        return _normal_table(words.device).index_select(0, words.reshape(-1)).view(words.shape)

    def uniform(self, stream: int, shape: tuple[int, ...] = ()) -> Tensor:
        """(B, *shape) in [0, 1), 24 bits deep."""
        bits = self.bits(stream, max(1, math.prod(shape)))
        return (((bits >> 8) & 0xFFFFFF).float() / (1 << 24)).view(-1, *shape)

    def integer(self, stream: int, below: int) -> list[int]:
        """One whole number per image in 0..below-1."""
        return ((self.bits(stream, 1)[:, 0].long() & 0xFFFFFFFF) * below >> 32).tolist()
