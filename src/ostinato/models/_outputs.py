"""Logits in whatever form a model gives them: for an image, or for every pixel of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostinato.errors import ConfigError, InputError, OstinatoError

if TYPE_CHECKING:
    from ostinato.models._vision import VisionModel

_LEAST = 1e-6
"""The least score whose logarithm is taken."""


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output.

    A tensor, an object or dict with `logits` or `out`, or one with queries' classes and masks, as
    models of Mask2Former's kind give them.

    >>> logits_of({"logits": torch.zeros(1, 3)}).shape
    torch.Size([1, 3])
    """
    if isinstance(output, Tensor):
        return output
    for key in ("logits", "out"):
        value = _part(output, key)
        if isinstance(value, Tensor):
            return value
    classes, masks = _part(output, "class_queries_logits"), _part(output, "masks_queries_logits")
    if isinstance(classes, Tensor) and isinstance(masks, Tensor):
        return _masked_logits(classes, masks)
    raise InputError(
        f"The model returns {type(output).__name__} without logits; wrap it so that it returns "
        "a tensor, or an object with a .logits tensor."
    )


def _masked_logits(classes: Tensor, masks: Tensor) -> Tensor:
    """Logits per pixel of a model that gives masks and a class for each of them.

    A pixel's score for a class is the sum over masks of the class's probability times the mask's,
    as such models are evaluated; its logit is the logarithm of that.

    Args:
        classes: (B, Q, C + 1) logits of every query's class, "none" the last.
        masks: (B, Q, h, w) logits of every query's mask.

    >>> sure = torch.tensor([[[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]]])
    >>> halves = torch.tensor([[[[9.0, -9.0]], [[-9.0, 9.0]]]])
    >>> _masked_logits(sure, halves).argmax(1).tolist()
    [[[0, 1]]]
    """
    shares = classes.softmax(-1)[..., :-1]
    scores = torch.einsum("bqc,bqhw->bchw", shares, masks.sigmoid())
    return scores.clamp_min(_LEAST).log()


def check_logits(logits: Tensor) -> int:
    """How many classes a model tells apart, if its answer is one that can be adapted to."""
    if logits.ndim in (2, 4):
        return int(logits.shape[1])
    raise InputError(
        f"To one image the model answers with shape {tuple(logits.shape)}. A classifier gives "
        "(batch, classes), a segmenter (batch, classes, height, width); detectors and others that "
        "give neither cannot be adapted. Wrap it in a module that returns one of the two."
    )


def count_outputs(vision: VisionModel, image: Tensor, name: str, advice: str) -> int:
    """Show a model one image; how many outputs it has, or what to choose where it cannot."""
    try:
        with torch.no_grad():
            return int(vision(vision.check(image)).shape[1])
    except (RuntimeError, AssertionError, ValueError) as problem:
        error: BaseException = problem
        if isinstance(error, OstinatoError) and error.__cause__ is None:
            raise
        error = error.__cause__ or error
        size = "×".join(str(n) for n in image.shape[2:])
        raise ConfigError(
            f"{name} does not take {size} images ({str(error)[:120]}). Choose {advice}."
        ) from None


def _part(output: Any, key: str) -> Any:
    return output.get(key) if isinstance(output, dict) else getattr(output, key, None)
