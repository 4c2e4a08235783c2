"""What a corruption is, and the one function that applies it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.data.corruptions._random import Draws, image_keys
from ostinato.errors import ConfigError, InputError
from ostinato.registry import CORRUPTIONS

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
