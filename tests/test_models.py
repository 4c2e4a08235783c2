"""Input conventions, checks on images, logits extraction."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato.checks import small_model
from ostinato.errors import ConfigError, InputError
from ostinato.models import VisionModel, fingerprint, input_convention, logits_of
from ostinato.ops.blocks import find_blocks, has_class_token
from ostinato.ops.features import FeatureTaps


def images(low=0.0, high=1.0):
    return torch.empty(2, 3, 32, 32).uniform_(low, high)


def test_model_convention_normalises_once(model):
    x = images()
    expected = model((x - 0.5) / 0.5)
    assert torch.equal(VisionModel(model)(x), expected)


def test_none_feeds_raw_pixels(model):
    x = images()
    assert torch.equal(VisionModel(model, normalize="none")(x), model(x))


def test_input_convention_gives_back_the_callers_bits(model):
    vision = VisionModel(model, normalize="input")
    x = torch.randn(2, 3, 32, 32)
    pixels = vision.check(x)
    assert torch.allclose(pixels, x * 0.5 + 0.5)
    assert torch.equal(vision(pixels), model(x))


def test_uint8_equals_float(model):
    vision = VisionModel(model)
    x = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(vision.check(x), x.float() / 255)
    assert torch.equal(vision.check(x.int()), x.float() / 255)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((1, 3, 4, 4), float("nan")), "NaN"),
        (torch.full((1, 3, 4, 4), float("inf")), "infinite"),
        (torch.zeros(1, 4, 4, 4), "takes 3 channels, the images have 4"),
        (torch.zeros(1, 4, 4, 3), "channels first"),
        (torch.full((1, 3, 4, 4), 256, dtype=torch.int32), r"\[0, 255\]"),
        (torch.full((1, 3, 4, 4), -1, dtype=torch.int32), r"\[0, 255\]"),
        (torch.zeros(0, 3, 4, 4), "empty"),
        (torch.full((1, 3, 4, 4), -2.0), "normalize='input'"),
        (torch.full((1, 3, 4, 4), 200.0), "divide by 255"),
        (torch.zeros(3, 4, 4), "batch dimension"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.bool), "uint8 or float"),
        ([1, 2], "torch tensor"),
    ],
)
def test_bad_images_are_refused_with_the_fix(model, bad, message):
    with pytest.raises(InputError, match=message):
        VisionModel(model).check(bad)


def test_unknown_convention_must_be_told():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(ConfigError, match="normalize='none'"):
        VisionModel(net)
    told = VisionModel(net, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    assert told.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_conventions_by_family():
    import torchvision

    vit = torchvision.models.VisionTransformer(32, 16, 1, 1, 8, 8)
    assert input_convention(vit)[0][0] == 0.485
    hugging = nn.Linear(1, 1)
    hugging.config = SimpleNamespace(model_type="vit")
    assert input_convention(hugging)[0][0] == 0.5


def test_logits_of_every_common_output():
    logits = torch.zeros(1, 2)
    assert logits_of(logits) is logits
    assert logits_of({"out": logits}) is logits
    assert logits_of(SimpleNamespace(logits=logits)) is logits
    with pytest.raises(InputError, match="without logits"):
        logits_of(SimpleNamespace(features=logits))


def test_masks_of_queries_become_logits_per_pixel():
    torch.manual_seed(0)
    classes, masks = torch.randn(2, 3, 5), torch.randn(2, 3, 4, 6)
    logits = logits_of(SimpleNamespace(class_queries_logits=classes, masks_queries_logits=masks))
    shares, places = classes.softmax(-1), masks.sigmoid()
    score = sum(float(shares[1, q, 2] * places[1, q, 3, 5]) for q in range(3))
    assert logits.shape == (2, 4, 4, 6)
    assert float(logits[1, 2, 3, 5]) == pytest.approx(math.log(score), rel=1e-5)


def test_answers_that_are_neither_for_an_image_nor_for_its_pixels_are_refused():
    class Boxes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 6)

        def forward(self, x):
            return SimpleNamespace(logits=self.layer(x.mean(-1).transpose(1, 2)))

    with pytest.raises(InputError, match=r"shape \(1, 32, 6\).*\(batch, classes, height, width\)"):
        VisionModel(Boxes(), normalize="none").eval().check(images())


def test_fingerprint_sees_weights():
    first, second = small_model(), small_model()
    assert fingerprint(first) == fingerprint(second)
    with torch.no_grad():
        second.head.bias += 1
    assert fingerprint(first) != fingerprint(second)


def test_taps_read_the_class_token_after_every_block(model):
    seen = []
    handles = [b.register_forward_hook(lambda m, i, o: seen.append(o[:, 0])) for b in model.blocks]
    with FeatureTaps(model) as taps:
        model(images())
    for handle in handles:
        handle.remove()
    assert has_class_token(model)
    assert all(torch.equal(a, b) for a, b in zip(taps.features, seen, strict=True))
    assert not any(block._forward_hooks for block in model.blocks)


def families():
    import timm
    import torchvision
    from transformers import (
        Dinov2Config,
        Dinov2ForImageClassification,
        SegformerConfig,
        SegformerForSemanticSegmentation,
        ViTConfig,
        ViTForImageClassification,
    )

    small = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    size = {"image_size": 32, "patch_size": 8}
    yield timm.create_model("test_vit"), len(timm.create_model("test_vit").blocks)
    yield torchvision.models.VisionTransformer(32, 8, 3, 2, 16, 16), 3
    yield ViTForImageClassification(ViTConfig(**small, **size, intermediate_size=32)), 3
    yield Dinov2ForImageClassification(Dinov2Config(**small, **size)), 3
    segformer = SegformerConfig(
        depths=[1, 2, 1, 1],
        hidden_sizes=[8, 8, 16, 16],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
    )
    yield SegformerForSemanticSegmentation(segformer), 5


def test_blocks_are_found_by_structure():
    for net, count in families():
        assert len(find_blocks(net)) == count, type(net).__name__
