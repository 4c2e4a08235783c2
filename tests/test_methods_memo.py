"""MEMO: one image's step by hand, independence of images, and the parts of AugMix."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageOps

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods.memo._augmix import (
    augmix_views,
    autocontrast,
    equalize,
    posterize,
    solarize,
    warp,
)
from ostinato.models import VisionModel


def test_one_image_is_one_step_on_the_marginal_entropy():
    batch = small_batches(1, size=1)[0]
    method = adapt(
        small_model(), "memo", views=6, optimizer="sgd", momentum=0.0, lr=0.1, weight_decay=0.0
    )
    got = method(batch)
    net = small_model()
    vision = VisionModel(net)
    views = augmix_views(batch[0], 6, torch.Generator().manual_seed(0))
    mean = vision(views).softmax(1).mean(0)
    (-(mean * mean.log()).sum()).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
        torch.testing.assert_close(got, vision(batch), atol=1e-4, rtol=1e-4)


def test_images_do_not_know_of_each_other_and_nothing_stays():
    batch = small_batches(1, size=2)[0]
    method = adapt(small_model(), "memo", views=4, lr=1e-2)
    method(batch)
    for name, parameter in method.weights.parameters.items():
        assert torch.equal(parameter, method.weights.source[name])
    assert not method.optimizer.state
    together = adapt(small_model(), "memo", views=4, lr=1e-2)(batch)
    first = adapt(small_model(), "memo", views=4, lr=1e-2)(batch[:1])
    torch.testing.assert_close(together[:1], first, atol=1e-5, rtol=1e-5)


def as_levels(pixels):
    return (pixels[0].permute(1, 2, 0) * 255).round().byte().numpy()


def test_pointwise_changes_are_those_of_pillow():
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(30, 200, (1, 3, 12, 12), generator=generator)
    pixels = levels / 255
    picture = Image.fromarray(as_levels(pixels))
    pairs = [
        (equalize(pixels), ImageOps.equalize(picture)),
        (posterize(pixels), ImageOps.posterize(picture, 4)),
        (solarize(pixels, torch.tensor([128 / 255])), ImageOps.solarize(picture, 128)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_array_equal(as_levels(ours), np.asarray(theirs))
    near = np.abs(
        as_levels(autocontrast(pixels)).astype(int)
        - np.asarray(ImageOps.autocontrast(picture)).astype(int)
    )
    assert near.max() <= 1  # the one rounds, the other cuts off


def test_a_shift_leaves_grey_behind():
    matrix = torch.eye(2, 3)[None].clone()
    matrix[0, 0, 2] = 0.5  # a quarter of the width
    moved = warp(torch.zeros(1, 3, 8, 8), matrix)
    assert torch.equal(moved[..., :6], torch.zeros(1, 3, 8, 6))
    assert torch.equal(moved[..., 6:], torch.full((1, 3, 8, 2), 0.5))
