"""From logits and labels to what a record keeps, how sure answers were, and what adapting cost.

Counting over tensors is torchmetrics' work; what is here turns counts into scores. torch loads
when a function that needs it is called, so that reading records does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ostinato.config import Config
from ostinato.errors import DataError
from ostinato.scoring.record import Record, RecordedDecision, finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ostinato.types import Batch, StepOutput


IGNORE = 255
_BINS = 15


class Bin(NamedTuple):
    """One bar of a reliability diagram; its sums add up across batches.

    >>> half = Bin(answers=4, confidence_sum=3.6, correct=2)
    >>> half.confidence, half.accuracy
    (0.9, 0.5)
    """

    answers: int
    confidence_sum: float
    correct: int

    @property
    def confidence(self) -> float:
        """Mean confidence, 0 where the bin is empty."""
        return self.confidence_sum / self.answers if self.answers else 0.0

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0 where the bin is empty."""
        return self.correct / self.answers if self.answers else 0.0


def _bin_answers(confidence: ArrayLike, correct: ArrayLike, bins: int = _BINS) -> tuple[Bin, ...]:
    """Sort answers into equal bins [a, b) of confidence; 1.0 belongs to the last.

    >>> [tuple(b) for b in _bin_answers([0.1, 0.9, 1.0], [0, 1, 0], bins=2)]
    [(1, 0.1, 0), (2, 1.9, 1)]
    """
    values = np.asarray(confidence, dtype=np.float64).ravel()
    right = np.asarray(correct, dtype=np.float64).ravel()
    place = np.minimum((values * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    total = np.bincount(place, weights=values, minlength=bins)
    hits = np.bincount(place, weights=right, minlength=bins)
    return tuple(Bin(int(n), float(c), int(h)) for n, c, h in zip(count, total, hits, strict=True))


def _add_bins(many: Iterable[Sequence[tuple[int, float, int]]]) -> tuple[Bin, ...]:
    """Add the bins of several batches.

    >>> [tuple(b) for b in _add_bins([[(1, 0.5, 1)], [(1, 0.25, 0)]])]
    [(2, 0.75, 1)]
    """
    stacked = [np.asarray(bins, dtype=np.float64) for bins in many]
    if not stacked:
        return ()
    if len({part.shape for part in stacked}) > 1:
        raise DataError("These records were binned differently; compare runs of one version.")
    total: NDArray[np.float64] = np.sum(stacked, axis=0)
    return tuple(Bin(int(n), float(c), int(h)) for n, c, h in total)


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Expected calibration error (ECE): the mean |accuracy − confidence|, weighted by answers.

    >>> round(calibration_error(_bin_answers([0.8, 0.8], [1, 0])), 6)
    0.3
    """
    total = sum(b.answers for b in bins)
    if total == 0:
        return None
    return sum(abs(b.correct - b.confidence_sum) for b in bins) / total


def reliability(records: Iterable[Record], bins: int = _BINS) -> tuple[Bin, ...]:
    """The bins of a run's reliability diagram, from its records alone."""
    confidence: list[float] = []
    hits: list[int] = []
    binned = []
    for record in records:
        if record.bins:
            binned.append(record.bins)
        else:
            confidence.extend(record.confidence)
            hits.extend(map(int, record.hits))
    if confidence:
        binned.append(_bin_answers(confidence, hits, bins))
    return _add_bins(binned)


def class_iou(confusion: ArrayLike) -> NDArray[np.float64]:
    """Intersection over union of every class, in [0, 1], of (..., C, C) counts, labels as rows.

    NaN for a class that neither the labels nor the predictions hold.

    >>> class_iou([[3, 1, 0], [0, 4, 0], [0, 0, 0]]).tolist()
    [0.75, 0.8, nan]
    """
    counts = np.asarray(confusion, dtype=np.float64)
    hit = np.diagonal(counts, axis1=-2, axis2=-1)
    union = counts.sum(-1) + counts.sum(-2) - hit
    result: NDArray[np.float64] = np.full_like(union, np.nan)
    np.divide(hit, union, out=result, where=union > 0)
    return result


def mean_iou(confusion: ArrayLike) -> NDArray[np.float64]:
    """Mean intersection over union, in [0, 1], of (..., C, C) counts with labels as rows.

    A class that neither the labels nor the predictions hold does not count. NaN where none does.

    >>> float(mean_iou([[3, 1, 0], [0, 4, 0], [0, 0, 0]]))
    0.775
    """
    share = class_iou(confusion)
    classes = np.isfinite(share).sum(-1)
    result: NDArray[np.float64] = np.full(classes.shape, np.nan)
    np.divide(np.nansum(share, -1), classes, out=result, where=classes > 0)
    return result


def _score_images(logits: Tensor, labels: Tensor) -> tuple[str, tuple[float, ...]]:
    """Right or wrong ("1"/"0") and the confidence of every image.

    An answer that is not a number is wrong, with no confidence.

    >>> import torch
    >>> _score_images(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    ('10', (0.8808, 0.5))
    """
    if labels.shape != logits.shape[:1]:
        raise DataError(f"{tuple(labels.shape)} labels do not fit {tuple(logits.shape)} logits.")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise DataError(f"A label lies outside the model's {logits.shape[1]} outputs.")
    confidence, answer = logits.detach().float().softmax(1).max(1)
    valid = confidence.isfinite()
    hits = ((answer == labels.to(answer.device)) & valid).tolist()
    rounded = (round(value, 5) for value in confidence.where(valid, 0.0).tolist())
    return "".join("1" if hit else "0" for hit in hits), tuple(rounded)


def score_pixels(
    logits: Tensor, labels: Tensor, ignore: int = IGNORE
) -> tuple[tuple[tuple[int, ...], ...], tuple[Bin, ...]]:
    """Per-image confusion counts and the batch's confidence bins, over labelled pixels.

    Logits of another size are brought to the labels' size first, bilinearly.
    """
    from torch.nn.functional import interpolate
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    if logits.ndim != 4 or labels.ndim != 3 or len(logits) != len(labels):
        raise DataError(
            f"{tuple(labels.shape)} labels do not fit {tuple(logits.shape)} logits: a label map "
            "(B, H, W) takes a model that predicts per pixel, (B, C, h, w)."
        )
    scores = logits.detach().float()
    if scores.shape[-2:] != labels.shape[-2:]:
        size = (int(labels.shape[-2]), int(labels.shape[-1]))
        scores = interpolate(scores, size=size, mode="bilinear", align_corners=False)
    labels = labels.to(scores.device)
    classes = int(scores.shape[1])
    confidence, answer = scores.softmax(1).max(1)
    counted = labels != ignore
    known = labels[counted]
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise DataError(
            f"A label lies outside the model's {classes} classes: the labels run from "
            f"{int(known.min())} to {int(known.max())} (pixels that do not count are {ignore})."
        )
    confusion = tuple(
        tuple(
            multiclass_confusion_matrix(
                one, truth, num_classes=classes, ignore_index=ignore, validate_args=False
            )
            .flatten()
            .tolist()
        )
        for one, truth in zip(answer, labels, strict=True)
    )
    sure = confidence[counted].nan_to_num(0.0).cpu().numpy()
    return confusion, _bin_answers(sure, (answer == labels)[counted].cpu().numpy())


def record_step(
    run: str,
    batch: Batch,
    output: StepOutput,
    *,
    trained: int = 0,
    peak_memory: int | None = None,
    descriptor: Sequence[float] = (),
) -> Record:
    """The record of one step. The labels meet the logits here and nowhere else."""
    if batch.labels is None:
        raise DataError(f"Batch {batch.index} ({batch.domain}) has no labels to measure against.")
    logits = output.logits
    if batch.classes is not None and logits.shape[1] != len(batch.classes):
        logits = logits[:, batch.classes.to(logits.device)]
    hits, classes = "", 0
    confidence: tuple[float, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    bins: tuple[Bin, ...] = ()
    if batch.labels.ndim == 1:
        hits, confidence = _score_images(logits, batch.labels)
        correct, counted = hits.count("1"), len(hits)
    else:
        confusion, bins = score_pixels(logits, batch.labels)
        classes = int(logits.shape[1])
        correct, counted = sum(b.correct for b in bins), sum(b.answers for b in bins)
    decision = None if output.decision is None else RecordedDecision.of(output.decision)
    return Record(
        run=run,
        index=batch.index,
        round=batch.round,
        domain=batch.domain,
        images=len(batch),
        correct=correct,
        counted=counted,
        keys=batch.keys,
        image_domains=batch.image_domains,
        hits=hits,
        confidence=confidence,
        classes=classes,
        confusion=confusion,
        bins=bins,
        decision=decision,
        descriptor=tuple(float(value) for value in descriptor),
        trust=tuple(round(float(value), 4) for value in output.trust),
        loss=finite(output.loss),
        used=output.used,
        updated=output.updated,
        events=output.events,
        trained=trained,
        seconds=output.seconds,
        peak_memory=peak_memory,
    )


def reset_peak(device: torch.device) -> None:
    """Start measuring `peak_memory` afresh, where the device can."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Bytes at the highest point: of the GPU since `reset_peak`, else of the whole process."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # the module is missing on Windows
        return None
    import sys

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used) if sys.platform == "darwin" else int(used) * 1024


class Cost(Config):
    """What adapting cost.

    Attributes:
        images_per_second: over all steps but the warm-up.
        seconds_per_batch: the median step.
        peak_memory: bytes, None where no step told.
        trained: parameters trained by the largest step.

    >>> Cost(images_per_second=50.0, seconds_per_batch=1.0, peak_memory=None, trained=0).trained
    0
    """

    images_per_second: float | None
    seconds_per_batch: float | None
    peak_memory: int | None
    trained: int


def cost(records: Sequence[Record], warmup: int = 1) -> Cost:
    """Throughput, memory and trained parameters of a run.

    The first `warmup` steps (compilation, caches) do not count towards the time, unless there
    are no others.
    """
    timed = [r for r in records if r.seconds > 0]
    timed = timed[warmup:] or timed
    total = sum(r.seconds for r in timed)
    memory = [r.peak_memory for r in records if r.peak_memory is not None]
    return Cost(
        images_per_second=sum(r.images for r in timed) / total if timed else None,
        seconds_per_batch=float(np.median([r.seconds for r in timed])) if timed else None,
        peak_memory=max(memory, default=None),
        trained=max((r.trained for r in records), default=0),
    )
