"""Common forwards: the images of any number of streams, each under its own expert.

`_prepare` routes the images of all questions at once, each by a version that its stream published,
and `Prepared.run` answers them in one forward. What a question is answered depends on its version
and its images alone, not on the company it is answered in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ostinato.domains.table import Array, Decided
from ostinato.experts.stack import Rows
from ostinato.methods.ostinato.desk import InUse, Seated
from ostinato.methods.ostinato.streams import SharedModel
from ostinato.ops.colours import three_colours


@dataclass(frozen=True)
class _Question:
    """Images of one stream, to be answered by one of its versions.

    Attributes:
        asked: the version.
        pixels: (B, 3, H, W) in [0, 1], on the model's device.
        source: also ask the source model.
    """

    asked: InUse
    pixels: Tensor
    source: bool = False


@dataclass(frozen=True)
class Answer:
    """What one question was answered.

    Attributes:
        logits: (B, C), or (B, C, H, W) per pixel; on the CPU.
        domains: of each image; 0 is the source.
        trust: how far each image's expert acted; 0 where the source answered.
        distance: of each image to its nearest domain; 1 is usual.
        far: images that no known domain explains.
        source: the source's logits, where asked for.
    """

    logits: Tensor
    domains: tuple[int, ...]
    trust: tuple[float, ...]
    distance: tuple[float, ...]
    far: tuple[bool, ...]
    source: Tensor | None = None


@dataclass
class Prepared:
    """Questions that have been routed and wait for their forward.

    Attributes:
        model: of all streams.
        pixels: all images, those that the source is asked about once more at the end.
        index: (B,) the stack's row of each image's expert; 0 is the source.
        rows: the stack as it was when they were written.
        decided: of every image, which domain, and how near.
        seated: of every image, which expert, and what is known of it.
        places: per question, where its images are.
        again: (B,) where the source's answer to each image is.
        asked: per question, whether it asked for that.
    """

    model: SharedModel
    pixels: Tensor
    index: Array
    rows: Rows
    decided: Decided
    seated: Seated
    places: list[range]
    again: Array
    asked: list[bool]

    def run(self) -> list[Answer]:
        """One forward for all."""
        return self.launch().answers()

    @torch.no_grad()
    def launch(self) -> Launched:
        """Begin that forward; on a GPU it is under way when this returns."""
        learned = self.seated.learned
        logits = self.model.answer(self.pixels, self.index, self.rows, learned=learned)
        if not logits.is_cuda or logits.ndim > 2:
            return Launched(self, logits.cpu())
        host = torch.empty(logits.shape, pin_memory=True).copy_(logits, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return Launched(self, host, done)


@dataclass(frozen=True)
class Launched:
    """A forward under way, with what it reads: nobody else gets that before it is done.

    Attributes:
        prepared: the questions.
        logits: on the CPU, once it is done.
        done: tells when, on a GPU.
    """

    prepared: Prepared
    logits: Tensor
    done: Any = None

    @torch.no_grad()
    def answers(self) -> list[Answer]:
        """Wait for the forward; what each question is answered."""
        if self.done is not None:
            self.done.synchronize()
        mine, count = self.prepared, len(self.prepared.again)
        own = _tempered(self.logits[:count], mine.seated.heat)
        told = [
            one.tolist()
            for one in (
                mine.seated.domains, mine.seated.trust, mine.decided.distance, mine.decided.far
            )
        ]  # fmt: skip
        found = []
        for place, asked in zip(mine.places, mine.asked, strict=True):
            here = slice(place.start, place.stop)
            source = self.logits[mine.again[here]] if asked else None
            domains, trust, distance, far = (tuple(one[here]) for one in told)
            found.append(Answer(own[here], domains, trust, distance, far, source))
        return found


@torch.no_grad()
def _prepare(model: SharedModel, questions: Sequence[_Question]) -> Prepared:
    """Route every image by its own stream's version; all images have one size."""
    sizes = [len(one.pixels) for one in questions]
    return prepare_all(
        model,
        torch.cat([one.pixels for one in questions]),
        [one.asked for one in questions],
        sizes,
        [one.source for one in questions],
    )


@torch.no_grad()
def prepare_all(
    model: SharedModel,
    pixels: Tensor,
    versions: Sequence[InUse],
    sizes: Sequence[int],
    sources: Sequence[bool],
) -> Prepared:
    """The same for images that lie in one tensor already.

    Args:
        model: of all streams.
        pixels: (B, 3, H, W) in [0, 1], on its device.
        versions: that answer.
        sizes: how many of the images each one answers.
        sources: whether the source is to answer those too.
    """
    assert model.content is not None  # streams refuse statistics without it
    placed = model.content.place(model.describe(three_colours(pixels)))
    decided, seated = model.desk.route(versions, placed, sizes)
    count, ends = len(pixels), accumulate(sizes)
    places = [range(start, stop) for start, stop in pairwise([0, *ends])]
    # What the source answers anyway is not asked twice.
    doubled = np.flatnonzero(np.repeat(sources, sizes) & (seated.index > 0))
    again, index = np.arange(count), seated.index
    if len(doubled):
        again[doubled] = count + np.arange(len(doubled))
        index = np.concatenate([index, np.zeros(len(doubled), index.dtype)])
        pixels = torch.cat([pixels, pixels[torch.from_numpy(doubled).to(pixels.device)]])
    rows = model.stack.now
    return Prepared(model, pixels, index, rows, decided, seated, places, again, list(sources))


def _tempered(logits: Tensor, heat: Array) -> Tensor:
    """Logits (B, C, ...) divided by each image's temperature."""
    if (heat == 1).all():
        return logits
    scale = torch.from_numpy(1 / heat).to(logits.dtype)
    return logits * scale.view(-1, *[1] * (logits.ndim - 1))
