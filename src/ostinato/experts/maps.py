"""The map that moves a block's tokens towards the source's, made from moments.

A shift changes how a block's tokens are spread. Whitening them with their own covariance and
colouring the result with the source's undoes that; moving only a *share* of the way, block after
block, works better than moving all the way at once (PEA, ICLR 2026, does so for one running
domain). What a map does to tokens is in `experts.routed`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ostinato.experts.routed import BlockMap
from ostinato.ops.moments import BlockMoments, whitening

FULL, RANK = 256, 64
"""Blocks up to the first width keep whole maps, wider ones maps of the second's rank."""


def map_rank(width: int) -> int:
    """The rank that maps of a block this wide are kept to: all of it up to 256, then 64."""
    return width if width <= FULL else RANK


def block_map(
    source: BlockMoments, domain: BlockMoments, share: float | Tensor, rank: int | None = None
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
    move = source.root @ whitening(domain.covariance, source.least)
    shift = share * torch.addmv(source.mean.double(), move, domain.mean.double(), alpha=-1)
    rest = (share * move).T
    scale = rest.diagonal() - share
    rest.diagonal().zero_()
    width = len(rest)
    kept = map_rank(width) if rank is None else rank
    down, up = (rest, rest[:0]) if kept >= width else _low_rank_factors(rest, kept)
    prefix = share * (source.prefix.double() - domain.prefix.double())
    return BlockMap(
        scale.float(), down.float().contiguous(), up.float(), shift.float(), prefix.float()
    )


def _low_rank_factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two factors whose product is nearly the best approximation of that rank.

    Products with the matrix and its transpose turn a start at random (always the same one) into
    the directions that it is largest in.

    >>> full = torch.diag(torch.tensor([3.0, 2.0, 0.1]))
    >>> down, up = _low_rank_factors(full, 2)
    >>> torch.linalg.matrix_rank(down @ up).item(), round(float((full - down @ up).norm()), 4)
    (2, 0.1)
    """
    basis = matrix @ _start(matrix.shape[-1], rank, str(matrix.device)).to(matrix.dtype)
    basis = _orthonormal(matrix @ (matrix.mT @ _orthonormal(basis)))
    return basis, basis.mT @ matrix


@lru_cache(maxsize=8)
def _start(width: int, rank: int, device: str) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.no_grad():  # it is kept, so it must be usable anywhere
        return torch.randn(width, rank, generator=draw, dtype=torch.double).to(device)


def _orthonormal(columns: Tensor) -> Tensor:
    """The same span by orthonormal columns; directions that are not there become zero.

    >>> found = _orthonormal(torch.tensor([[2.0, 2.0], [0.0, 1.0], [0.0, 0.0]]))
    >>> [[round(float(v), 3) for v in row] for row in found.T @ found]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    gram = (columns.mT @ columns).double()
    sizes = gram.diagonal(dim1=-2, dim2=-1)
    sizes.add_(1e-12 * sizes.mean(-1, keepdim=True) + 1e-42)
    lower, _ = torch.linalg.cholesky_ex(gram)
    whole = torch.linalg.solve_triangular(lower, columns.mT.double(), upper=False)
    result: Tensor = whole.mT.to(columns.dtype)
    return result
