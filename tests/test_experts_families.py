"""Every model family: the FFNs that are found, exact starts, and a clean way back."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ostinato.experts._inject import eject, inject
from ostinato.experts._targets import find_targets
from ostinato.experts.layers import DualBranch, ExpertConfig

SMALL = ExpertConfig(shared_rank=4, domain_rank=2)


def timm_model(name: str, **options: object) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=5, img_size=32, **options)


def vit_like(name: str) -> nn.Module:
    return timm_model(name, patch_size=16, embed_dim=16, depth=2, num_heads=2)


def swin(name: str) -> nn.Module:
    sizes = {"embed_dim": 8, "depths": (1, 2), "num_heads": (1, 2), "window_size": 4}
    return timm_model(name, patch_size=4, **sizes)


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=5)


def hf(kind: str, **options: object) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{kind}Config")(num_labels=5, image_size=32, **options)
    return getattr(transformers, f"{kind}ForImageClassification")(config)


HF_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def segformer() -> nn.Module:
    import transformers

    config = transformers.SegformerConfig(
        num_labels=5, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], decoder_hidden_size=16
    )
    return transformers.SegformerForSemanticSegmentation(config)


class OldAttention(nn.Module):
    """Attention as transformers 4 lays it out, with its output projection one level up."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention, name, nn.Linear(dim, dim))
        self.output = nn.Module()
        self.output.dense = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.attention
        mixed = nn.functional.scaled_dot_product_attention(
            inner.query(x), inner.key(x), inner.value(x)
        )
        return self.output.dense(mixed)


class OldIntermediate(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.dense(x))


class OldOutput(nn.Module):
    """Second half of the FFN, with the residual inside."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(0.0)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self.dropout(self.dense(hidden)) + residual


class OldLayer(nn.Module):
    def __init__(self, dim: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.attention = OldAttention(dim)
        self.intermediate = OldIntermediate(dim, hidden)
        self.output = OldOutput(dim, hidden)
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.layernorm_before(x))
        return self.output(self.intermediate(self.layernorm_after(x)), x)


class Patches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(2, 8, 8).unfold(3, 8, 8).flatten(4).mean(1).flatten(1, 2)


def old_vit() -> nn.Module:
    layers = [OldLayer() for _ in range(2)]
    return nn.Sequential(Patches(), nn.Linear(64, 16), *layers, nn.Linear(16, 5))


def torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
    return nn.Sequential(Patches(), nn.Linear(64, 16), layer, nn.Linear(16, 5))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "vit": (lambda: vit_like("vit_tiny_patch16_224"), [16] * 2),
    "deit": (lambda: vit_like("deit_tiny_distilled_patch16_224"), [16] * 2),
    "beit": (lambda: vit_like("beit_base_patch16_224"), [16] * 2),
    "eva-swiglu": (lambda: vit_like("eva02_base_patch14_224"), [16] * 2),
    "eva-glu": (lambda: vit_like("eva02_tiny_patch14_224"), [16] * 2),
    "swin": (lambda: swin("swin_tiny_patch4_window7_224"), [8, 16, 16]),
    "swinv2": (lambda: swin("swinv2_tiny_window8_256"), [8, 16, 16]),
    "torchvision": (torchvision_vit, [16] * 2),
    "torch": (torch_encoder, [16]),
    "hf-vit": (lambda: hf("ViT", patch_size=16, intermediate_size=32, **HF_SIZES), [16] * 2),
    "hf-vit-4": (old_vit, [16] * 2),
    "dinov2": (lambda: hf("Dinov2", patch_size=16, **HF_SIZES), [16] * 2),
    "dinov2-swiglu": (
        lambda: hf("Dinov2", patch_size=16, use_swiglu_ffn=True, **HF_SIZES),
        [16] * 2,
    ),
    "segformer": (segformer, [8, 16, 24, 24, 32]),
}


@torch.no_grad()
def scrambled(model: nn.Module) -> nn.Module:
    """Random weights of a sane size everywhere: heads and layer scales often start at zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        wide = parameter.ndim > 1
        parameter.copy_(noise / parameter[0].numel() ** 0.5 if wide else 1 + 0.2 * noise)
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    """Each family built once; tests leave them as they were, which is what is tested."""
    return {name: scrambled(make()).eval() for name, (make, _) in FAMILIES.items()}


def logits(model: nn.Module) -> Tensor:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        result = model(images)
    return result if isinstance(result, Tensor) else result.logits


@pytest.mark.parametrize("family", FAMILIES)
def test_every_ffn_is_found_and_nothing_else(family: str, models: dict[str, nn.Module]) -> None:
    found = find_targets(models[family])
    assert [target.dim for target in found] == FAMILIES[family][1]
    for target in found:
        assert "attn" not in target.name
        assert "attention" not in target.name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("placement", ["post", "parallel"])
def test_start_is_exact_and_eject_restores(
    family: str, placement: str, models: dict[str, nn.Module]
) -> None:
    model = models[family]
    source, before = logits(model), copy.deepcopy(model.state_dict())
    modules = dict(model.named_modules())
    for fusion in ("fixed", "learned", "input"):
        for form in ("fused", "reference"):
            config = SMALL.replace(placement=placement, fusion=fusion, form=form)
            layers = inject(model, config)
            for choice in (None, 3, [3, 4]):
                for layer in layers.values():
                    if choice is None:
                        layer.add_domain(3)
                        layer.add_domain(4)
                    layer.select(choice)
                assert torch.equal(logits(model), source)
            assert eject(model) is model
            assert dict(model.named_modules()) == modules
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(logits(model), source)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("placement", ["post", "parallel"])
def test_experts_have_an_effect_and_learn(
    family: str, placement: str, models: dict[str, nn.Module]
) -> None:
    model = models[family]
    source = logits(model)
    layers = inject(model, SMALL.replace(placement=placement))
    try:
        for layer in layers.values():
            layer.add_domain(0)
            layer.select(0)
            layer.mixture(0).up.data.normal_(generator=torch.Generator().manual_seed(0))
        changed = logits(model)
        assert (changed - source).abs().max() > 1e-4
        images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        result = model(images)
        (result if isinstance(result, Tensor) else result.logits).square().sum().backward()
        for layer in layers.values():
            grad = layer.mixture(0).down.grad
            assert grad is not None
            assert grad.abs().max() > 0
    finally:
        eject(model)
        model.zero_grad()


@pytest.mark.parametrize("placement", ["post", "parallel"])
def test_split_ffn_reads_the_right_tokens(placement: str) -> None:
    block = OldLayer()
    model = nn.Sequential(block)
    (layer,) = inject(model, SMALL.replace(placement=placement, balance=1.0)).values()
    assert isinstance(layer, DualBranch)
    assert layer.shared is not None
    layer.shared.up.data.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1))
    middle = x + block.attention(block.layernorm_before(x))
    fed = block.layernorm_after(middle)
    z = layer.base_layer(nn.functional.gelu(block.intermediate.dense(fed)))
    expected = middle + z + layer.shared(z if placement == "post" else fed)
    torch.testing.assert_close(model(x), expected)
