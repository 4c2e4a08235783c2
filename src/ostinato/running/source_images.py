"""Source images for a preparation: from a labelled folder, an npz file or a registered data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import Dataset, open_dataset
from ostinato.data.datasets.folder import FolderDataset
from ostinato.data.loading import load_batch
from ostinato.data.mosaic import MOSAIC
from ostinato.data.opening import Opener
from ostinato.data.segments import Domain, shuffled
from ostinato.data.stand_ins import EMBEDDED, TUNE, stand_in
from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.models import Normalize, VisionModel, count_outputs
from ostinato.registry import DATASETS
from ostinato.running._fit import match_folders

_USUAL = 500
"""Images that are taken where no number is given and there are as many."""


@dataclass(frozen=True)
class SourceImages:
    """Images as a model gets them, and their labels among its outputs.

    Attributes:
        images: (N, 3, H, W) uint8.
        labels: one per image (or a map each); None where they do not fit the model.
        transform: how they were resized.
        note: what is worth saying about them; empty where nothing is.

    >>> import torch
    >>> SourceImages(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), None, "none").labels is None
    True
    """

    images: Tensor
    labels: Tensor | None
    transform: str
    note: str = ""


def open_source(text: str, root: str | Path | None = None) -> Dataset:
    """Open what `--data` names: DATASET, DATASET:SPLIT, a labelled folder or an npz file.

    A registered name goes before a folder of that name; `./NAME` is the folder.

    Args:
        text: what was written.
        root: the folder that holds the data set, or a folder per data set;
            the environment variable OSTINATO_DATA unless given.

    >>> open_source("embedded-tune").num_classes
    10
    """
    name, colon, split = text.partition(":")
    if name in (EMBEDDED, TUNE, MOSAIC):
        return stand_in(name)
    if name in DATASETS and name not in ("folder", "array"):
        place = Opener(root).root(name)
        if root is not None and not place.is_dir():
            place = Path(root)
        return open_dataset(name, place, **({"split": split} if colon else {}))
    path = Path(text) if root is None else Path(root) / text
    if path.suffix == ".npz" and path.is_file():
        return open_dataset("array", path)
    if path.is_dir():
        return _folder(path)
    hint = did_you_mean(name, [EMBEDDED, TUNE, MOSAIC, *DATASETS])
    raise DataError(f"There is no folder {path}, and no data set of that name. {hint}")


def _folder(path: Path) -> Dataset:
    """Folders named by WordNet ids are ImageNet's classes, any others the user's own."""
    from ostinato.data.datasets.labelled import wordnet_index

    dataset = open_dataset("folder", path)
    if all(name in wordnet_index() for name in dataset.class_names):
        return open_dataset("folder", path, labels="imagenet")
    return dataset


def load_source(
    dataset: Dataset,
    model: nn.Module,
    *,
    count: int | None = None,
    transform: str | None = None,
    normalize: Normalize = "model",
    seed: int = 0,
) -> SourceImages:
    """A sample of a data set, sized for the model; the same sample whenever the seed is.

    Args:
        dataset: what to take from.
        model: what the images are for.
        count: how many; 500 unless given, or all where there are fewer.
        transform: resizing by name; chosen by the model's input size unless given.
        normalize: the model's input convention.
        seed: of the choice of images.
    """
    everything = np.concatenate([dataset.indices(name) for name in dataset.domains()])
    order = shuffled(dataset, everything, seed).tolist()
    if count is not None and not 1 <= count <= len(order):
        raise ConfigError(f"{dataset.name} has {len(order)} images, so take 1 to {len(order)}.")
    chosen = order[: count or _USUAL]
    transform = transform or _fitting_transform(model, dataset, chosen[:8])
    domain = Domain(dataset.name, dataset, dataset.indices(dataset.domains()[0]))
    rows = [(domain, i) for i in chosen]
    images, labels, _ = load_batch(rows, transform=transform, resize_labels=True)
    vision = VisionModel(model, normalize=normalize)
    advice = f"another transform than {transform!r}"
    outputs = count_outputs(vision, images[:1], "The model", advice)
    if isinstance(dataset, FolderDataset):
        try:
            match_folders(dataset, model, outputs)
        except ConfigError as error:
            note = f"{error} Until then the model's own predictions serve as labels."
            return SourceImages(images, None, transform, note)
        labels = torch.tensor([dataset.label(i) for i in chosen])
    if outputs != dataset.outputs:
        note = (
            f"{dataset.name} has {dataset.outputs} classes, the model {outputs} outputs: its own "
            "predictions serve as labels."
        )
        return SourceImages(images, None, transform, note)
    if dataset.classes is not None:
        labels = dataset.classes[labels]
    return SourceImages(images, labels, transform)


def _fitting_transform(model: nn.Module, dataset: Dataset, indices: list[int]) -> str:
    """The usual resizing for a model's input size; none where images have it already."""
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    wanted = tuple(config.get("input_size", ()))
    found = {tuple(dataset.image(i).shape) for i in indices}
    if not wanted or found == {wanted}:
        return "none"
    if wanted[1] == 384 and dataset.constants == "cifar":
        return "resize384-bilinear"
    uniform = dataset.constants == "cifar" or isinstance(dataset, ArrayDataset)
    if wanted[1] == 224:
        return "resize224" if uniform else "resize256-crop224"
    short = round(wanted[1] / float(config.get("crop_pct") or 0.875))
    return f"resize{short}-crop{wanted[1]}"
