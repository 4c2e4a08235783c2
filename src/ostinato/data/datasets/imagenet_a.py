"""ImageNet-A: natural images that classifiers get wrong, 200 classes."""

from __future__ import annotations

from ostinato.data.datasets.labelled import WordNetPart
from ostinato.registry import DATASETS


@DATASETS.register("imagenet-a")
class ImageNetA(WordNetPart):
    """7,500 images of 200 ImageNet classes; `classes` are their columns of the 1000 logits.

    >>> ImageNetA.name, ImageNetA.count, ImageNetA.expected
    ('imagenet-a', 200, {'imagenet-a': 7500})
    """

    layout = "n01498041/*.jpg, ... for 200 WordNet ids"
    expected = {"imagenet-a": 7_500}
