"""Mean and covariance of tokens, and the map that moves them towards the source's.

A shift changes how a block's tokens are spread. Whitening them with their own covariance and
colouring the result with the source's undoes that; moving only a *share* of the way, block after
block, works better than moving all the way at once (PEA, ICLR 2026, does so for one running
domain).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.ops.roots import inverse_root

_RIDGE = 0.05
"""Added to every covariance, as a share of its mean variance, before a root is taken."""
FULL, RANK = 256, 64
"""Blocks up to the first width keep whole maps, wider ones maps of the second's rank."""
_MOST = 1024
"""Tokens of an image that moments are taken of: early feature maps have many, all alike."""
_EXACT = (torch.float, torch.double)
"""Precisions in which a number times one, plus zeros, is itself."""
LEAST = 1e-4
"""No domain's variance counts as less than this share of the source's: flat images have none."""


@dataclass(frozen=True)
class BlockMoments:
    """Of the tokens after one block: mean (D), covariance (D, D), prefix tokens' means (P, D).

    Prefix tokens (class token, registers) are one of a kind in an image; only their means are kept.

    >>> token_moments(torch.ones(2, 5, 3), prefix=1).mean.tolist()
    [1.0, 1.0, 1.0]
    """

    mean: Tensor
    covariance: Tensor
    prefix: Tensor

    @cached_property
    def root(self) -> Tensor:
        """The square root of the ridged covariance, in double precision; taken once."""
        return power(ridged(self.covariance.double()), 0.5)

    @cached_property
    def precision(self) -> Tensor:
        """The inverse of the ridged covariance, in double precision; taken once."""
        return power(ridged(self.covariance.double()), -1.0)

    @cached_property
    def least(self) -> Tensor:
        """The variance that a domain has at least: `LEAST` of this one's."""
        return LEAST * self.covariance.double().diagonal().mean()

    def to(self, device: torch.device | str) -> BlockMoments:
        """The same numbers on another device."""
        return BlockMoments(
            self.mean.to(device), self.covariance.to(device), self.prefix.to(device)
        )


def token_moments(
    tokens: Tensor, prefix: int, total: Callable[[Tensor], Tensor] = lambda found: found
) -> BlockMoments:
    """Moments of (B, N, D) tokens, the first `prefix` of every image apart, in double precision.

    Under a GPU's autocast, products of the centred tokens are taken in its half precision and
    summed in single: rounding is then what it is in the model's own layers.

    Args:
        tokens: those that are here, which may be none.
        prefix: how many of every image are kept apart.
        total: sums over all processes that have some of the tokens.

    >>> tokens = torch.tensor([[[9.0], [1.0], [3.0]]])
    >>> found = token_moments(tokens, prefix=1)
    >>> found.mean.item(), found.covariance.item(), found.prefix.item()
    (2.0, 1.0, 9.0)
    """
    body = _thinned(tokens[:, prefix:]).flatten(0, 1)
    half = body.is_cuda and torch.is_autocast_enabled("cuda")
    body = body if half else body.double()
    first = tokens[:, :prefix].double().sum(0)
    counts = [first.new_full((1,), len(one)) for one in (tokens, body)]  # from no host's memory
    kind = torch.float if half else torch.double
    found = total(torch.cat([*counts, first.flatten(), body.sum(0, dtype=kind).double()]))
    images, count = found[:2]
    mean = found[2 + first.numel() :] / count
    first = found[2 : 2 + first.numel()].view_as(first) / images
    if half:
        body = (body - mean.float()).to(torch.get_autocast_dtype("cuda"))
        products = torch.mm(body.T, body, out_dtype=torch.float).double()
    else:
        body = body - mean
        products = body.T @ body
    return BlockMoments(mean, total(products) / count, first)


def _thinned(body: Tensor) -> Tensor:
    """At most `_MOST` tokens of each image, the same places in all, drawn once for a length."""
    count = body.shape[1]
    return body if count <= _MOST else body[:, _places(count, str(body.device))]


@lru_cache(maxsize=64)
def _places(count: int, device: str) -> Tensor:
    # A tensor born in inference mode could not be used outside it, and this one is kept.
    with torch.inference_mode(False), torch.no_grad():
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(count))[:_MOST]
        return drawn.sort().values.to(device)


