"""From logits to what a request is answered."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ostinato.methods.ostinato.streams import Answer
from ostinato.serve.schema import Guess, ImageAnswer


@dataclass(frozen=True)
class Seen:
    """What the watch is told of an answer: labels and how sure they are, an image each."""

    labels: list[int]
    confidence: list[float]
    source: list[int] | None


def seen(answer: Answer) -> Seen:
    """Labels of whole images; of a label map, its most frequent label."""
    labels, confidence = _summary(answer.logits)
    source = None if answer.source is None else _summary(answer.source)[0]
    return Seen(labels, confidence, source)


def _summary(logits: Tensor) -> tuple[list[int], list[float]]:
    top = logits.softmax(1).max(1)
    if logits.ndim == 2:
        return top.indices.tolist(), top.values.tolist()
    labels = [int(one.flatten().mode().values) for one in top.indices]
    return labels, top.values.flatten(1).mean(1).tolist()


def describe(answer: Answer, names: Sequence[str], *, top: int) -> list[ImageAnswer]:
    """One entry an image.

    Args:
        answer: logits and where they come from.
        names: what the model calls its outputs; may be empty.
        top: guesses an image; 0 gives all.
    """
    dense = answer.logits.ndim > 2
    guesses = None if dense else _guesses(answer.logits, names, top)
    source = None if dense or answer.source is None else _guesses(answer.source, names, top)
    found = []
    for at in range(len(answer.logits)):
        one = ImageAnswer(
            guesses=guesses[at] if guesses is not None else [],
            label_map=_coded(answer.logits[at]) if dense else None,
            domain=answer.domains[at],
            new=answer.far[at],
            distance=round(answer.distance[at], 6),
            trust=answer.trust[at],
            source=source[at] if source is not None else None,
            source_map=_coded(answer.source[at]) if dense and answer.source is not None else None,
        )
        found.append(one)
    return found


def _guesses(logits: Tensor, names: Sequence[str], top: int) -> list[list[Guess]]:
    probabilities = logits.softmax(1)
    count = probabilities.shape[1]
    values, labels = probabilities.topk(min(top, count) if top else count, dim=1)
    return [
        [
            Guess.model_construct(
                label=label, name=names[label] if label < len(names) else None, probability=value
            )
            for label, value in zip(row, sure, strict=True)
        ]
        for row, sure in zip(labels.tolist(), values.tolist(), strict=True)
    ]


def label_png(logits: Tensor) -> bytes:
    """The label of every pixel of (C, H, W) logits as a grey PNG; 16 bits where 8 do not do."""
    labels = logits.argmax(0)
    wide = logits.shape[0] > 256
    array = labels.to(torch.int32).numpy().astype(np.uint16 if wide else np.uint8)
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format="PNG")
    return stream.getvalue()


def _coded(logits: Tensor) -> str:
    return base64.b64encode(label_png(logits)).decode()
