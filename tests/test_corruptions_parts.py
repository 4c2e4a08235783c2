"""The parts corruptions are made of, against formulae and plain loops."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from ostinato.data.corruptions import corrupt, jpeg, scene
from ostinato.data.corruptions._core import Draws, image_keys
from ostinato.data.corruptions._filters import blur, motion, whole_weights
from ostinato.data.corruptions._frost import textures
from ostinato.data.corruptions._zoom import _by_pictures, _by_rows
from ostinato.data.corruptions.blur import _shuffle
from ostinato.data.corruptions.spatter import _distance, _edges
from ostinato.data.corruptions.weather import plasma
from ostinato.registry import CORRUPTIONS

CPU = torch.device("cpu")


def flat(level: int, size: int = 128) -> torch.Tensor:
    return torch.full((1, 3, size, size), level, dtype=torch.uint8)


def test_hashed_bits_are_even_and_seeds_unrelated() -> None:
    words = Draws(image_keys([1, 2, 3], "test", 1)).words(0, (1 << 16,))
    counts = torch.stack([torch.bincount(row >> 8, minlength=256) for row in words]).double()
    chi = ((counts - 256).square() / 256).sum(1)
    assert bool((chi < stats.chi2.ppf(0.99999, 255)).all())
    numbers = torch.cat((words.double(), words[:, 1:].double().roll(1, 1).new_zeros(3, 1)), 1)[
        :, :-1
    ]
    together = torch.corrcoef(torch.cat((numbers, numbers.roll(1, 1), numbers.roll(2, 1))))
    off = together - torch.eye(9)
    assert off.abs().max() < 0.02


def test_normal_numbers_are_normal() -> None:
    sample = Draws(image_keys([9], "test", 1)).normal(0, (200_000,))[0].numpy()
    assert stats.kstest(sample, "norm").statistic < 0.005
    assert stats.kurtosis(sample) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("level", [5, 60, 200])
def test_shot_noise_follows_the_poisson_law(severity: int, level: int) -> None:
    rate = (60, 25, 12, 5, 3)[severity - 1]
    counts = np.arange(400)
    probability = stats.poisson.pmf(counts, level / 255 * rate)
    value = np.floor(np.clip(counts / rate, 0, 1) * 255 + 1e-6)
    mean = float((probability * value).sum())
    deviation = float(np.sqrt((probability * (value - mean) ** 2).sum()))
    out = corrupt(flat(level), "shot_noise", severity, [3]).double()
    assert out.mean().item() == pytest.approx(mean, abs=5 * deviation / 221)
    assert out.std().item() == pytest.approx(deviation, rel=0.02)


@pytest.mark.parametrize(("constants", "deviation"), [("imagenet", 0.18), ("cifar", 0.08)])
def test_gaussian_noise_has_its_deviation(constants: str, deviation: float) -> None:
    out = corrupt(flat(128), "gaussian_noise", 3, [0], constants=constants).double()
    assert out.std().item() == pytest.approx(255 * deviation, rel=0.02)


def test_impulse_noise_strikes_its_share_evenly() -> None:
    out = corrupt(flat(128), "impulse_noise", 5, [0])
    black, white = ((out == level).double().mean().item() for level in (0, 255))
    assert black == pytest.approx(0.135, abs=0.006)
    assert white == pytest.approx(0.135, abs=0.006)
    assert ((out == 128) | (out == 0) | (out == 255)).all()


def test_whole_weights_keep_their_sum() -> None:
    raw = [0.1, 0.2, 0.4, 0.2, 0.1]
    assert sum(whole_weights(raw, 4096)) == 4096
    assert (
        max(abs(w / 4096 - r) for w, r in zip(whole_weights(raw, 4096), raw, strict=True))
        < 1 / 4096
    )


@pytest.mark.parametrize("sigma", [0.7, 1.5, 6.0])
def test_blur_is_the_gaussian_filter(sigma: float) -> None:
    image = scene(90, 70)
    ours = blur(image[None], sigma)[0].numpy()
    theirs = [ndimage.gaussian_filter(c.double().numpy(), sigma, mode="nearest") for c in image]
    assert np.abs(ours - np.stack(theirs)).max() < 0.4
    assert np.abs(ours - np.stack(theirs)).mean() < 0.1


@pytest.mark.parametrize("angle", [-45.0, -13.0, 0.0, 31.5, -120.0])
def test_motion_shifts_and_adds(angle: float) -> None:
    image = scene(60, 50)[:1].double().numpy()[0]
    radius, sigma = 8, 5.0
    weights = np.exp(-(np.arange(17) ** 2) / (2 * sigma**2))
    total = np.zeros_like(image)
    rows, columns = np.mgrid[:60, :50]
    for i, weight in enumerate(weights / weights.sum()):
        down = int(np.ceil(i * np.sin(np.deg2rad(angle)) - 0.5))
        right = int(np.ceil(i * np.cos(np.deg2rad(angle)) - 0.5))
        total += weight * image[(rows + down).clip(0, 59), (columns + right).clip(0, 49)]
    ours = motion(torch.from_numpy(image)[None, None], radius, sigma, [angle])[0, 0]
    assert np.abs(ours.numpy() - total).max() < 0.02


@pytest.mark.parametrize("reach", [1, 3, 4])
def test_shuffle_equals_the_sequential_sweep(reach: int) -> None:
    height, width = 23, 31
    draws = Draws(image_keys([5, 6], "glass", 1))
    ours = _shuffle(draws, 0, height, width, reach).view(2, -1)
    moves = (draws.words(0, (2, height * width)) * (2 * reach) >> 16) - reach
    for image in range(2):
        down, right = moves[image].view(2, height, width).tolist()
        sheet = np.arange(height * width).reshape(height, width)
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                dy, dx = down[row][column], right[row][column]
                sheet[row, column] = sheet[row + dy, column + dx]
        assert np.array_equal(ours[image].numpy() - image * height * width, sheet.ravel())


def through_pillow(image: torch.Tensor, quality: int) -> torch.Tensor:
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)


@pytest.mark.parametrize("quality", [1, 7, 10, 15, 18, 25, 40, 50, 58, 65, 80, 100])
@pytest.mark.parametrize("size", [(64, 48), (45, 70), (33, 33), (8, 9), (31, 64)])
def test_jpeg_is_the_codecs_to_the_bit(quality: int, size: tuple[int, int]) -> None:
    assert jpeg._codec_agrees(), "Pillow here is not built with libjpeg-turbo."
    noise = torch.randint(0, 256, (3, *size), generator=torch.Generator().manual_seed(quality))
    images = torch.stack((scene(*size), noise.to(torch.uint8), (noise > 127).to(torch.uint8) * 255))
    theirs = torch.stack([through_pillow(image, quality) for image in images])
    assert torch.equal(jpeg._by_operators(images, quality), theirs)
    assert torch.equal(jpeg._by_codec(images, quality), theirs)
    turned = images.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(jpeg._by_codec(turned, quality), theirs)


@pytest.mark.parametrize("fault", ["another picture", "no codec"])
def test_jpeg_without_that_codec_is_the_operators(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = scene(45, 70)[None]
    wanted = corrupt(image, "jpeg_compression", 4, [0])

    def other(x: torch.Tensor, quality: int) -> torch.Tensor:
        if fault == "no codec":
            raise OSError("encoder jpeg not available")
        return x

    monkeypatch.setattr(jpeg, "_by_codec", other)
    jpeg._codec_agrees.cache_clear()
    try:
        assert not jpeg._codec_agrees()
        assert torch.equal(corrupt(image, "jpeg_compression", 4, [0]), wanted)
    finally:
        jpeg._codec_agrees.cache_clear()


@pytest.mark.parametrize("constants", ["imagenet", "cifar"])
@pytest.mark.parametrize("size", [(8, 9), (33, 57), (96, 64)])
def test_magnifications_by_rows_are_those_by_pictures(
    constants: str, size: tuple[int, int]
) -> None:
    images = torch.stack([scene(*size, seed) for seed in range(2)]).float()
    for factors, centred in getattr(CORRUPTIONS["zoom_blur"], constants):
        rows = _by_rows(images, factors[1:], centred)
        pictures = sum(_by_pictures(images, factor, centred) for factor in factors[1:])
        assert (rows - pictures).abs().max() < 1e-3 * len(factors)


@pytest.mark.parametrize(("share", "severity"), [(0.6, 1), (0.3, 4), (0.25, 5)])
def test_pixelate_is_a_box_and_a_nearest_resize(share: float, severity: int) -> None:
    image = scene(61, 90)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    small = picture.resize((int(90 * share), int(61 * share)), Image.Resampling.BOX)
    large = np.asarray(small.resize((90, 61), Image.Resampling.NEAREST))
    ours = corrupt(image[None], "pixelate", severity, [0])[0].permute(1, 2, 0).numpy()
    assert np.abs(ours.astype(int) - large).max() <= 1


def test_edges_and_distances_of_drops() -> None:
    cv2 = pytest.importorskip("cv2", reason="comes with imagecorruptions")
    noise = np.random.default_rng(0).normal(0.65, 0.3, (96, 96))
    layer = ndimage.gaussian_filter(noise, 3)
    layer = np.where(layer < 0.68, 0, layer * 255).astype(np.uint8)
    theirs = cv2.Canny(layer, 50, 150) > 0
    ours = _edges(torch.from_numpy(layer).float()[None], 50, 150)[0].numpy()
    assert (ours ^ theirs).sum() < 0.1 * theirs.sum()
    exact = ndimage.distance_transform_edt(~theirs).clip(max=20)
    assert np.abs(_distance(torch.from_numpy(theirs)[None])[0].numpy() - exact).max() < 1e-4


def test_clouds_fill_the_unit_range() -> None:
    clouds = plasma(Draws(image_keys(range(4), "fog", 1)), 64, 2.0)
    assert torch.equal(clouds.amin((1, 2)), torch.zeros(4))
    assert torch.equal(clouds.amax((1, 2)), torch.ones(4))


def test_frost_grows_with_the_picture() -> None:
    assert textures(224, 224, 1.0, CPU).shape == (6, 3, 512, 512)
    assert min(textures(600, 300, 1.0, CPU).shape[-2:]) >= 660
    assert min(textures(32, 32, 0.2 / 1.1, CPU).shape[-2:]) >= 36


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_cifar_formulae(severity: int) -> None:
    image = scene(32, 32)
    x = image.double().numpy() / 255

    def ours(name: str) -> np.ndarray:
        return corrupt(image[None], name, severity, [0], constants="cifar")[0].double().numpy()

    share = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    mean = x.mean((1, 2), keepdims=True)
    assert np.abs(ours("contrast") - np.floor(((x - mean) * share + mean) * 255)).max() <= 1
    lift = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    top = x.max(0)
    bright = np.where(top > 0, x / np.maximum(top, 1e-9), 1) * np.minimum(top + lift, 1)
    assert np.abs(ours("brightness") - np.floor(bright * 255)).max() <= 1
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1], 0.01)
    total = x.copy()
    for factor in factors:
        size = int(np.ceil(32 / factor))
        top_left = (32 - size) // 2
        part = x[:, top_left : top_left + size, top_left : top_left + size]
        large = ndimage.zoom(part, (1, factor, factor), order=1)
        cut = (large.shape[1] - 32) // 2
        total += large[:, cut : cut + 32, cut : cut + 32]
    zoomed = np.floor(total / (len(factors) + 1) * 255)
    assert np.abs(ours("zoom_blur") - zoomed).max() <= 1
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    smooth = np.stack([ndimage.gaussian_filter(c * 255, sigma, mode="nearest") for c in x])
    assert np.abs(ours("gaussian_blur") - np.floor(smooth)).max() <= 1