def ridged(covariance: Tensor, least: Tensor | float = 0.0) -> Tensor:
    """The covariance with `_RIDGE` of its mean variance (at least `least`) on the diagonal."""
    variance = torch.clamp(covariance.diagonal().mean(), min=least)
    found = covariance.clone()
    found.diagonal().add_(_RIDGE * variance)
    return found


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A symmetric positive matrix to a real power.

    >>> power(torch.diag(torch.tensor([4.0, 9.0])), -0.5).diagonal().tolist()
    [0.5, 0.333...]
    """
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp_min(torch.finfo(matrix.dtype).tiny)
    result: Tensor = (vectors * values.pow(exponent)) @ vectors.T
    return result


def _whitening(covariance: Tensor, least: Tensor) -> Tensor:
    """The power −½ of a domain's ridged covariance, in double precision.

    A GPU is slow at eigenvalues and quick at products, so there it is made of products. They are in
    double precision too: models run in halves or in TF32, which is far too little here.
    """
    whole = ridged(covariance.double(), least)
    if not whole.is_cuda:
        return power(whole, -0.5)
    with torch.autocast("cuda", enabled=False):
        return inverse_root(whole, _RIDGE / (2 * len(whole)))


@dataclass(frozen=True)
class BlockMap:
    """`x + x ∘ scale + (x · down) · up + shift` for tokens, `x + prefix` for prefix tokens.

    Where `up` is empty, `down` is the whole matrix. Tensors are one domain's, or have a first
    dimension for one domain an image.

    >>> none, line = torch.zeros(2, 2), torch.zeros(2)
    >>> still = BlockMap(line, none, none[:0], line, torch.zeros(0, 2))
    >>> still(torch.tensor([[[1.0, 2.0]]])).flatten().tolist()
    [1.0, 2.0]
    """

    scale: Tensor
    down: Tensor
    up: Tensor
    shift: Tensor
    prefix: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """Move (B, N, D) tokens."""
        scale, down, up, shift, prefix = (part.to(tokens) for part in self.tensors())
        return moved(tokens, 1 + scale, down, up, shift, prefix)

    def to(self, device: torch.device | str) -> BlockMap:
        """The same numbers on another device."""
        return BlockMap(*(part.to(device) for part in self.tensors()))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All five, in order."""
        return self.scale, self.down, self.up, self.shift, self.prefix


def moved(
    tokens: Tensor, factor: Tensor, down: Tensor, up: Tensor, shift: Tensor, prefix: Tensor
) -> Tensor:
    """What a `BlockMap` does, with `1 + scale` as its `factor`.

    Everything but the prefix is done to whole tensors, since a pass over them costs more than the
    few tokens too many; what that made of the prefix is then replaced. A CPU has the factor in a
    whole matrix, which then is one product: ones and zeros leave tokens as they are to the bit.
    """
    if not up.numel() and tokens.device.type == "cpu" and tokens.dtype in _EXACT:
        whole = affine(tokens, down + factor.diag_embed(), shift)
    else:
        change = affine(tokens @ down, up, shift) if up.numel() else affine(tokens, down, shift)
        whole = torch.addcmul(change, tokens, factor.unsqueeze(-2))
    count = prefix.shape[-2]
    if not count:
        return whole
    if whole.requires_grad:
        return torch.cat([tokens[:, :count] + prefix, whole[:, count:]], 1)
    torch.add(tokens[:, :count], prefix, out=whole[:, :count])
    return whole


def affine(tokens: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """`tokens · matrix + shift` as one operator; both may have a first dimension, an image each.

    >>> eye = torch.eye(2)
    >>> affine(torch.ones(1, 3, 2), eye, eye[0])[0, 0].tolist()
    [2.0, 1.0]
    """
    if matrix.ndim == 3:
        return torch.baddbmm(shift.unsqueeze(-2), tokens, matrix)
    return F.linear(tokens, matrix.mT, shift)


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
    move = source.root @ _whitening(domain.covariance, source.least)
    shift = share * torch.addmv(source.mean.double(), move, domain.mean.double(), alpha=-1)
    rest = (share * move).T
    scale = rest.diagonal() - share
    rest.diagonal().zero_()
    width = len(rest)
    kept = map_rank(width) if rank is None else rank
    down, up = (rest, rest[:0]) if kept >= width else low_rank_factors(rest, kept)
    prefix = share * (source.prefix.double() - domain.prefix.double())
    return BlockMap(
        scale.float(), down.float().contiguous(), up.float(), shift.float(), prefix.float()
    )


def low_rank_factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two factors whose product is nearly the best approximation of that rank.

    Products with the matrix and its transpose turn a start at random (always the same one) into
    the directions that it is largest in.

    >>> full = torch.diag(torch.tensor([3.0, 2.0, 0.1]))
    >>> down, up = low_rank_factors(full, 2)
    >>> torch.linalg.matrix_rank(down @ up).item(), round(float((full - down @ up).norm()), 4)
    (2, 0.1)
    """
    basis = matrix @ _start(matrix.shape[-1], rank, str(matrix.device)).to(matrix.dtype)
    basis = orthonormal(matrix @ (matrix.mT @ orthonormal(basis)))
    return basis, basis.mT @ matrix


@lru_cache(maxsize=8)
def _start(width: int, rank: int, device: str) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.no_grad():  # it is kept, so it must be usable anywhere
        return torch.randn(width, rank, generator=draw, dtype=torch.double).to(device)


def orthonormal(columns: Tensor) -> Tensor:
    """The same span by orthonormal columns; directions that are not there become zero.

    >>> found = orthonormal(torch.tensor([[2.0, 2.0], [0.0, 1.0], [0.0, 0.0]]))
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
