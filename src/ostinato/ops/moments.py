"""Mean and covariance of a block's tokens, and their roots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from ostinato.ops._roots import inverse_root

_RIDGE = 0.05
"""Added to every covariance, as a share of its mean variance, before a root is taken."""
_MOST = 1024
"""Tokens of an image that moments are taken of: early feature maps have many, all alike."""
_LEAST = 1e-4
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
        return _power(_ridged(self.covariance.double()), 0.5)

    @cached_property
    def precision(self) -> Tensor:
        """The inverse of the ridged covariance, in double precision; taken once."""
        return _power(_ridged(self.covariance.double()), -1.0)

    @cached_property
    def least(self) -> Tensor:
        """The variance that a domain has at least: `_LEAST` of this one's."""
        return _LEAST * self.covariance.double().diagonal().mean()

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


def _ridged(covariance: Tensor, least: Tensor | float = 0.0) -> Tensor:
    """The covariance with `_RIDGE` of its mean variance (at least `least`) on the diagonal."""
    variance = torch.clamp(covariance.diagonal().mean(), min=least)
    found = covariance.clone()
    found.diagonal().add_(_RIDGE * variance)
    return found


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """A symmetric positive matrix to a real power.

    >>> _power(torch.diag(torch.tensor([4.0, 9.0])), -0.5).diagonal().tolist()
    [0.5, 0.333...]
    """
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp_min(torch.finfo(matrix.dtype).tiny)
    result: Tensor = (vectors * values.pow(exponent)) @ vectors.T
    return result


def whitening(covariance: Tensor, least: Tensor) -> Tensor:
    """The power −½ of a domain's ridged covariance, in double precision.

    A GPU is slow at eigenvalues and quick at products, so there it is made of products. They are in
    double precision too: models run in halves or in TF32, which is far too little here.
    """
    whole = _ridged(covariance.double(), least)
    if not whole.is_cuda:
        return _power(whole, -0.5)
    with torch.autocast("cuda", enabled=False):
        return inverse_root(whole, _RIDGE / (2 * len(whole)))
