"""From logits to what a request is answered."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ostinato.methods.ostinato.common import Answer

FEW = 5
"""Guesses that are looked for in all answers of a forward at once."""


@dataclass(frozen=True)
class Ranked:
    """The likeliest labels of each image, the first one first, and their probabilities."""

    labels: list[list[int]]
    shares: list[list[float]]

    def cut(self, start: int, stop: int) -> Ranked:
        """Those of some images."""
        return Ranked(self.labels[start:stop], self.shares[start:stop])


def rank(logits: Tensor, top: int) -> Ranked:
    """The likeliest labels of (B, C) logits; 0 gives all.

    >>> rank(torch.tensor([[0.0, 2.0, 1.0]]), 2).labels
    [[1, 2]]
    """
    count = logits.shape[1]
    shares, labels = logits.softmax(1).topk(min(top, count) if top else count, dim=1)
    return Ranked(labels.tolist(), shares.tolist())


def rank_all(answers: Sequence[Answer]) -> list[Ranked | None]:
    """A few guesses for every answer, by one pass over all of them; None for label maps."""
    if any(answer.logits.ndim > 2 for answer in answers):
        return [None] * len(answers)
    found = rank(torch.cat([answer.logits for answer in answers]), FEW)
    ends = list(accumulate(len(answer.logits) for answer in answers))
    return [found.cut(start, stop) for start, stop in pairwise([0, *ends])]


@dataclass(frozen=True)
class Seen:
    """What the watch is told of an answer: labels and how sure they are, an image each."""

    labels: list[int]
    confidence: list[float]
    source: list[int] | None


def seen(answer: Answer, ranked: Ranked | None = None) -> Seen:
    """Labels of whole images; of a label map, its most frequent label."""
    source = None if answer.source is None else _summary(answer.source)[0]
    if ranked is None:
        return Seen(*_summary(answer.logits), source)
    first = [row[0] for row in ranked.labels]
    return Seen(first, [row[0] for row in ranked.shares], source)


def _summary(logits: Tensor) -> tuple[list[int], list[float]]:
    if logits.ndim == 2:
        found = rank(logits, 1)
        return [row[0] for row in found.labels], [row[0] for row in found.shares]
    top = logits.softmax(1).max(1)
    labels = [int(one.flatten().mode().values) for one in top.indices]
    return labels, top.values.flatten(1).mean(1).tolist()


def describe(
    answer: Answer,
    names: Sequence[str],
    top: int,
    ranked: Ranked | None = None,
    *,
    source: bool,
) -> list[dict[str, Any]]:
    """One entry an image, with the fields of `ImageAnswer`.

    Args:
        answer: logits and where they come from.
        names: what the model calls its outputs; may be empty.
        top: guesses an image; 0 gives all.
        ranked: a few guesses, where they have been looked for.
        source: say what the source answers too.
    """
    dense = answer.logits.ndim > 2
    others = answer.source if source else None
    guesses = source_guesses = None
    if not dense:
        enough = ranked is not None and 0 < top <= FEW
        guesses = _guesses(ranked if enough and ranked else rank(answer.logits, top), names, top)
        source_guesses = None if others is None else _guesses(rank(others, top), names, top)
    return [
        {
            "guesses": [] if guesses is None else guesses[at],
            "label_map": _coded(answer.logits[at]) if dense else None,
            "domain": answer.domains[at],
            "new": answer.far[at],
            "distance": round(answer.distance[at], 6),
            "trust": answer.trust[at],
            "source": None if source_guesses is None else source_guesses[at],
            "source_map": _coded(others[at]) if dense and others is not None else None,
        }
        for at in range(len(answer.logits))
    ]


def _guesses(ranked: Ranked, names: Sequence[str], top: int) -> list[list[dict[str, Any]]]:
    most = top or None
    return [
        [
            {
                "label": label,
                "name": names[label] if label < len(names) else None,
                "probability": share,
            }
            for label, share in zip(labels[:most], shares[:most], strict=True)
        ]
        for labels, shares in zip(ranked.labels, ranked.shares, strict=True)
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
