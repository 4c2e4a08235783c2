"""Noise: Gaussian, shot (Poisson), impulse (salt and pepper) and speckle."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption

# Quantiles kept of every Poisson distribution; 256 levels × 4096 bytes stay in a core's cache.
_QUANTILES = 4096


@corruption("noise", imagenet=(0.08, 0.12, 0.18, 0.26, 0.38), cifar=(0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Add normal noise of standard deviation c to every channel of every pixel."""
    noise = draws.normal(0, tuple(x.shape[1:]))
    return noise.mul_(255 * c).add_(x)


@corruption("noise", imagenet=(0.15, 0.2, 0.35, 0.45, 0.6), cifar=(0.06, 0.1, 0.12, 0.16, 0.2))
def speckle_noise(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Multiply every value by a normal number of mean 1 and standard deviation c."""
    noise = draws.normal(0, tuple(x.shape[1:]))
    return noise.mul_(c).add_(1).mul_(x)


@lru_cache(maxsize=16)
def _shot_table(rate: float, device: torch.device) -> Tensor:
    """The result for every (grey level, quantile), from the Poisson distribution itself.

    Counts above the rate are all clipped to white, so their probabilities are not needed.
    """
    mean = torch.arange(256, dtype=torch.float64)[:, None] / 255 * rate
    counts = torch.arange(int(rate) + 1, dtype=torch.float64)
    log_pmf = torch.xlogy(counts, mean) - mean - torch.lgamma(counts + 1)
    cdf = log_pmf.exp().cumsum(1)
    middles = (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES
    drawn = torch.searchsorted(cdf, middles.expand(256, -1).contiguous())
    table = (drawn / rate).clamp(max=1) * 255 + 1e-6
    return table.to(torch.uint8).flatten().to(device)


@corruption("noise", imagenet=(60.0, 25.0, 12.0, 5.0, 3.0), cifar=(500.0, 250.0, 100.0, 75.0, 50.0))
def shot_noise(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Photon counting: Poisson counts at c photons per unit of light."""
    index = draws.words(0, tuple(x.shape[1:])) >> 4
    index += x.to(torch.int32) * _QUANTILES
    return _shot_table(c, x.device).index_select(0, index.view(-1)).view(x.shape)


@corruption("noise", imagenet=(0.03, 0.06, 0.09, 0.17, 0.27), cifar=(0.01, 0.02, 0.03, 0.05, 0.07))
def impulse_noise(x: Tensor, c: float, draws: Draws) -> Tensor:
    """Turn a share c of the values to black or white, evenly."""
    words = draws.words(0, tuple(x.shape[1:]))
    hit = round(c * 65536)
    struck = (words < hit).view(torch.uint8)
    black = (words < hit // 2).view(torch.uint8)
    # Bytes wrap around: `struck - 1` keeps what is not struck, `black - struck` is 255 for white.
    return (x & (struck - 1)) | (black - struck)
