"""The model and the images inside the package: what the demonstration and quick checks run on.

A small vision transformer trained on CIFAR-10 by `examples/train_embedded.py`, and two
class-balanced sets it was never trained on: `test` (from the test images, to report results on),
and `tune` (from held-out training images, to choose settings on). `assets/README.md` gives the
recipe, the accuracy and the attribution.
"""

from __future__ import annotations

import io
import json
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ostinato.errors import DataError, InputError, did_you_mean

CLASSES = (  # in CIFAR-10's own order
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)
SIZE = 32
WIDTH, DEPTH, HEAD_WIDTH, MLP_RATIO = 128, 6, 32, 2.0
WEIGHTS = "vit_cifar10.safetensors"
INDEX = "cifar10_subsets.json"
STATISTICS = "vit_cifar10_statistics.safetensors"
SHEETS = {"test": "cifar10_test_subset.png", "tune": "cifar10_tune_subset.png"}


def asset_path(name: str) -> Path:
    """Where a file shipped in `ostinato/assets` lies.

    >>> asset_path(STATISTICS).name
    'vit_cifar10_statistics.safetensors'
    """
    place = Path(str(files("ostinato"))) / "assets" / name
    if not place.is_file():
        raise DataError(
            f"The package's own file assets/{name} is missing: reinstall ostinato, "
            "or write it anew with examples/train_embedded.py."
        )
    return place


def build_embedded(width: int = WIDTH, depth: int = DEPTH, drop_path: float = 0.0) -> nn.Module:
    """The embedded model's architecture with fresh weights: timm's ViT on a convolutional stem.

    Four 3×3 convolutions take 32 px to 8×8 tokens; LayerNorm throughout, so that no layer's
    output depends on the rest of the batch.

    >>> model = build_embedded(width=32, depth=1)
    >>> model(torch.zeros(2, 3, 32, 32)).shape, len(model.blocks)
    (torch.Size([2, 10]), 1)
    """
    from timm.layers import HybridEmbed, LayerNorm2d
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import ConvStem

    if width % HEAD_WIDTH:
        raise InputError(
            f"width {width} is no multiple of {HEAD_WIDTH}; "
            f"use {max(1, round(width / HEAD_WIDTH)) * HEAD_WIDTH}."
        )
    stem = ConvStem(
        depth=4,
        channels=(32, 64, 128, width),
        stride=(1, 2, 2, 1),
        norm_layer=LayerNorm2d,
        act_layer=nn.GELU,
    )
    model: nn.Module = VisionTransformer(
        img_size=SIZE,
        patch_size=1,  # of the stem's feature map
        num_classes=len(CLASSES),
        embed_dim=width,
        depth=depth,
        num_heads=width // HEAD_WIDTH,
        mlp_ratio=MLP_RATIO,
        drop_path_rate=drop_path,
        class_token=True,
        global_pool="token",
        embed_layer=partial(HybridEmbed, backbone=stem, proj=False),
    )
    for name in ("pretrained_cfg", "default_cfg"):  # timm's place for a model's conventions
        setattr(model, name, _input_convention())
    return model


def embedded_model(device: str | torch.device = "cpu") -> nn.Module:
    """The trained model, in fp32 and eval mode. It expects images normalised as on CIFAR.

    The convention is also where timm keeps it, in `model.pretrained_cfg`; statistics of the
    model's features on clean images lie at `asset_path(STATISTICS)`.

    >>> model = embedded_model()
    >>> images, labels, _ = embedded_images("test")
    >>> with torch.no_grad():
    ...     guesses = model(normalized(images[:100])).argmax(1)
    >>> bool((guesses == labels[:100]).float().mean() > 0.8)
    True
    """
    from safetensors.torch import load

    model = build_embedded()
    weights = {
        name: tensor.float() for name, tensor in load(asset_path(WEIGHTS).read_bytes()).items()
    }
    model.load_state_dict(weights, strict=True)
    return model.eval().to(device)


def embedded_images(
    split: Literal["test", "tune"] = "test",
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Images (N, 3, 32, 32) as uint8, labels (N,), and one stable key per image.

    Every ten images in a row hold each class once, so any prefix is balanced. Choose settings on
    `tune`, report on `test`.

    >>> images, labels, keys = embedded_images("tune")
    >>> images.shape[1:], images.dtype, labels[:10].sort().values.tolist() == list(range(10))
    (torch.Size([3, 32, 32]), torch.uint8, True)
    """
    if split not in SHEETS:
        raise InputError(f"There is no embedded split {split!r}. {did_you_mean(split, SHEETS)}")
    entry = json.loads(asset_path(INDEX).read_bytes())["subsets"][split]
    images = _unpack_sheet(asset_path(SHEETS[split]).read_bytes(), len(entry["indices"]))
    keys = tuple(f"cifar10-{entry['source']}-{index:05d}" for index in entry["indices"])
    return images, torch.tensor(entry["labels"]), keys


def normalized(images: Tensor) -> Tensor:
    """Images in uint8 or [0, 1] as the embedded model expects them.

    >>> normalized(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()[0].item()
    2.059...
    """
    pixels = images if images.is_floating_point() else images.float() / 255
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (_MEAN, _STD))
    return (pixels - mean) / std


def pack_sheet(images: Tensor, columns: int = 40) -> bytes:
    """Many small images as one lossless PNG, row by row; `_unpack_sheet` undoes it.

    >>> tiles = torch.arange(2 * 3 * 32 * 32).to(torch.uint8).view(2, 3, 32, 32)
    >>> torch.equal(_unpack_sheet(pack_sheet(tiles, columns=1), 2), tiles)
    True
    """
    from PIL import Image

    count, channels, height, width = images.shape
    if count % columns:
        raise InputError(f"{count} images do not fill rows of {columns}; use a divisor of {count}.")
    tiles = images.view(count // columns, columns, channels, height, width)
    sheet = tiles.permute(0, 3, 1, 4, 2).reshape(-1, columns * width, channels)
    stream = io.BytesIO()
    Image.fromarray(sheet.numpy()).save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def _unpack_sheet(data: bytes, count: int) -> Tensor:
    """The first `count` images of a sheet, (N, 3, 32, 32) uint8."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        sheet = torch.from_numpy(np.array(picture.convert("RGB")))
    rows, columns = sheet.shape[0] // SIZE, sheet.shape[1] // SIZE
    if rows * columns < count:
        raise DataError(f"The sheet holds {rows * columns} images where {count} are listed.")
    tiles = sheet.view(rows, SIZE, columns, SIZE, 3).permute(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 3, SIZE, SIZE)[:count].contiguous()


def _input_convention() -> dict[str, Any]:
    return {
        "architecture": "vit_cifar10",
        "input_size": (3, SIZE, SIZE),
        "num_classes": len(CLASSES),
        "mean": _MEAN,
        "std": _STD,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "classifier": "head",
        "label_names": CLASSES,
    }
