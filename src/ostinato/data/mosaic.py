"""Segmentation at small scale: mosaics of embedded images under four weathers.

Six 32 px images tile one 64 × 96 picture; every pixel's label is the class of its tile, and a
thin frame around each tile has none. The model classifies each tile and paints it, so that the
segmentation loop, per-pixel objectives, ignored pixels and mIoU all run without a download.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.data.corruptions import corrupt
from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import IGNORE, Dataset
from ostinato.data.embedded import CLASSES, SIZE, embedded_images, embedded_model
from ostinato.data.segments import stable_hash

ROWS, COLUMNS = 2, 3
_PICTURES = 25
"""Of each weather."""
_WEATHERS = {
    "fog": "driving_fog",
    "night": "driving_night",
    "rain": "driving_rain",
    "snow": "driving_snow",
}
_SEVERITY = 3
MOSAIC = "embedded-mosaic"
MOSAIC_NOTE = (
    "ACDC's stand-in: mosaics of 2 × 3 embedded images under synthetic weather (severity 3); the "
    "embedded model labels every tile."
)

STREET_NOTE = (
    "CamVid's stand-in: mosaics of 2 × 3 embedded images, the same ones under each synthetic "
    "weather; the embedded model labels every tile."
)


class _MosaicModel(nn.Module):
    """A classifier of 32 px tiles as a segmenter of mosaics.

    >>> _MosaicModel(embedded_model())(torch.zeros(1, 3, 64, 96)).shape
    torch.Size([1, 10, 64, 96])
    """

    def __init__(self, tiles: nn.Module) -> None:
        super().__init__()
        self.tiles = tiles
        self.pretrained_cfg = tiles.pretrained_cfg

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C, H, W), the same for all pixels of a tile; scaled views are scaled back."""
        batch, channels, height, width = images.shape
        full = (ROWS * SIZE, COLUMNS * SIZE)
        if (height, width) != full:
            images = F.interpolate(images, full, mode="bilinear", align_corners=False)
        cut = images.reshape(batch, channels, ROWS, SIZE, COLUMNS, SIZE)
        tiles = cut.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels, SIZE, SIZE)
        logits: Tensor = self.tiles(tiles)
        painted = logits.view(batch, ROWS, COLUMNS, -1).permute(0, 3, 1, 2)
        return F.interpolate(painted, (height, width), mode="nearest")


def mosaic_model(device: str = "cpu") -> nn.Module:
    """The embedded model as a segmenter."""
    return _MosaicModel(embedded_model(device)).eval()


def _mosaics(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first images as (count, 3, 64, 96) pictures, with label maps.

    >>> pictures, maps = _mosaics(torch.zeros(6, 3, 32, 32, dtype=torch.uint8), torch.arange(6), 1)
    >>> maps[0, 16, 16::32].tolist(), int(maps[0, 0, 0])
    ([0, 1, 2], 255)
    """
    tiles = ROWS * COLUMNS
    shape = (count, ROWS, COLUMNS)
    cut = images[: count * tiles].view(*shape, 3, SIZE, SIZE)
    pictures = cut.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, ROWS * SIZE, COLUMNS * SIZE)
    maps = torch.full((*shape, SIZE, SIZE), IGNORE)
    maps[..., 1:-1, 1:-1] = labels[: count * tiles].view(*shape, 1, 1)
    maps = maps.permute(0, 1, 3, 2, 4).reshape(count, ROWS * SIZE, COLUMNS * SIZE)
    return pictures, maps


def weather_mosaics() -> Dataset:
    """ACDC's stand-in: other images in each of the four weathers."""
    images, labels, _ = embedded_images("test")
    each = _PICTURES * ROWS * COLUMNS
    pictures, maps, names = [], [], []
    for number, (weather, corruption) in enumerate(_WEATHERS.items()):
        part = slice(number * each, (number + 1) * each)
        clear, truth = _mosaics(images[part], labels[part], _PICTURES)
        seeds = [stable_hash(f"{weather}/{n}") for n in range(_PICTURES)]
        pictures.append(corrupt(clear, corruption, _SEVERITY, seeds, constants="imagenet"))
        maps.append(truth)
        names += [weather] * _PICTURES
    return ArrayDataset(
        torch.cat(pictures), torch.cat(maps), names, name="acdc", class_names=CLASSES
    )


def street_mosaics() -> Dataset:
    """CamVid's stand-in: clean mosaics, which a stream shows under one weather after another."""
    images, labels, _ = embedded_images("test")
    return ArrayDataset(*_mosaics(images, labels, _PICTURES), name="camvid", class_names=CLASSES)


def clear_mosaics() -> Dataset:
    """Clean mosaics of images that the stream does not show, to prepare methods on."""
    images, labels, _ = embedded_images("tune")
    count = len(images) // (ROWS * COLUMNS)
    return ArrayDataset(*_mosaics(images, labels, count), name=MOSAIC, class_names=CLASSES)
