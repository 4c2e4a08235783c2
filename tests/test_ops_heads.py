"""The classifier is found in every family by structure, and its input is what it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ostinato.checks import small_batches, small_model
from ostinato.errors import TargetError
from ostinato.models import VisionModel
from ostinato.ops.heads import final_features, find_head, select_classes, spread_classes


def torchvision_vit():
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=5).eval()


def torchvision_swin():
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=5).eval()


def hugging_face_vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=5,
    )
    return ViTForImageClassification(config).eval()


@pytest.mark.parametrize(
    "build", [small_model, torchvision_vit, torchvision_swin, hugging_face_vit]
)
def test_head_and_features_of_each_family(build):
    torch.manual_seed(0)
    model = VisionModel(build())
    pixels = small_batches(1)[0]
    head = find_head(model)
    with torch.no_grad():
        features, logits = final_features(model, pixels)
        assert torch.equal(logits, model(pixels))
        torch.testing.assert_close(F.linear(features, head.weight, head.bias), logits)
    assert features.shape == (8, head.in_features)
    assert head.out_features == 5
    assert not head._forward_pre_hooks


def test_models_without_a_linear_classifier_are_refused():
    dense = nn.Sequential(nn.Conv2d(3, 4, 1))
    with pytest.raises(TargetError, match="no linear classifier"):
        find_head(dense)
    mixed = nn.Sequential(nn.Flatten(2), nn.Linear(16, 16), nn.Unflatten(2, (4, 4)))
    with pytest.raises(TargetError, match="does not make its logits"):
        final_features(mixed, torch.rand(1, 3, 4, 4))
    assert not mixed[1]._forward_pre_hooks


def test_class_selection():
    logits = torch.arange(6.0).view(2, 3)
    assert select_classes(logits, None) is logits
    assert select_classes(logits, torch.tensor([2, 0])).tolist() == [[2, 0], [5, 3]]


def test_spreading_undoes_the_selection():
    probabilities = torch.arange(1.0, 7.0).view(2, 3)
    assert spread_classes(probabilities, None, 3) is probabilities
    classes = torch.tensor([2, 0])
    wide = spread_classes(select_classes(probabilities, classes), classes, 3)
    assert wide.tolist() == [[1, 0, 3], [4, 0, 6]]
