"""Models and images that are small enough for a check to take moments."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import collect_statistics
from ostinato.methods.base import Method
from ostinato.ops.statistics import SourceStatistics

SIZE = 32
CLASSES = 5
_SURE = 6.0
"""What the classifier's weights are multiplied by, so that methods find predictions to trust."""


def small_model(seed: int = 0) -> nn.Module:
    """A ViT of two blocks with random weights, so that checks take moments."""
    from timm.models.vision_transformer import VisionTransformer

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = VisionTransformer(
            img_size=SIZE, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES
        )
        for parameter in model.parameters():  # livelier than timm's start, so that things move
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.2)
    finally:
        torch.set_rng_state(state)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    result: nn.Module = model.eval()
    return result


def small_batches(count: int, size: int = 8, seed: int = 0) -> list[Tensor]:
    """Images of two synthetic domains in turn: bright and smooth, dark and noisy."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for index in range(count):
        coarse = torch.rand(size, 3, 4, 4, generator=generator)
        images = nn.functional.interpolate(coarse, SIZE, mode="bilinear")
        noise = torch.rand(size, 3, SIZE, SIZE, generator=generator)
        domain = (index // 3) % 2
        batches.append(0.6 + 0.4 * images if domain == 0 else 0.5 * images * noise)
    return batches


def small_cnn(seed: int = 0) -> nn.Module:
    """A network of two convolutions with batch norm, for methods that need that."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model: Any = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
        )
        with torch.no_grad():  # statistics as if it had been trained on something
            for _ in range(20):
                model(torch.randn(8, 3, SIZE, SIZE))
    finally:
        torch.set_rng_state(state)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    result: nn.Module = model.eval()
    return result


def clean_images(count: int, seed: int = 0) -> Tensor:
    """Smooth images that differ in contrast, brightness and grain, as photographs do."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    smooth = nn.functional.interpolate(coarse, SIZE, mode="bilinear")
    light, contrast, grain = torch.rand(3, count, 1, 1, 1, generator=generator)
    noise = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    images: Tensor = 0.2 + 0.3 * light + (0.2 + 0.3 * contrast) * smooth + 0.1 * grain * noise
    return images.clamp(0, 1)


def example_model(kind: type[Method]) -> nn.Module:
    """A small model that a method can work on, sure enough of its answers to be learned from."""
    return _sure(small_cnn() if kind.info.norms == "batch" else small_model())


@cache
def example_statistics() -> SourceStatistics:
    """Clean images as the example transformer sees them; made once, since methods only read."""
    return collect_statistics(_sure(small_model()), clean_images(200, seed=9))


def _sure(model: nn.Module) -> nn.Module:
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        head.weight.mul_(_SURE)
    return model
