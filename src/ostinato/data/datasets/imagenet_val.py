"""ImageNet-1k validation images, sorted into class folders."""

from __future__ import annotations

from ostinato.data.datasets.labelled import WordNetFolders
from ostinato.registry import DATASETS


@DATASETS.register("imagenet-val")
class ImageNetVal(WordNetFolders):
    """The 50,000 validation images: root/<WordNet id>/*.JPEG (or root/val/...).

    `split="tune"` takes the images that root/tune.txt lists, one `<WordNet id>/<file name>` a line:
    a way to keep images for statistics and for choosing settings apart from those reported.

    >>> ImageNetVal.name, ImageNetVal.expected
    ('imagenet-val', {'imagenet-val': 50000})
    """

    layout = "n01440764/ILSVRC2012_val_00000293.JPEG, ... for 1000 WordNet ids"
    expected = {"imagenet-val": 50_000}
    inner = ("val",)
