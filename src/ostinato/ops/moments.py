"""Mean and covariance of tokens, and the map that moves them towards the source's.

A shift changes how a block's tokens are spread. Whitening them with their own covariance and
colouring the result with the source's undoes that; moving only a *share* of the way, block after
block, works better than moving all the way at once (PEA, ICLR 2026, does so for one running
domain).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

RIDGE = 0.05
"""Added to every covariance, as a share of its mean variance, before a root is taken."""
FULL, RANK = 256, 64
"""Blocks up to the first width keep whole maps, wider ones maps of the second's rank."""
MOST = 1024
"""Tokens of an image that moments are taken of: early feature maps have many, all alike."""
LEAST = 1e-4
"""No domain's variance counts as less than this share of the source's: flat images have none."""


@dataclass(frozen=True)
class BlockMoments:
    """Of the tokens after one block: mean (D), covariance (D, D), prefix tokens' means (P, D).

    Prefix tokens (class token, registers) are one of a kind in an image; only their means are kept.
    """

    mean: Tensor
    covariance: Tensor
    prefix: Tensor

    def to(self, device: torch.device | str) -> BlockMoments:
        """The same numbers on another device."""
        return BlockMoments(
            self.mean.to(device), self.covariance.to(device), self.prefix.to(device)
        )


def token_moments(tokens: Tensor, prefix: int) -> BlockMoments:
    """Moments of (B, N, D) tokens, the first `prefix` of every image apart, in double precision.

    >>> tokens = torch.tensor([[[9.0], [1.0], [3.0]]])
    >>> found = token_moments(tokens, prefix=1)
    >>> found.mean.item(), found.covariance.item(), found.prefix.item()
    (2.0, 1.0, 9.0)
    """
    body = _thinned(tokens[:, prefix:]).flatten(0, 1).double()
    mean = body.mean(0)
    body = body - mean
    return BlockMoments(mean, body.T @ body / len(body), tokens[:, :prefix].double().mean(0))


def _thinned(body: Tensor) -> Tensor:
    """At most `MOST` tokens of each image, the same places in all, drawn once for a length."""
    count = body.shape[1]
    return body if count <= MOST else body[:, _places(count, str(body.device))]


@lru_cache(maxsize=64)
def _places(count: int, device: str) -> Tensor:
    # A tensor born in inference mode could not be used outside it, and this one is kept.
    with torch.inference_mode(False), torch.no_grad():
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(count))[:MOST]
        return drawn.sort().values.to(device)


def ridged(covariance: Tensor, least: float = 0.0) -> Tensor:
    """The covariance with `RIDGE` of its mean variance (at least `least`) on the diagonal."""
    variance = covariance.diagonal().mean().clamp_min(least)
    return covariance + RIDGE * variance * torch.eye(
        len(covariance), dtype=covariance.dtype, device=covariance.device
    )


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A symmetric positive matrix to a real power.

    >>> power(torch.diag(torch.tensor([4.0, 9.0])), -0.5).diagonal().tolist()
    [0.5, 0.333...]
    """
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp_min(torch.finfo(matrix.dtype).tiny)
    result: Tensor = (vectors * values.pow(exponent)) @ vectors.T
    return result


@dataclass(frozen=True)
class BlockMap:
    """`x + x ∘ scale + (x · down) · up + shift` for tokens, `x + prefix` for prefix tokens.

    Where `up` is empty, `down` is the whole matrix. Tensors are one domain's, or have a first
    dimension for one domain an image.
    """

    scale: Tensor
    down: Tensor
    up: Tensor
    shift: Tensor
    prefix: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """Move (B, N, D) tokens."""
        count = self.prefix.shape[-2]
        scale, down, up, shift, prefix = (part.to(tokens) for part in self.tensors())
        body = tokens[:, count:]
        change = body @ down
        if up.numel():
            change = change @ up
        moved: Tensor = body * (1 + scale.unsqueeze(-2)) + change + shift.unsqueeze(-2)
        return torch.cat([tokens[:, :count] + prefix, moved], 1) if count else moved

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All five, in order."""
        return self.scale, self.down, self.up, self.shift, self.prefix


def map_rank(width: int) -> int:
    """The rank that maps of a block this wide are kept to: all of it up to 256, then 64."""
    return width if width <= FULL else RANK


def block_map(
    source: BlockMoments, domain: BlockMoments, share: float, rank: int | None = None
) -> BlockMap:
    """The map that moves a share of the way from a domain's moments to the source's.

    With M = Σ_s^½ Σ_d^-½ it is `x + a (M − I) x + a (μ_s − M μ_d)`. The diagonal of `a (M − I)` is
    kept as it is, the rest to `rank` (None: `map_rank`).

    >>> one = torch.eye(2, dtype=torch.double)
    >>> source = BlockMoments(torch.zeros(2), one, torch.zeros(0, 2))
    >>> wide = BlockMoments(torch.full((2,), 3.0).double(), 4 * one, torch.zeros(0, 2))
    >>> whole = block_map(source, wide, share=1.0)
    >>> [round(float(v), 3) for v in whole(torch.tensor([[[5.0, 3.0]]])).flatten()]
    [1.0, 0.0]
    """
    least = LEAST * float(source.covariance.diagonal().mean())
    move = power(ridged(source.covariance.double()), 0.5)
    move = move @ power(ridged(domain.covariance.double(), least), -0.5)
    shift = share * (source.mean.double() - move @ domain.mean.double())
    scale = share * (move.diagonal() - 1)
    rest = (share * (move - torch.diag(move.diagonal()))).T
    width = len(rest)
    kept = map_rank(width) if rank is None else rank
    down, up = (rest, rest[:0]) if kept >= width else low_rank_factors(rest, kept)
    prefix = share * (source.prefix.double() - domain.prefix.double())
    return BlockMap(
        scale.float(), down.float().contiguous(), up.float(), shift.float(), prefix.float()
    )


def low_rank_factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two factors whose product is the matrix, or its best approximation of that rank.

    >>> full = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> down, up = low_rank_factors(full, 2)
    >>> torch.linalg.matrix_rank(down @ up).item(), round(float((full - down @ up).norm()), 4)
    (2, 1.0)
    """
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank]
