"""Moments of few images, moved towards the source's by what chance made of them.

Every other image of a domain is a sample of its own. How far the two samples lie apart says how
much of what parts them from the source is chance; so much of the way they go back to the source
(Ledoit and Wolf, 2004, with the source's covariance as the target; James and Stein, 1961, for
means). Few images of a mild shift then move little, many of a strong one nearly all the way, and
clean images not at all; there is nothing to set.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ostinato.ops.moments import BlockMoments, token_moments

Halves = tuple[BlockMoments, BlockMoments]
Size = Callable[[Tensor], Tensor]


def halves_of(
    tokens: Tensor,
    prefix: int,
    first: int = 0,
    images: int | None = None,
    total: Callable[[Tensor], Tensor] = lambda found: found,
) -> Halves:
    """Moments of the even and of the odd images.

    Args:
        tokens: (rows, N, D) of the images that are here, as many rows for each.
        prefix: tokens of every image that are kept apart.
        first: place of the first of them among all images.
        images: how many images are here; as many as rows unless given.
        total: sums over all processes that have some of the images.

    >>> even, odd = halves_of(torch.arange(4.0).view(4, 1, 1), prefix=0)
    >>> even.mean.item(), odd.mean.item()
    (1.0, 2.0)
    """
    here = len(tokens) if images is None else images
    pieces = tokens.unflatten(0, (here, len(tokens) // max(here, 1))) if here else tokens[:, None]
    even, odd = (pieces[(first + half) % 2 :: 2].flatten(0, 1) for half in (0, 1))
    return token_moments(even, prefix, total), token_moments(odd, prefix, total)


def shrunk(source: BlockMoments, halves: Halves, images: int) -> BlockMoments:
    """Moments of all images of two halves, moved towards the source's as far as chance goes.

    Distances are taken in the source's own deviations, where chance alone gives clean images the
    whole way back.

    Args:
        source: where to.
        halves: moments of the even and of the odd images.
        images: of both together; one says nothing.

    >>> draw = torch.Generator().manual_seed(0)
    >>> source = token_moments(torch.randn(500, 8, 4, generator=draw), prefix=0)
    >>> some = torch.randn(10, 8, 4, generator=draw)
    >>> like, wide = (shrunk(source, halves_of(f * some, 0), images=10) for f in (1, 3))
    >>> round(like.covariance.trace().item()), round(wide.covariance.trace().item()) > 30
    (4, True)
    """
    spread, centre, first = (
        one.double() for one in (source.covariance, source.mean, source.prefix)
    )
    if images < 2:
        return BlockMoments(centre, spread, first)
    even, odd = halves
    share = (images - images // 2) / images  # of the even ones
    chance = share * (1 - share)
    apart = even.mean - odd.mean
    mean = torch.lerp(odd.mean, even.mean, share)
    wide = torch.lerp(odd.covariance, even.covariance, share)
    wide = wide + chance * torch.outer(apart, apart)
    begin = torch.lerp(odd.prefix, even.prefix, share)

    def back(found: Tensor, there: Tensor, between: Tensor, size: Size) -> Tensor:
        """Go back by the share of the way that chance accounts for."""
        way = size(found - there).clamp_min(torch.finfo(found.dtype).tiny)
        return torch.lerp(found, there, (chance * size(between) / way).clamp_max(1.0))

    def length(x: Tensor) -> Tensor:
        return torch.dot(torch.mv(source.precision, x), x)

    def area(x: Tensor) -> Tensor:
        turned = source.precision @ x
        return (turned * turned.T).sum()

    return BlockMoments(
        back(mean, centre, apart, length),
        back(wide, spread, even.covariance - odd.covariance, area),
        back(begin, first, even.prefix - odd.prefix, lambda x: x.square().sum()),
    )
