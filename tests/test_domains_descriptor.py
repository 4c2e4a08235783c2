"""Descriptors against numpy's FFT and histogram."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.domains.descriptor import (
    ClsFeature,
    FullSpectrum,
    HighFrequency,
    LowFrequency,
    RgbHistogram,
    Style,
    _dft_matrix,
    _radius_for,
)
from ostinato.domains.texture import _trues
from ostinato.errors import ConfigError, InputError
from ostinato.registry import DESCRIPTORS

sizes = st.integers(5, 60)


def images(height: int, width: int, seed: int, count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def centred_spectrum(x: torch.Tensor) -> np.ndarray:
    rgb = x.double().numpy()
    luma = 0.299 * rgb[:, 0] + 0.587 * rgb[:, 1] + 0.114 * rgb[:, 2]
    return np.abs(np.fft.fftshift(np.fft.fft2(luma), axes=(-2, -1)))


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(0, 2**20), st.data())
def test_low_is_fft_shift_crop(height: int, width: int, seed: int, data: st.DataObject) -> None:
    radius = data.draw(st.none() | st.integers(1, (min(height, width) - 1) // 2))
    x = images(height, width, seed)
    found = LowFrequency(radius)(x)
    l = _radius_for(height, width, radius)  # noqa: E741
    r, c = height // 2, width // 2
    crop = centred_spectrum(x)[:, r - l : r + l + 1, c - l : c + l + 1]
    assert found.shape == (2, (2 * l + 1) ** 2)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), np.log1p(crop).reshape(2, -1), rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(0, 2**20))
def test_high_is_what_lies_in_the_corners(height: int, width: int, seed: int) -> None:
    x = images(height, width, seed)
    l = _radius_for(height, width)  # noqa: E741
    corners = np.fft.ifftshift(centred_spectrum(x), axes=(-2, -1))
    r, c = height // 2, width // 2
    crop = corners[:, r - l : r + l + 1, c - l : c + l + 1]
    expected = np.log1p(crop).reshape(2, -1)
    np.testing.assert_allclose(HighFrequency()(x).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_full_averages_cells_of_the_whole_spectrum() -> None:
    x = images(50, 50, 3)
    logs = np.log1p(centred_spectrum(x))
    cells = logs.reshape(2, 5, 10, 5, 10).mean((2, 4))
    found = FullSpectrum(radius=2)(x).numpy().reshape(2, 5, 5)
    np.testing.assert_allclose(found, cells, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**20))
def test_histogram_is_numpys(height: int, width: int, seed: int) -> None:
    x = images(height, width, seed)
    x[0, 0] = 1.0  # the last bin is closed
    found = RgbHistogram()(x).numpy().reshape(2, 3, 32)
    for image in range(2):
        for channel in range(3):
            counts, _ = np.histogram(x[image, channel].numpy(), bins=32, range=(0, 1))
            expected = np.log1p(counts * 32 / (height * width))
            np.testing.assert_allclose(found[image, channel], expected, rtol=1e-5)


def test_style_is_a_coarse_spectrum_beside_the_histogram() -> None:
    x = images(27, 36, 5)
    cells = np.log1p(centred_spectrum(x)).reshape(2, 9, 3, 9, 4).mean((2, 4)).reshape(2, 81)
    found = Style()(x)
    np.testing.assert_allclose(found[:, :81].numpy(), cells, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[:, 81:], RgbHistogram()(x))


def test_histogram_shows_broken_pixels() -> None:
    x = images(4, 4, 0)
    x[1, 2, 0, 0] = float("nan")
    found = RgbHistogram()(x)
    assert torch.isfinite(found[0]).all()
    assert not torch.isfinite(found[1]).all()


def test_features_pass_through() -> None:
    features = torch.randn(2, 7, dtype=torch.bfloat16)
    assert torch.equal(ClsFeature()(images(4, 4, 0), features), features.float())
    with pytest.raises(InputError, match="needs the model's CLS features"):
        ClsFeature()(images(4, 4, 0))
    with pytest.raises(InputError, match=r"should be \(2, D\)"):
        ClsFeature()(images(4, 4, 0), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("name", ["low", "high", "full", "rgb-histogram"])
def test_autocast_and_half_precision_change_nothing(name: str) -> None:
    x = images(32, 40, 1)
    descriptor = DESCRIPTORS[name](None)
    plain = descriptor(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(descriptor(x), plain)
    half = x.bfloat16()
    assert torch.equal(descriptor(half), descriptor(half.float()))
    assert not plain.requires_grad


def test_inference_mode_leaves_usable_matrices() -> None:
    _dft_matrix.cache_clear()
    x = images(31, 31, 2)
    with torch.inference_mode():
        first = LowFrequency()(x)
    assert torch.equal(first.clone(), LowFrequency()(x))
    assert not _dft_matrix(31, (-2, -1, 0, 1, 2), "cpu").is_inference()


def test_the_cache_of_matrices_is_bounded() -> None:
    for side in range(8, 80):
        LowFrequency()(images(side, side, 0, count=1))
    assert _dft_matrix.cache_info().currsize <= 32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 8, 8), "B, 3, H, W"),
        (torch.zeros(1, 1, 8, 8), "B, 3, H, W"),
        (torch.zeros(0, 3, 8, 8), "B ≥ 1"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "divide by 255"),
        (torch.zeros(1, 3, 4, 9), "at least 5 px or a radius of at most 1"),
    ],
)
def test_bad_images_are_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LowFrequency()(x)


def test_a_radius_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 1 or more"):
        LowFrequency(0)


def test_dimensions_at_the_usual_sizes() -> None:
    assert [LowFrequency()(images(s, s, 0, 1)).shape[1] for s in (224, 32)] == [1089, 25]
    assert _radius_for(384, 384) == 27


@pytest.mark.parametrize("count", [1, 8, 2040, 2041, 3072, 50176])
def test_truths_are_counted_eight_at_a_time(count):
    found = torch.rand(3, 2, count, generator=torch.Generator().manual_seed(0)) < 0.7
    assert torch.equal(_trues(found), found.sum(-1))
    every = torch.ones(2, count, dtype=torch.bool)
    assert torch.equal(_trues(every), every.sum(-1))
