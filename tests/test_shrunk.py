"""Moments of few images go back towards the source's by what chance made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.experts.maps import block_map
from ostinato.methods.ostinato._shrunk import halves_of, shrunk
from ostinato.ops.moments import BlockMoments, token_moments


def drawn(images: int, seed: int, width: int = 6, prefix: int = 1) -> torch.Tensor:
    """(B, prefix + 12, D) tokens; those of an image have something in common."""
    draw = torch.Generator().manual_seed(seed)
    own = torch.randn(images, 1, width, generator=draw, dtype=torch.double)
    return own + torch.randn(images, prefix + 12, width, generator=draw, dtype=torch.double)


SOURCE = token_moments(drawn(400, 0), 1)


def of(tokens: torch.Tensor) -> BlockMoments:
    return shrunk(SOURCE, halves_of(tokens, 1), len(tokens))


def way(found: BlockMoments, plain: BlockMoments) -> float:
    """The part of the covariance's way from the source's that is left."""
    left = (found.covariance - SOURCE.covariance).norm()
    return float(left / (plain.covariance - SOURCE.covariance).norm())


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 15), st.integers(1, 99), st.floats(0.3, 4))
def test_it_is_the_formula(images, seed, factor):
    tokens = (factor * drawn(images, seed) + 0.3).numpy()
    groups = tokens[::2], tokens[1::2]
    counts = [len(one) for one in groups]
    bodies = [one[:, 1:].reshape(-1, 6) for one in groups]
    means = [one.mean(0) for one in bodies]
    spreads = [np.cov(one.T, bias=True) for one in bodies]
    whole = tokens[:, 1:].reshape(-1, 6)
    there, centre = SOURCE.covariance.numpy(), SOURCE.mean.numpy()
    inverse = np.linalg.inv(there + 0.05 * np.diag(there).mean() * np.eye(6))
    chance = counts[0] * counts[1] / images**2

    def area(x):
        return np.trace(inverse @ x @ inverse @ x)

    def length(x):
        return x @ inverse @ x

    spread, mean = np.cov(whole.T, bias=True), whole.mean(0)
    back = min(1.0, chance * area(spreads[0] - spreads[1]) / area(spread - there))
    found = of(torch.from_numpy(tokens))
    np.testing.assert_allclose(found.covariance, spread + back * (there - spread), atol=1e-9)
    back = min(1.0, chance * length(means[0] - means[1]) / length(mean - centre))
    np.testing.assert_allclose(found.mean, mean + back * (centre - mean), atol=1e-9)
    firsts = [one[:, 0].mean(0) for one in groups]
    first, begin = tokens[:, 0].mean(0), SOURCE.prefix[0].numpy()
    apart, off = firsts[0] - firsts[1], first - begin
    back = min(1.0, chance * (apart @ apart) / (off @ off))
    np.testing.assert_allclose(found.prefix[0], first + back * (begin - first), atol=1e-9)


def test_clean_images_go_all_the_way_back_and_shifted_ones_stay():
    clean, shifted = ([drawn(20, seed) * f for seed in range(1, 9)] for f in (1.0, 3.0))
    left = [
        np.mean([way(of(one), token_moments(one, 1)) for one in some]) for some in (clean, shifted)
    ]
    assert left[0] < 0.35
    assert left[1] > 0.85


def test_more_images_of_a_mild_shift_move_more():
    few, many = (
        np.mean([way(of(1.3 * one), token_moments(1.3 * one, 1)) for one in some])
        for some in ([drawn(8, seed) for seed in range(1, 9)], [drawn(200, 9)])
    )
    assert few < many - 0.1


def test_one_image_says_nothing():
    made = block_map(SOURCE, of(3 * drawn(1, 1)), 0.5)
    tokens = drawn(4, 2)
    torch.testing.assert_close(made(tokens), tokens, atol=1e-5, rtol=0)


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("pieces", [1, 3])
def test_halves_go_by_an_images_place_among_all(first, pieces):
    tokens = torch.arange(10.0)[:, None, None].repeat_interleave(pieces, 0)
    even, odd = halves_of(tokens[first * pieces :], 0, first, images=10 - first)
    places = torch.arange(first, 10)
    assert even.mean.item() == places[places % 2 == 0].double().mean()
    assert odd.mean.item() == places[places % 2 == 1].double().mean()


def test_nobody_needs_images_of_their_own():
    sums = []  # what the first of two processes found, and the second adds

    def first(found):
        sums.append(found)
        return found

    tokens = drawn(7, 3)
    halves_of(tokens, 1, total=first)
    kept = iter(sums)
    none = halves_of(tokens[:0], 1, 7, 0, lambda found: found + next(kept))
    for one, other in zip(none, halves_of(tokens, 1), strict=True):
        torch.testing.assert_close(one.covariance, other.covariance)
