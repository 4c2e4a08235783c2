"""Prompts: learned tokens beside the image's, and learned pixels upon it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.ops.blocks import has_class_token
from ostinato.ops.tokens import entering, find_patches, leaving, token_width


@contextmanager
def inserted(model: nn.Module, prompt: Tensor) -> Iterator[None]:
    """Insert prompt tokens after the class token for the forwards of a `with` block.

    They pass through every block and are taken out after the last, so that a head which pools
    over tokens sees the image's own alone.

    Args:
        model: a transformer over a sequence of tokens.
        prompt: (P, D), the same for every image, or (B, P, D).
    """
    place = int(has_class_token(model))
    count = prompt.shape[-2]

    def add(tokens: Tensor) -> Tensor:
        mine = prompt.to(tokens.dtype).expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :place], mine, tokens[:, place:]], 1)

    def drop(tokens: Tensor) -> Tensor:
        return torch.cat([tokens[:, :place], tokens[:, place + count :]], 1)

    with entering(model, add), leaving(model, drop):
        yield


def fresh_prompt(model: nn.Module, *shape: int, generator: torch.Generator) -> Tensor:
    """Uniform prompt tokens (*shape, D) in the range that suits the model's patch embedding.

    The range is that of visual prompt tuning: ±√(6 / (3·patch area + D)). Behind a convolutional
    stem the area is that of the pixels a token stands for.
    """
    width = token_width(model)
    bound = math.sqrt(6 / (3 * math.prod(find_patches(model).size) + width))
    drawn = torch.rand(*shape, width, generator=generator)
    return (bound * (2 * drawn - 1)).to(next(model.parameters()).device)


def paste(pixels: Tensor, prompt: Tensor, share: float, corner: tuple[float, float]) -> Tensor:
    """Add a square of learned pixels to every image.

    Args:
        pixels: (B, 3, H, W).
        prompt: (3, s, s), resized where its place has another size.
        share: the square's side, as a share of the image's shorter one.
        corner: where it lies: (0, 0) top left, (1, 1) bottom right.

    >>> square = torch.ones(3, 2, 2)
    >>> paste(torch.zeros(1, 3, 4, 4), square, 0.5, (0.0, 1.0))[0, 0].tolist()[0]
    [0.0, 0.0, 1.0, 1.0]
    """
    height, width = pixels.shape[-2:]
    side = max(1, round(share * min(height, width)))
    if prompt.shape[-1] != side:
        prompt = F.interpolate(prompt[None], size=(side, side), mode="bilinear")[0]
    top = round(corner[0] * (height - side))
    left = round(corner[1] * (width - side))
    edges = (left, width - side - left, top, height - side - top)
    return pixels + F.pad(prompt, edges)
