"""Moments of tokens, and maps that move them a share of the way to the source's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.experts.maps import _low_rank_factors, block_map, map_rank
from ostinato.experts.routed import BlockMap
from ostinato.ops._roots import inverse_root
from ostinato.ops.moments import _LEAST, BlockMoments, _power, _ridged, token_moments

widths, shares = st.integers(1, 12), st.floats(0, 1)


def correlated(width: int, seed: int, prefix: int = 0, images: int = 6) -> torch.Tensor:
    """(B, prefix + 50, D) tokens whose features depend on one another."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator, dtype=torch.double)
    body = torch.randn(images, 50, width, generator=generator, dtype=torch.double) @ mix
    body = body + torch.randn(width, generator=generator, dtype=torch.double)
    first = torch.randn(images, prefix, width, generator=generator, dtype=torch.double)
    return torch.cat([first, body], 1)


@given(widths, st.integers(0, 2), st.integers(0, 99))
def test_token_moments_equal_numpy(width, prefix, seed):
    tokens = correlated(width, seed, prefix)
    found = token_moments(tokens.float(), prefix)
    body = tokens.float().double().numpy()[:, prefix:].reshape(-1, width)
    np.testing.assert_allclose(found.mean, body.mean(0), atol=1e-9)
    expected = np.cov(body.T, bias=True).reshape(width, width)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-8)
    first = tokens.float().double().numpy()[:, :prefix].mean(0)
    np.testing.assert_allclose(found.prefix, first, atol=1e-9)


@settings(deadline=None)
@given(widths, st.integers(0, 99))
def test_a_whole_share_gives_the_source_s_moments_up_to_the_ridge(width, seed):
    source, domain = (token_moments(correlated(width, s), 0) for s in (seed, seed + 100))
    tokens = correlated(width, seed + 100)
    moved = token_moments(block_map(source, domain, 1.0)(tokens), 0)
    size = float(source.covariance.diagonal().mean().sqrt())
    assert torch.allclose(moved.mean, source.mean, atol=1e-3 * max(size, 1.0))
    # The map is exact between the ridged covariances; what it does to the plain one follows.
    safe = _ridged(domain.covariance, _LEAST * size**2)
    move = _power(_ridged(source.covariance), 0.5) @ _power(safe, -0.5)
    assert torch.allclose(move @ safe @ move.T, _ridged(source.covariance))
    expected = move @ domain.covariance @ move.T
    assert torch.allclose(moved.covariance, expected, atol=1e-3 * size**2)
    lost = _ridged(source.covariance) - moved.covariance  # the ridge that the domain never had
    assert float(torch.linalg.eigvalsh(lost).min()) > -1e-3 * size**2


@settings(deadline=None)
@given(widths, shares, st.integers(0, 99))
def test_a_share_moves_means_that_share_of_the_way(width, share, seed):
    source, domain = (token_moments(correlated(width, s), 0) for s in (seed, seed + 100))
    tokens = correlated(width, seed + 100)
    moved = token_moments(block_map(source, domain, share)(tokens), 0)
    expected = domain.mean + share * (source.mean - domain.mean)
    size = float(tokens.abs().max()) * max(1.0, float(source.covariance.max()) ** 0.5)
    assert torch.allclose(moved.mean, expected, atol=1e-4 * size)


@given(widths, st.integers(0, 2), st.integers(0, 99))
def test_no_share_is_the_identity(width, prefix, seed):
    source, domain = (token_moments(correlated(width, s, prefix), prefix) for s in (seed, seed + 1))
    tokens = correlated(width, seed + 2, prefix)
    assert torch.equal(block_map(source, domain, 0.0)(tokens), tokens)


