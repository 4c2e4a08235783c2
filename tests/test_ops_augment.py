"""Augmented views against torchvision's own functions, and their determinism."""

from __future__ import annotations

import math

import pytest
import torch
from torchvision.transforms import functional as TF

from ostinato.methods.deyo._shuffle import shuffle_patches
from ostinato.ops import augment
from ostinato.ops.augment import (
    _STRONG,
    _affine,
    _shift_hue,
    cotta_view,
    gaussian_blur,
    scaled_views,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    coarse = torch.rand(6, 3, 6, 6, generator=generator(5))
    return torch.nn.functional.interpolate(coarse, (24, 32), mode="bilinear")


def test_hue_agrees_with_torchvision(images):
    turns = torch.tensor([-0.5, -0.06, 0.0, 0.03, 0.25, 0.5])
    mine = _shift_hue(images, turns)
    for image, turn, given in zip(images, turns.tolist(), mine, strict=True):
        torch.testing.assert_close(given, TF.adjust_hue(image, turn), atol=2e-5, rtol=0)
    torch.testing.assert_close(mine[2], images[2], atol=1e-6, rtol=0)


def test_blur_agrees_with_torchvision(images):
    sigma = torch.tensor([0.1, 0.3, 0.5, 0.8, 1.0, 2.0])
    mine = gaussian_blur(images, sigma)
    for image, s, given in zip(images, sigma.tolist(), mine, strict=True):
        expected = TF.gaussian_blur(image, [5, 5], [s, s])
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=0)


def test_affine_agrees_with_torchvision_inside_the_image(images):
    degrees, right, down, scale = 12.0, 1 / 16, -1 / 24, 1.08
    one = torch.ones(6)
    mine = _affine(images, one * math.radians(degrees), one * right, one * down, one * scale)
    expected = TF.affine(
        images, degrees, [2, -1], scale, [0.0], interpolation=TF.InterpolationMode.BILINEAR
    )
    inner = (slice(None), slice(None), slice(8, 16), slice(10, 22))
    torch.testing.assert_close(mine[inner], expected[inner], atol=2e-3, rtol=0)
    still = _affine(images, 0 * one, 0 * one, 0 * one, one)
    torch.testing.assert_close(still, images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("padding", ["edge", "reflect"])
def test_affine_agrees_with_padding_to_twice_the_size_first(images, padding):
    """As the releases do it: pad by half a side, turn, move and scale, cut the centre out."""
    degrees, right, down, scale = -14.0, 4 / 32, -3 / 24, 0.92
    one = torch.ones(6)
    turned = one * math.radians(degrees)
    mine = _affine(images, turned, one * right, one * down, one * scale, padding)
    larger = TF.pad(images, [16, 12], padding_mode=padding)
    moved = TF.affine(
        larger, degrees, [4, -3], scale, [0.0], interpolation=TF.InterpolationMode.BILINEAR
    )
    torch.testing.assert_close(mine, TF.center_crop(moved, [24, 32]), atol=2e-3, rtol=0)


def test_shifts_are_whole_pixels_up_to_an_eighth_of_the_side():
    """1/16 of an image padded to twice its size: 28 of 224 pixels."""
    image = torch.zeros(1, 1, 64, 96)
    image[0, 0, 32, 48] = 1
    still = augment._Strength(0, 0, 0, 0, 0, degrees=0.0, scale=0.0, blur=0.0)
    views = augment._random_affine(image.expand(400, -1, -1, -1), generator(), still)
    assert torch.allclose(views.flatten(1).amax(1), torch.ones(400), atol=1e-3)
    places = views.flatten(1).argmax(1)
    down, right = places // 96 - 32, places % 96 - 48
    assert (int(down.min()), int(down.max())) == (-8, 8)
    assert (int(right.min()), int(right.max())) == (-12, 12)


def test_a_view_without_grain_has_neither_blur_nor_noise():
    still = {"generator": generator(3), "padding": "reflect", "grain": False}
    flat = torch.full((5, 3, 8, 8), 0.5)
    view = cotta_view(flat, **still)
    assert torch.allclose(view, view[..., :1, :1].expand_as(view), atol=1e-5)
    noisy = cotta_view(flat, generator(3), padding="reflect")
    assert float(noisy.std((2, 3)).min()) > 1e-3


@pytest.mark.parametrize("strong", [True, False])
def test_views_come_from_the_generator_alone(images, strong):
    before = images.clone()
    state = torch.get_rng_state()
    first = cotta_view(images, generator(1), strong=strong)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)  # the global state must not matter
    assert torch.equal(first, cotta_view(images, generator(1), strong=strong))
    assert not torch.equal(first, cotta_view(images, generator(2), strong=strong))
    assert torch.equal(images, before)
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1


def test_strong_views_change_more_than_soft_ones(images):
    gaps = [
        sum(
            float((cotta_view(images, generator(s), strong=k) - images).abs().mean())
            for s in range(8)
        )
        for k in (True, False)
    ]
    assert gaps[0] > gaps[1] > 0


def test_images_of_a_batch_have_their_own_draws():
    same = torch.rand(1, 3, 16, 16, generator=generator()).expand(4, 3, 16, 16)
    views = cotta_view(same, generator(1))
    assert all(not torch.equal(views[0], views[i]) for i in (1, 2, 3))


def test_noise_has_the_stated_spread():
    noise = augment._noise(torch.zeros(3, 3, 64, 64), generator())
    assert abs(float(noise.std()) - 1) < 0.03
    assert abs(float(noise.mean())) < 0.03
    assert not torch.equal(noise[0], noise[1])
    assert _STRONG.noise == 0.005


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 5)])
def test_tiny_images_work(size):
    for padding in ("edge", "reflect"):
        view = cotta_view(torch.rand(2, 3, *size), generator(), padding=padding)
        assert view.shape == (2, 3, *size)
        assert bool(view.isfinite().all())


def test_scaled_views_cover_scales_and_flips_and_can_be_undone(images):
    views = scaled_views(images, [0.5, 1.0, 2.0])
    assert [v.flipped for v in views] == [False, True] * 3
    assert [tuple(v.pixels.shape[-2:]) for v in views[::2]] == [(12, 16), (24, 32), (48, 64)]
    for view in views:
        back = view.undo(view.pixels, images.shape[-2:])
        assert back.shape == images.shape
        assert float((back - images).abs().mean()) < 0.03
    assert torch.equal(views[3].undo(views[3].pixels, images.shape[-2:]), images)
    assert len(scaled_views(images, [1.0], flip=False)) == 1


def test_shuffling_permutes_patches_and_nothing_else():
    images = torch.rand(3, 3, 8, 12, generator=generator())
    shuffled = shuffle_patches(images, 4, generator(1))

    def patches(batch):
        cut = batch.unfold(2, 2, 2).unfold(3, 3, 3)  # B, C, 4, 4, 2, 3
        return cut.permute(0, 2, 3, 1, 4, 5).reshape(len(batch), 16, -1)

    orders = []
    for before, after in zip(patches(images), patches(shuffled), strict=True):
        distance = torch.cdist(after, before)
        order = distance.argmin(1)
        assert torch.equal(before[order], after)
        assert sorted(order.tolist()) == list(range(16))
        orders.append(tuple(order.tolist()))
    assert len(set(orders)) == 3
    assert torch.equal(shuffled, shuffle_patches(images, 4, generator(1)))


def test_shuffling_keeps_sizes_that_the_grid_does_not_divide():
    assert shuffle_patches(torch.rand(2, 3, 10, 7), 4, generator()).shape == (2, 3, 10, 7)
