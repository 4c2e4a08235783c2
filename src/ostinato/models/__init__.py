"""Models: what adaptation needs to know of one, views of it, and loading one by its name."""

from ostinato.models._outputs import count_outputs, logits_of
from ostinato.models._vision import (
    HALF,
    IMAGENET,
    Normalize,
    Triple,
    VisionModel,
    check_classes,
    check_module,
    fingerprint,
    image_size,
    input_convention,
    output_names,
)

__all__ = [
    "HALF",
    "IMAGENET",
    "Normalize",
    "Triple",
    "VisionModel",
    "check_classes",
    "check_module",
    "count_outputs",
    "fingerprint",
    "image_size",
    "input_convention",
    "logits_of",
    "output_names",
]
