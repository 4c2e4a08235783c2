"""Families of models, small and with random weights, and what is asked of each of them."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import timm
import torch
from torch import nn

import ostinato
from ostinato.experts.frozen import bare_copy
from ostinato.models import VisionModel
from ostinato.ops.statistics import SourceStatistics

SIZE, CLASSES = 32, 5
SMALL = {"img_size": SIZE, "num_classes": CLASSES}
PLAIN = SMALL | {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
SWIN = SMALL | {"window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
RESNET = {"num_classes": CLASSES, "layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)}


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, **settings)


def _maxvit() -> nn.Module:
    from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitTransformerCfg

    cfg = MaxxVitCfg(
        embed_dim=(16, 32),
        depths=(1, 1),
        block_type=("M", "M"),
        stem_width=8,
        transformer_cfg=MaxxVitTransformerCfg(dim_head=8, window_size=(4, 4), grid_size=(4, 4)),
    )
    model: Any = MaxxVit(cfg, img_size=SIZE, num_classes=CLASSES)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return model


def _coatnet() -> nn.Module:
    from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitTransformerCfg

    cfg = MaxxVitCfg(
        embed_dim=(16, 32),
        depths=(1, 1),
        block_type=("C", "T"),
        stem_width=8,
        transformer_cfg=MaxxVitTransformerCfg(dim_head=8),
    )
    model: Any = MaxxVit(cfg, img_size=SIZE, num_classes=CLASSES)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return model


def _mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    model: Any = MlpMixer(**SMALL, patch_size=8, embed_dim=32, num_blocks=2)
    nn.init.normal_(model.head.weight)  # timm starts it at zero
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return model


def _torchvision(kind: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision.models import (
            ConvNeXt,
            EfficientNet,
            MaxVit,
            ResNet,
            SwinTransformer,
            VisionTransformer,
            mobilenet_v3_small,
        )
        from torchvision.models.convnext import CNBlockConfig
        from torchvision.models.resnet import BasicBlock

        if kind == "vit":
            model = VisionTransformer(SIZE, 8, 2, 2, 32, 64, num_classes=CLASSES)
            nn.init.normal_(model.heads.head.weight)  # torchvision starts it at zero
            return model
        if kind == "swin":
            return SwinTransformer([4, 4], 16, [1, 1], [1, 2], [4, 4], num_classes=CLASSES)
        if kind == "convnext":
            parts = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]
            return ConvNeXt(parts, num_classes=CLASSES)
        if kind == "maxvit":
            widths = {"stem_channels": 8, "block_channels": [16, 24], "head_dim": 8}
            size = {"input_size": (SIZE, SIZE), "partition_size": 4, "block_layers": [1, 1]}
            return MaxVit(**widths, **size, stochastic_depth_prob=0.0, num_classes=CLASSES)
        if kind == "mobilenetv3":
            return mobilenet_v3_small(num_classes=CLASSES, width_mult=0.5)
        if kind == "efficientnet":
            from torchvision.models.efficientnet import MBConvConfig

            parts = [MBConvConfig(2, 3, 2, 8, 16, 2), MBConvConfig(2, 3, 2, 16, 24, 1)]
            return EfficientNet(parts, 0.0, num_classes=CLASSES)
        return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)

    return build


def _hugging_face(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(num_labels=CLASSES, **settings)
        head = "SemanticSegmentation" if kind in ("Segformer", "DPT") else "ImageClassification"
        model: nn.Module = getattr(transformers, f"{kind}For{head}")(config)
        return model

    return build


def _mask2former() -> nn.Module:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    swin = SwinConfig(
        image_size=SIZE,
        patch_size=2,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 2],
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    widths = ("feature_size", "mask_feature_size", "hidden_dim", "dim_feedforward")
    config = Mask2FormerConfig(
        backbone_config=swin,
        num_labels=CLASSES,
        encoder_layers=1,
        encoder_feedforward_dim=32,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=4,
        **dict.fromkeys(widths, 32),
    )
    return Mask2FormerForUniversalSegmentation(config)


_HF = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_HF |= {"intermediate_size": 64, "image_size": SIZE, "patch_size": 8}
_HF_DINO = {k: v for k, v in _HF.items() if k != "intermediate_size"}

FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "timm vit": _timm("vit_tiny_patch16_224", **PLAIN),
    "timm deit": _timm("deit_tiny_distilled_patch16_224", **PLAIN),
    "timm deit3": _timm("deit3_small_patch16_224", **PLAIN),
    "timm beit": _timm("beit_base_patch16_224", **PLAIN),
    "timm eva02": _timm("eva02_tiny_patch14_224", **PLAIN),
    "timm dinov3": _timm("vit_small_plus_patch16_dinov3", **PLAIN),
    "timm swin": _timm("swin_tiny_patch4_window7_224", **SWIN),
    "timm swinv2": _timm("swinv2_tiny_window8_256", **SWIN),
    "timm swinv2_cr": _timm("swinv2_cr_tiny_224", **SWIN),
    "timm maxvit": _maxvit,
    "timm coatnet": _coatnet,
    "timm mlp-mixer": _mixer,
    "timm convnext": _timm("test_convnext", num_classes=CLASSES),
    "timm mambaout": _timm("mambaout_femto", num_classes=CLASSES, depths=(1, 1), dims=(16, 24)),
    "timm resnet50": _timm("resnet50", **RESNET),
    "timm resnet50-gn": _timm("resnet50_gn", **(RESNET | {"channels": (32, 32, 64, 64)})),
    "timm mobilenetv3": _timm("mobilenetv3_small_050", num_classes=CLASSES),
    "timm efficientnet": _timm("test_efficientnet", num_classes=CLASSES),
    "torchvision vit": _torchvision("vit"),
    "torchvision swin": _torchvision("swin"),
    "torchvision convnext": _torchvision("convnext"),
    "torchvision maxvit": _torchvision("maxvit"),
    "torchvision resnet": _torchvision("resnet"),
    "torchvision mobilenetv3": _torchvision("mobilenetv3"),
    "torchvision efficientnet": _torchvision("efficientnet"),
    "HF vit": _hugging_face("ViT", **_HF),
    "HF dinov2": _hugging_face("Dinov2", **_HF_DINO),
    "HF swin": _hugging_face(
        "Swin", image_size=SIZE, embed_dim=16, depths=[1, 1], num_heads=[1, 2], window_size=4
    ),
    "HF beit": _hugging_face("Beit", **_HF),
    "HF convnext": _hugging_face(
        "ConvNext", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_stages=4
    ),
    "HF resnet": _hugging_face(
        "ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    ),
    "HF mobilenetv2": _hugging_face("MobileNetV2", depth_multiplier=0.25, image_size=SIZE),
    "HF siglip": _hugging_face("Siglip", vision_config=_HF),
    "HF clip": _hugging_face("CLIP", vision_config=_HF),
    "HF segformer": _hugging_face(
        "Segformer",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
    ),
    "HF dpt": _hugging_face(
        "DPT",
        **_HF | {"num_hidden_layers": 4},
        is_hybrid=False,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
    ),
    "HF mask2former": _mask2former,
}
MECHANISMS = (
    "timm vit",
    "timm swin",
    "timm mlp-mixer",
    "timm resnet50-gn",
    "timm efficientnet",
    "torchvision convnext",
    "HF swin",
)
"""One family for each way in which blocks, layouts and norms differ."""


def build(name: str) -> nn.Module:
    """The family's model, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FAMILIES[name]().eval()


