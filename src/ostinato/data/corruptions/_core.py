"""What a corruption is, the numbers that it draws, and the one function that applies it.

Random numbers depend on an image's seed and a pixel's place, and on nothing else. A counter-based
generator: every number is a hash of (key, counter), made of integer operations that give the same
bits on every device, for any batch size and any number of threads. Normal and uniform numbers
come from the hash by table look-up, so no transcendental function (whose last bit differs between
vector units) takes part.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.errors import ConfigError, InputError
from ostinato.registry import CORRUPTIONS

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


Constants = Literal["imagenet", "cifar"]
Apply = Callable[[Tensor, Any, Draws], Tensor]
SEVERITIES = (1, 2, 3, 4, 5)
# Values taken at once on an accelerator: enough to fill it, small enough for the temporaries.
_CHUNK = 48_000_000
# On a CPU those of one picture of the usual size, which stay in a core's cache.
_PICTURE = 3 * 224 * 224


@dataclass(frozen=True)
class Corruption:
    """A registered corruption: facts about it and the function that applies it.

    Attributes:
        name: what users type.
        kind: noise, blur, weather, digital or driving.
        apply: (uint8 images, one severity's constants, draws) to grey levels in 0..255; what is
            not yet uint8 is clipped and truncated afterwards.
        random: whether the result depends on the seed.
        imagenet: one entry per severity, for pictures of about 224 pixels.
        cifar: one entry per severity, for pictures of about 32 pixels.
        together: how many pictures of 224 pixels a CPU takes at once: one stays in its cache,
            several share what many calls on little data cost.
    """

    name: str
    kind: str
    apply: Apply
    random: bool
    imagenet: tuple[Any, ...]
    cifar: tuple[Any, ...]
    together: int = 1


def corruption(
    kind: str,
    *,
    imagenet: Sequence[Any],
    cifar: Sequence[Any] | None = None,
    random: bool = True,
    together: int = 1,
) -> Callable[[Apply], Apply]:
    """Decorator: register the function below by its name, with its constants."""

    def add(apply: Apply) -> Apply:
        small = imagenet if cifar is None else cifar
        name = apply.__name__
        item = Corruption(name, kind, apply, random, tuple(imagenet), tuple(small), together)
        CORRUPTIONS.register(name)(item)
        return apply

    return add


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    seeds: Tensor | Sequence[int],
    *,
    constants: Constants = "imagenet",
) -> Tensor:
    """Corrupt a batch; every image's result follows from itself, its seed and nothing else.

    Corruptions are defined on 8-bit pictures: a float image is rounded to 256 levels first and
    the result is given back as level / 255, so both kinds of input give the same picture.

    Args:
        images: (B, 3, H, W), uint8 or float in [0, 1].
        name: a registered corruption.
        severity: 1 to 5.
        seeds: one whole number per image.
        constants: the authors' parameters for ImageNet or for CIFAR sized pictures.

    >>> image = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
    >>> noisy = corrupt(image, "gaussian_noise", 3, seeds=[0])
    >>> noisy.shape, noisy.dtype, torch.equal(noisy, corrupt(image, "gaussian_noise", 3, [0]))
    (torch.Size([1, 3, 32, 32]), torch.uint8, True)
    """
    item: Corruption = CORRUPTIONS[name]
    _check(images, severity, seeds, constants)
    values = (item.imagenet if constants == "imagenet" else item.cifar)[severity - 1]
    if images.shape[0] == 0:
        return images.clone()
    keys = image_keys(seeds, name, severity).to(images.device)
    levels = images if images.dtype == torch.uint8 else _to_levels(images)
    out = torch.empty_like(levels)
    with torch.no_grad():
        for part in _parts(images, item.together):
            out[part] = _finish(item.apply(levels[part], values, Draws(keys[part])))
    return out if images.dtype == torch.uint8 else (out.to(images.dtype) / 255)


def _parts(images: Tensor, together: int) -> Iterator[slice]:
    """As many images at a time as the device takes well."""
    count, size = images.shape[0], max(1, images[0].numel())
    values = together * _PICTURE if images.device.type == "cpu" else _CHUNK
    step = max(1, values // size)
    for start in range(0, count, step):
        yield slice(start, start + step)


def _to_levels(images: Tensor) -> Tensor:
    return (images.float() * 255).round().clamp(0, 255).to(torch.uint8)


def _finish(levels: Tensor) -> Tensor:
    """Clip and truncate as the reference does; the small lift keeps whole levels whole."""
    if levels.dtype == torch.uint8:
        return levels
    return levels.add(1e-3).clamp_(0, 255).to(torch.uint8)


def _check(images: Tensor, severity: int, seeds: Tensor | Sequence[int], constants: str) -> None:
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(f"Images should be (B, 3, H, W), not {tuple(images.shape)}.")
    if min(images.shape[2:]) < 8:
        raise InputError(f"Images should be at least 8 pixels wide, not {tuple(images.shape[2:])}.")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(f"Images should be uint8 or float in [0, 1], not {images.dtype}.")
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise ConfigError(f"Severity should be a whole number from 1 to 5, not {severity!r}.")
    if constants not in ("imagenet", "cifar"):
        raise ConfigError(f"Constants should be 'imagenet' or 'cifar', not {constants!r}.")
    if len(seeds) != images.shape[0]:
        raise InputError(f"One seed per image: {images.shape[0]} images, {len(seeds)} seeds.")
