"""ImageNet-Sketch: black and white sketches of all 1000 classes."""

from __future__ import annotations

from ostinato.data.datasets.labelled import WordNetFolders
from ostinato.registry import DATASETS


@DATASETS.register("imagenet-sketch")
class ImageNetSketch(WordNetFolders):
    """50,889 sketches: root/<WordNet id>/*.JPEG (or root/sketch/...).

    >>> ImageNetSketch.name, ImageNetSketch.expected
    ('imagenet-sketch', {'imagenet-sketch': 50889})
    """

    layout = "n01440764/sketch_0.JPEG, ... for 1000 WordNet ids"
    expected = {"imagenet-sketch": 50_889}
    inner = ("sketch",)