def images(count: int, seed: int = 0, domain: int = 0) -> torch.Tensor:
    """Coarse random pictures: clean (0), noisy (1), dark (2) or pale (3)."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 8, 8, generator=draw)
    pictures = nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")
    noise = torch.randn(count, 3, SIZE, SIZE, generator=draw)
    shifted = (pictures, pictures + 0.3 * noise, 0.3 * pictures, 0.7 + 0.2 * pictures)
    return shifted[domain].clamp(0, 1)


_UNKNOWN = ("convnext", "dpt", "resnet", "mobilenet_v2")
"""Hugging Face's models whose processors alone know how images are normalised."""


def _convention(model: nn.Module) -> dict[str, Any]:
    half = (0.5, 0.5, 0.5)
    known = getattr(getattr(model, "config", None), "model_type", "")
    return {"mean": half, "std": half} if known in _UNKNOWN else {}


@cache
def statistics_of(name: str) -> SourceStatistics:
    """Of a family's model: the same for every question."""
    model = build(name)
    return ostinato.collect_statistics(model, images(100), **_convention(model))


class Case:
    """One family's model with its statistics; every question is a method that asserts."""

    def __init__(self, name: str) -> None:
        self.model = build(name)
        self.convention = _convention(self.model)
        self.statistics_of_it = statistics_of(name)

    def _adapted(self, model: nn.Module | None = None, **settings: Any) -> Any:
        return ostinato.adapt(
            model or self.model,
            statistics=self.statistics_of_it,
            enough=8,
            micro=8,
            **self.convention,
            **settings,
        )

    def _met(self, adapted: Any) -> Any:
        """The same method after three domains, whose maps are trusted whatever they do.

        Random weights are as unsure with a map as without; here maps have to act.
        """
        with mock.patch("ostinato.methods.ostinato.maps.doubt", return_value=-1.0):
            for domain in (1, 2, 3):
                for seed in range(3):
                    answers = adapted(images(12, 10 * domain + seed, domain))
                    assert answers.isfinite().all()
        return adapted

    def adapt(self) -> None:
        """The first prediction is the source model's."""
        clean = images(4)
        with torch.no_grad():
            expected = VisionModel(self.model, **self.convention)(clean)
        adapted = self._adapted()
        assert torch.equal(adapted(clean), expected.float())
        ostinato.unwrap(adapted)

    def statistics(self) -> None:
        """Every block has moments; a file gives the same back."""
        with tempfile.TemporaryDirectory() as folder:
            self.statistics_of_it.save(Path(folder) / "s.safetensors")
            again = SourceStatistics.load(Path(folder) / "s.safetensors")
        assert again.describe() == self.statistics_of_it.describe()
        assert len(again.tokens) == len(again.means) > 0
        pairs = zip(again.tokens, again.means, strict=True)
        assert all(block.mean.shape == mean.shape for block, mean in pairs)

    def default_preset(self) -> None:
        """Three domains are met, and experts act somewhere."""
        adapted = self._met(self._adapted())
        domains = adapted.bank.domains.values()
        assert any(domain.share > 0 for domain in domains)
        assert adapted.last.logits.ndim > 2 or any(domain.branches for domain in domains)
        batch = images(12, 9, 3)
        adapted.predict(batch, source=True)
        assert not torch.equal(adapted.last.logits, adapted.last.source_logits)
        ostinato.unwrap(adapted)

    def save_and_load(self) -> None:
        """What is loaded answers the same."""
        adapted, other = self._met(self._adapted()), self._adapted(bare_copy(self.model))
        batch = images(6, 5, 2)
        with tempfile.TemporaryDirectory() as folder:
            adapted.save(Path(folder) / "state")
            other.load(Path(folder) / "state")
        with adapted.frozen(), other.frozen():
            assert torch.equal(adapted(batch), other(batch))
        ostinato.unwrap(adapted)

    def unwrap(self) -> None:
        """The original comes back to the bit."""
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        hooks = [len(module._forward_hooks) for module in self.model.modules()]
        adapted = self._met(self._adapted())
        assert ostinato.unwrap(adapted) is self.model
        assert all(torch.equal(v, before[k]) for k, v in self.model.state_dict().items())
        assert hooks == [len(module._forward_hooks) for module in self.model.modules()]

    def half(self) -> None:
        """A model in half precision is adapted in half precision."""
        model = copy.deepcopy(self.model).bfloat16()
        statistics = ostinato.collect_statistics(model, images(100), **self.convention)
        adapted = ostinato.adapt(model, statistics=statistics, enough=8, micro=8, **self.convention)
        self._met(adapted)

    def export(self) -> None:
        """A domain's frozen model answers as the live one does with that domain's expert."""
        adapted = self._met(self._adapted())
        version, batch = adapted.version, images(4, 5, 2)
        domain = max(version.shares, key=lambda number: version.shares[number])
        frozen = ostinato.export(adapted, domain=domain)
        placed = adapted.publisher.placed(version)
        index = placed.index([domain] * len(batch))
        live = adapted._forward(adapted._receive(batch, None, None), placed, index)
        live = live / version.temperatures[domain]
        torch.testing.assert_close(frozen(batch), live, atol=1e-4, rtol=1e-4)
        ostinato.unwrap(adapted)

    def tent(self) -> None:
        """TENT moves the norms and gives the model back."""
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        adapted = ostinato.adapt(self.model, "tent", lr=0.01, **self.convention)
        for seed in range(2):
            assert adapted(images(8, seed, 2)).isfinite().all()
        assert adapted.last.updated
        ostinato.unwrap(adapted)
        assert all(torch.equal(v, before[k]) for k, v in self.model.state_dict().items())


QUESTIONS = (
    "adapt",
    "statistics",
    "default_preset",
    "save_and_load",
    "unwrap",
    "half",
    "export",
    "tent",
)


def matrix(names: tuple[str, ...] = tuple(FAMILIES)) -> str:
    """The table of docs/backbones.md: family by question; what fails says how."""
    rows = ["| family | " + " | ".join(q.replace("_", " ") for q in QUESTIONS) + " |"]
    rows.append("|---" * (len(QUESTIONS) + 1) + "|")
    for name in names:
        cells = []
        for question in QUESTIONS:
            try:
                getattr(Case(name), question)()
                cells.append("yes")
            except Exception as error:
                cells.append(f"no ({type(error).__name__})")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
