"""What a run keeps for its report beside the records: pictures, and what the method says of itself.

Pictures are of segmentation: one image a domain, as the source model and the method see it.
The middle image of every stretch is chosen, which is the same image in every round of a stream
that repeats its images. What the untouched source model says is found before the run begins or
goes on, from a model of its own; what the method says is kept as its turn comes. Both lie in the
run's folder, scaled down, and are written whole or not at all, so that a run can stop anywhere.

```
samples/BATCH.npz          image, label and the source model's prediction
samples/BATCH-after.npz    the method's prediction
```

Diagnostics are what a method says of its state after the last batch.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ops.files import write_atomically
from ostinato.running._run_files import read_json, seal, unseal, write_json
from ostinato.running.results import RunFolder
from ostinato.scoring.metrics import IGNORE, mean_iou

if TYPE_CHECKING:
    from torch import Tensor

    from ostinato.data.streams import Stream
    from ostinato.running.job import Job
    from ostinato.types import Batch


_FOLDER, _DIAGNOSTICS = "samples", "diagnostics.json"
_SIDE = 320
"""Pixels of the longer side that are kept."""
_Map = NDArray[np.uint8]


@dataclass(frozen=True)
class Sample:
    """One image of a run.

    Attributes:
        index: the batch it came in.
        round, domain, key: where it stood in the stream.
        image: (H, W, 3) uint8, scaled down.
        label: (H, W) uint8, 255 where nothing counts.
        before: the source model's classes.
        after: the method's classes when the image came.
        before_iou: mIoU of the whole-size image in percent; None where no pixel has a label.
        after_iou: the same of `after`.
    """

    index: int
    round: int
    domain: str
    key: str
    image: _Map
    label: _Map
    before: _Map
    after: _Map
    before_iou: float | None
    after_iou: float | None


class SampleKeeper:
    """Keeps the chosen images of one run.

    Args:
        job: what runs.
        folder: the run's folder.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.place = folder / _FOLDER
        segmentation = job.stream.task == "segmentation"
        self.chosen = frozenset(_middles(job.stream) if segmentation else ())
        missing = [n for n in sorted(self.chosen) if not self._path(n).is_file()]
        if missing:
            self.place.mkdir(parents=True, exist_ok=True)
            self._look(job, missing)

    def keep(self, batch: Batch, logits: Tensor) -> None:
        """Keep the method's answer, where the batch is a chosen one."""
        if batch.index in self.chosen:
            answer, iou = _judge(batch, logits)
            _write(self._path(batch.index, "-after"), after=_shrink(answer), iou=np.array(iou))

    def _path(self, index: int, ending: str = "") -> Path:
        return self.place / f"{index:06d}{ending}.npz"

    def _look(self, job: Job, indices: Iterable[int]) -> None:
        """What a model that nobody adapts says."""
        import torch

        from ostinato.models import VisionModel
        from ostinato.models.loading import load_model

        with torch.random.fork_rng(devices=[]):  # building a model may draw numbers
            vision = VisionModel(load_model(job.spec), normalize=job.spec.normalize)
        for index in indices:
            batch = job.stream[index]
            with torch.no_grad():
                logits = vision(vision.check(batch.images[:1]))
            answer, iou = _judge(batch, logits)
            _write(
                self._path(index),
                image=_shrink(_pixels(batch.images[0])),
                label=_shrink(_labels(batch)),
                before=_shrink(answer),
                iou=np.array(iou),
                round=np.array(batch.round),
                domain=np.array(batch.domain),
                key=np.array(batch.keys[0] if batch.keys else ""),
            )


def _middles(stream: Stream) -> list[int]:
    """The batch in the middle of every stretch, whose first image is taken."""
    size = stream.config.batch_size
    ends = accumulate((-(-len(s) // size) for s in stream.segments), initial=0)
    return [(start + end) // 2 for start, end in pairwise(ends)]


def _judge(batch: Batch, logits: Tensor) -> tuple[_Map, float]:
    """The classes of a batch's first image at its labels' size, and its mIoU in percent or NaN."""
    from torch.nn.functional import interpolate

    scores = logits[:1].detach().float()
    if batch.classes is not None and scores.shape[1] != len(batch.classes):
        scores = scores[:, batch.classes.to(scores.device)]
    truth = _labels(batch)
    if scores.shape[-2:] != truth.shape:
        size = (int(truth.shape[0]), int(truth.shape[1]))
        scores = interpolate(scores, size=size, mode="bilinear", align_corners=False)
    answer = scores.argmax(1)[0].cpu().numpy().astype(np.uint8)
    classes, counted = int(scores.shape[1]), truth != IGNORE
    pairs = truth[counted].astype(np.int64) * classes + answer[counted]
    confusion = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return answer, 100.0 * float(mean_iou(confusion))


def _shrink(picture: _Map) -> _Map:
    """Every n-th pixel, so that the longer side is at most `_SIDE`.

    >>> _shrink(np.zeros((540, 960, 3), np.uint8)).shape
    (180, 320, 3)
    """
    step = -(-max(picture.shape[:2]) // _SIDE)
    return np.ascontiguousarray(picture[step // 2 :: step, step // 2 :: step])


def read_samples(folder: str | Path) -> list[Sample]:
    """The samples that a run has finished, in the order in which they came."""
    found = []
    for path in sorted((Path(folder) / _FOLDER).glob("*-after.npz")):
        first = path.with_name(path.name.replace("-after", ""))
        before, after = _read(first), _read(path)
        try:
            found.append(
                Sample(
                    int(first.stem), int(before["round"]), str(before["domain"]),
                    str(before["key"]), before["image"], before["label"], before["before"],
                    after["after"], _finite(before["iou"]), _finite(after["iou"]),
                )
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise DataError(f"{path} is no sample of a run ({error}); delete it.") from None
    return found


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _pixels(image: Tensor) -> _Map:
    levels = image if image.dtype.itemsize == 1 else (image * 255).round().clamp(0, 255)
    return levels.permute(1, 2, 0).cpu().numpy().astype(np.uint8)


def _labels(batch: Batch) -> _Map:
    if batch.labels is None:
        raise DataError(f"Batch {batch.index} ({batch.domain}) has no labels to show.")
    return batch.labels[0].cpu().numpy().astype(np.uint8)


def _write(path: Path, **arrays: Any) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(path, content.getvalue())


def _read(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it.") from None


def write_diagnostics(folder: RunFolder, values: Mapping[str, Any]) -> None:
    """Keep plain values beside a run's records; a method that is silent leaves no file."""
    if values:
        write_json(folder.path / _DIAGNOSTICS, seal(folder.hash, dict(values)))


def read_diagnostics(folder: RunFolder) -> dict[str, Any]:
    """What was kept; empty where nothing was. A file that was changed is a DataError."""
    place = folder.path / _DIAGNOSTICS
    if not place.is_file():
        return {}
    try:
        return unseal(folder.hash, read_json(place))
    except DataError as error:
        raise DataError(f"{place} {error}") from None