def test_low_rank_maps_approach_the_full_one():
    source, domain = (token_moments(correlated(12, s, images=40), 0) for s in (0, 1))
    tokens = correlated(12, 1)
    full = block_map(source, domain, 0.5, rank=12)(tokens)
    errors = [
        float((block_map(source, domain, 0.5, rank=rank)(tokens) - full).norm())
        for rank in (1, 4, 8, 11)
    ]
    matrix = torch.randn(7, 7, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    down, up = _low_rank_factors(matrix, 7)
    assert torch.allclose(down @ up, matrix)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.2 * errors[0]


def test_wide_blocks_are_kept_in_low_rank():
    assert map_rank(256) == 256
    assert map_rank(384) == 64
    width = 260
    eye = torch.eye(width, dtype=torch.double)
    zero = torch.zeros(width, dtype=torch.double)
    source = BlockMoments(zero, eye, torch.zeros(1, width))
    domain = BlockMoments(zero + 2, 4 * eye, torch.ones(1, width))
    made = block_map(source, domain, 1.0)
    assert made.down.shape == (width, 64)
    assert made.up.shape == (64, width)
    tokens = torch.full((1, 3, width), 4.0)
    moved = made(tokens)
    assert torch.allclose(moved[:, :1], tokens[:, :1] - 1)
    assert torch.allclose(moved[:, 1:], torch.ones(1, 2, width), atol=1e-4)


@given(widths, shares, st.integers(0, 99))
def test_prefix_tokens_are_only_shifted(width, share, seed):
    source, domain = (token_moments(correlated(width, s, 2), 2) for s in (seed, seed + 1))
    tokens = correlated(width, seed + 2, 2)
    moved = block_map(source, domain, share)(tokens)
    expected = tokens[:, :2] + share * (source.prefix - domain.prefix)
    assert torch.allclose(moved[:, :2], expected, atol=1e-5)


@pytest.mark.parametrize("rank", [None, 3])
def test_maps_with_an_image_s_own_tensors_equal_one_by_one(rank):
    source = token_moments(correlated(6, 0, 1), 1)
    maps = [
        block_map(source, token_moments(correlated(6, seed, 1), 1), 0.3, rank) for seed in (1, 2, 3)
    ]
    tokens = correlated(6, 9, 1, images=3).float()
    stacked = BlockMap(
        *(torch.stack(parts) for parts in zip(*(m.tensors() for m in maps), strict=True))
    )
    together = stacked(tokens)
    apart = torch.cat([one(tokens[i : i + 1]) for i, one in enumerate(maps)])
    assert torch.allclose(together, apart, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_flat_images_do_not_blow_up(value):
    source = token_moments(correlated(8, 0, 1), 1)
    flat = torch.full((4, 51, 8), value)
    made = block_map(source, token_moments(flat, 1), 1.0)
    assert all(bool(tensor.isfinite().all()) for tensor in made.tensors())
    moved = made(flat)
    assert torch.allclose(moved[:, 1:].double(), source.mean.expand(4, 50, 8), atol=1e-2)
    size = float(source.covariance.diagonal().mean().sqrt())
    noisy = flat + 1e-3 * size * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
    assert float((made(noisy) - moved)[:, 1:].abs().max()) < 10 * size


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 40), st.integers(0, 99), st.floats(1e-4, 0.5))
def test_roots_of_products_equal_roots_of_eigenvalues(width, seed, ridge):
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(width, width, generator=generator).double())
    values = torch.rand(width, generator=generator).double() ** 4
    matrix = (basis * values) @ basis.T
    matrix += ridge * matrix.norm() * torch.eye(width).double()
    least = 0.9 * float(torch.linalg.eigvalsh(matrix).min() / matrix.norm())
    expected = _power(matrix, -0.5)
    for kind, near in ((torch.double, 1.5e-3), (torch.float, 3e-3)):
        found = inverse_root(matrix.to(kind), least).double()
        assert float((found - expected).norm() / expected.norm()) < near
    several = inverse_root(torch.stack([matrix, 3 * matrix]), least)
    assert float((several[1] - several[0] / 3**0.5).norm() / expected.norm()) < 1e-6


def test_low_rank_factors_are_near_the_best():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(300, 300, generator=generator).double()
    matrix *= torch.logspace(0, -2, 300).double()
    down, up = _low_rank_factors(matrix, 64)
    best = torch.linalg.svdvals(matrix)[64:].norm()
    assert best <= (matrix - down @ up).norm() < 1.12 * best
    thin = matrix[:, :5] @ matrix[:5]  # directions that are not there do no harm
    down, up = _low_rank_factors(thin, 64)
    assert torch.allclose(down @ up, thin, atol=1e-8)
    assert not any(part.any() for part in _low_rank_factors(0 * matrix, 64))
