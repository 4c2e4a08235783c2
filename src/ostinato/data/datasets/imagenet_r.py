"""ImageNet-R: renditions (art, cartoons, toys, ...) of 200 classes."""

from __future__ import annotations

from ostinato.data.datasets.labelled import WordNetPart
from ostinato.registry import DATASETS


@DATASETS.register("imagenet-r")
class ImageNetR(WordNetPart):
    """30,000 images of 200 ImageNet classes; `classes` are their columns of the 1000 logits.

    >>> ImageNetR.name, ImageNetR.count, ImageNetR.expected
    ('imagenet-r', 200, {'imagenet-r': 30000})
    """

    layout = "n01443537/*.jpg, ... for 200 WordNet ids"
    expected = {"imagenet-r": 30_000}
