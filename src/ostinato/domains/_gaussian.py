"""The mathematics of domains as Gaussians: pure functions, nothing kept.

Shapes: z (N, d) descriptors, mean (K, d), covariance (K, d) for a diagonal or (K, d, d) for a full
one. `scale` is what a difference is measured against: the shrunk variances (K, d), or the lower
Cholesky factors (K, d, d) of the shrunk covariances. Every distance is a mean over dimensions.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Covariance = Literal["diag", "full", "none"]


def scale_of(covariance: Tensor, kind: Covariance, shrinkage: float) -> Tensor:
    """(1−ε)S + ε of one domain: variances, for `full` their Cholesky factor, for `none` ones.

    >>> scale_of(torch.tensor([1.0, 3.0]), "diag", 0.5)
    tensor([1., 2.])
    """
    if kind == "none":
        return torch.ones_like(covariance)
    if kind == "diag":
        return (1 - shrinkage) * covariance + shrinkage
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    factor: Tensor = torch.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * eye)
    return factor


def _quadratic(delta: Tensor, scale: Tensor) -> Tensor:
    """δᵀ C⁻¹ δ / d for delta (N, K, d): (N, K)."""
    if scale.dim() == 2:
        return (delta.square() / scale).mean(-1)
    white: Tensor = torch.linalg.solve_triangular(scale, delta.permute(1, 2, 0), upper=False)
    return white.square().mean(1).T


def distance(z: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Per-dimension squared Mahalanobis distance of every z to every domain: (N, K).

    >>> distance(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]))
    tensor([[1.]])
    """
    return _quadratic(z[:, None] - mean, scale)


def _sampling_noise(z: Tensor, covariance: Tensor, scale: Tensor, shrinkage: float) -> Tensor:
    """tr(C⁻¹V)/d per domain, V the variance of the images z; of the domain itself for one image."""
    if len(z) > 1:
        if scale.dim() == 2:
            return (z.var(0, correction=1) / scale).mean(-1)
        centred = (z - z.mean(0))[:, None].expand(-1, len(scale), -1)
        return _quadratic(centred, scale).sum(0) / (len(z) - 1)
    if scale.dim() == 2:
        return (covariance / scale).mean(-1)
    eye = torch.eye(scale.shape[-1], dtype=scale.dtype, device=scale.device).expand_as(scale)
    inverse: Tensor = torch.linalg.solve_triangular(scale, eye, upper=False)
    # C = (1−ε)S + εI, so C⁻¹S = (I − εC⁻¹)/(1−ε), and tr C⁻¹ is the squared norm of L⁻¹.
    return (1 - shrinkage * inverse.square().sum((-2, -1)) / scale.shape[-1]) / (1 - shrinkage)


def corrected_distance(
    z: Tensor, mean: Tensor, covariance: Tensor, scale: Tensor, images: Tensor, shrinkage: float
) -> Tensor:
    """Distance of the mean of z to every domain, less what chance alone makes of it: (K,).

    A mean of B images misses its own domain's, itself a mean of n images, by V·(1/B + 1/n).
    """
    noise = _sampling_noise(z, covariance, scale, shrinkage)
    return distance(z.mean(0, keepdim=True), mean, scale)[0] - noise * (1 / len(z) + 1 / images)


def difference(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Corrected distance between the means of two sets of images, under one domain's scale."""
    free = max(len(a) + len(b) - 2, 1)
    centred = torch.cat([a - a.mean(0), b - b.mean(0)])
    noise = _quadratic(centred[:, None], scale[None]).sum() / free
    apart = _quadratic((a.mean(0) - b.mean(0))[None, None], scale[None])[0, 0]
    return apart - noise * (1 / len(a) + 1 / len(b))


def soft_weights(z: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Softmax of −½·m over the images, for one domain: (N,), summing to one."""
    return torch.softmax(-0.5 * distance(z, mean[None], scale[None])[:, 0], 0)


def weighted_update(
    mean: Tensor, covariance: Tensor, weight: float, z: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The paper's closed forms: (cμ + Σ w z)/(c+1) and (cΣ + Σ w (z−μ)(z−μ)ᵀ)/(c+1).

    Written as steps from the old values, which are the same and lose nothing for large c.

    >>> weighted_update(
    ...     torch.zeros(1), torch.ones(1), 1, torch.tensor([[2.0], [4.0]]), torch.tensor([0.5, 0.5])
    ... )
    (tensor([1.5000]), tensor([5.5000]))
    """
    rate = 1 / (weight + 1)
    scatter = _scatter(z - mean, weights, covariance.dim() == 2)
    return mean + rate * (weights @ z - mean), covariance + rate * (scatter - covariance)


def ema_update(
    mean: Tensor, covariance: Tensor, z: Tensor, momentum: float
) -> tuple[Tensor, Tensor]:
    """Every image counts the same and the past fades: the ablation of the weighted update."""
    even = torch.full((len(z),), 1 / len(z), dtype=z.dtype, device=z.device)
    scatter = _scatter(z - mean, even, covariance.dim() == 2)
    return mean + momentum * (z.mean(0) - mean), covariance + momentum * (scatter - covariance)


def _scatter(delta: Tensor, weights: Tensor, full: bool) -> Tensor:
    return (delta * weights[:, None]).T @ delta if full else weights @ delta.square()


def _log_determinant(scale: Tensor) -> Tensor:
    """log det C of every domain: (K,)."""
    if scale.dim() == 2:
        return scale.log().sum(-1)
    return 2 * scale.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _log_density(z: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """log N(z | μ, C) with the shrunk covariance in both of its places: (N, K)."""
    d = z.shape[-1]
    return -0.5 * (
        d * distance(z, mean, scale) + _log_determinant(scale) + d * math.log(2 * math.pi)
    )


def posterior(z: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """P(y = i | z) under a uniform prior, computed in log space: (N, K).

    >>> posterior(torch.tensor([[0.0]]), torch.tensor([[1.0], [-1.0]]), torch.ones(2, 1))
    tensor([[0.5000, 0.5000]])
    """
    return torch.softmax(_log_density(z, mean, scale), -1)


def merged(
    first: tuple[Tensor, Tensor, int], second: tuple[Tensor, Tensor, int]
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of two (mean, covariance, images) taken together, by moments."""
    (mean_a, cov_a, n_a), (mean_b, cov_b, n_b) = first, second
    share = n_b / (n_a + n_b)
    apart = mean_b - mean_a
    between = torch.outer(apart, apart) if cov_a.dim() == 2 else apart.square()
    covariance = (1 - share) * cov_a + share * cov_b + share * (1 - share) * between
    return mean_a + share * apart, covariance
