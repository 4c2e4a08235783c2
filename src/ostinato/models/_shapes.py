"""Shapes of SegFormers by name, so that random weights need no network."""

from __future__ import annotations

import re
from typing import Any

from ostinato.errors import DataError

_WIDTHS = {"b0": (32, 64, 160, 256), "usual": (64, 128, 320, 512)}
_DEPTHS = {
    "b0": (2, 2, 2, 2),
    "b1": (2, 2, 2, 2),
    "b2": (3, 4, 6, 3),
    "b3": (3, 4, 18, 3),
    "b4": (3, 8, 27, 3),
    "b5": (3, 6, 40, 3),
}
_LABELS = {"cityscapes": 19, "ade": 150, "camvid": 11}


def shape_of(name: str) -> dict[str, Any]:
    """The settings of a published SegFormer, read from its name.

    >>> shape_of("nvidia/segformer-b0-finetuned-ade-512-512")["num_labels"]
    150
    >>> shape_of("someone/unknown")
    Traceback (most recent call last):
        ...
    ostinato.errors.DataError: The shape of someone/unknown is not known here. ...
    """
    size = re.search(r"segformer-(b[0-5])", name)
    labels = next((count for word, count in _LABELS.items() if f"-{word}" in name), None)
    if size is None or labels is None:
        raise DataError(
            f"The shape of {name} is not known here. Random weights need a folder with its "
            "config.json, or a SegFormer's name such as "
            "nvidia/segformer-b0-finetuned-cityscapes-1024-1024."
        )
    found = size[1]
    return {
        "hidden_sizes": list(_WIDTHS.get(found, _WIDTHS["usual"])),
        "depths": list(_DEPTHS[found]),
        "decoder_hidden_size": 256 if found in ("b0", "b1") else 768,
        "num_labels": labels,
    }
