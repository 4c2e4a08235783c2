"""What every corruption promises: the same bits for any batch, thread count and number type."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostinato.data.corruptions import COMMON, DRIVING, EXTRA, SEVERITIES, corrupt, gallery, scene
from ostinato.data.corruptions._core import Draws, _finish, image_keys
from ostinato.errors import ConfigError, InputError, UnknownName
from ostinato.registry import CORRUPTIONS

ALL = COMMON + EXTRA + DRIVING


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.stack([scene(48, 72, seed) for seed in range(3)])


def test_every_name_is_registered_as_a_frozen_declaration() -> None:
    assert sorted(ALL) == CORRUPTIONS.names()
    assert len(COMMON) == 15
    item = CORRUPTIONS["fog"]
    assert (item.name, item.kind, item.random) == ("fog", "weather", True)
    assert all(len(CORRUPTIONS[n].imagenet) == len(CORRUPTIONS[n].cifar) == 5 for n in ALL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        item.name = "mist"


@pytest.mark.parametrize("name", ALL)
def test_an_image_is_the_same_bits_in_any_batch_and_number_type(name: str, images: Tensor) -> None:
    seeds = [11, -5, 2**40]
    before, state = images.clone(), torch.get_rng_state()
    whole = corrupt(images, name, 3, seeds)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    assert not torch.equal(whole, images)
    turned = corrupt(images.flip(0), name, 3, torch.tensor(seeds[::-1]))
    assert torch.equal(turned.flip(0), whole)
    one = images[1:2]
    assert torch.equal(corrupt(one, name, 3, seeds[1:2]), whole[1:2])
    assert torch.equal(corrupt(one, name, 3, [2]), whole[1:2]) != CORRUPTIONS[name].random
    for dtype in (torch.float32, torch.float64):
        given_back = corrupt(one.to(dtype) / 255, name, 3, seeds[1:2])
        assert given_back.dtype == dtype
        assert torch.equal((given_back * 255).round().to(torch.uint8), whole[1:2])
    # The accelerator's path hands the whole batch to the function; on a CPU each image goes alone.
    item = CORRUPTIONS[name]
    batch = _finish(item.apply(images, item.imagenet[2], Draws(image_keys(seeds, name, 3))))
    assert (batch.int() - whole.int()).abs().max() <= 1


@pytest.mark.parametrize("name", ALL)
def test_threads_change_no_bit(name: str) -> None:
    image = scene(200, 248, 5)[None]  # as many numbers as torch gives to more than one thread
    alone = corrupt(image, name, 5, [3])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads != 2 else 1)
        assert torch.equal(corrupt(image, name, 5, [3]), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ALL)
def test_every_severity_changes_a_small_picture_and_the_last_the_most(name: str) -> None:
    image = scene(32, 32)[None]
    for constants in ("imagenet", "cifar"):
        outs = [corrupt(image, name, s, [0], constants=constants) for s in SEVERITIES]
        assert all(out.shape == image.shape for out in outs)
    assert corrupt(image[:0], name, 1, []).shape[0] == 0
    many = scene(96, 96)[None].expand(4, -1, -1, -1)
    change = [
        (corrupt(many, name, s, range(4)).int() - many.int()).abs().float().mean() for s in (1, 5)
    ]
    if name not in ("saturate", "spatter", "glass_blur", "frost", "fog"):
        assert change[1] > change[0]
    assert min(change) > 0.5


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(ALL),
    height=st.integers(8, 70),
    width=st.integers(8, 70),
    severity=st.integers(1, 5),
    seed=st.integers(-(2**70), 2**70),
)
def test_any_size_and_seed(name: str, height: int, width: int, severity: int, seed: int) -> None:
    image = scene(height, width)[None]
    out = corrupt(image, name, severity, [seed])
    assert out.shape == image.shape
    assert torch.equal(out, corrupt(image, name, severity, [seed]))


def test_errors_name_the_fix(images: Tensor) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gaussian_noise'"):
        corrupt(images, "gausian_noise", 1, [0, 1, 2])
    with pytest.raises(ConfigError, match="1 to 5, not 6"):
        corrupt(images, "fog", 6, [0, 1, 2])
    with pytest.raises(ConfigError, match="'imagenet' or 'cifar'"):
        corrupt(images, "fog", 1, [0, 1, 2], constants="mnist")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="3 images, 2 seeds"):
        corrupt(images, "fog", 1, [0, 1])
    with pytest.raises(InputError, match=r"\(B, 3, H, W\)"):
        corrupt(images[0], "fog", 1, [0])
    with pytest.raises(InputError, match="uint8 or float"):
        corrupt(images.int(), "fog", 1, [0, 1, 2])


def test_gallery_has_a_row_per_name_and_a_column_per_severity() -> None:
    image = scene(32, 40)
    sheet = gallery(["contrast", "brightness"], image, gap=2)
    assert sheet.shape == (3, 66, 208)
    assert torch.equal(sheet[:, 34:66, 168:208], corrupt(image[None], "brightness", 5, [0])[0])
