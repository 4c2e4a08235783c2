"""Do stream, method, model and machine fit together? Asked before a run's folder exists."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from torch import Tensor, nn

from ostinato.data.datasets.base import Dataset
from ostinato.data.datasets.folder import FolderDataset
from ostinato.data.segments import Domain, Segment
from ostinato.data.streams import Stream
from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.methods.contract import MethodConfig
from ostinato.models import VisionModel, count_outputs, output_names
from ostinato.registry import METHODS
from ostinato.running.spec import Spec


def rows_of(segment: Segment) -> Iterator[tuple[Domain, int]]:
    """Every image of a stretch: its domain, and its place in the data set."""
    pairs = zip(segment.which.tolist(), segment.where.tolist(), strict=True)
    return ((segment.parts[which], where) for which, where in pairs)


def check_roots(spec: Spec) -> None:
    """Refuse a root that does not exist, with a folder of nearly that name where there is one."""
    places = spec.roots.values() if isinstance(spec.roots, dict) else [spec.roots]
    for place in places:
        if place is not None and not Path(place).exists():
            raise DataError(
                f"The data root {place} does not exist. {_nearest_folder(Path(place))}Name the "
                "folder that holds the data sets; 'ostinato data fetch NAME --root DIR' fills "
                "one, and your own images need none: --data folder:DIR."
            )


def _nearest_folder(place: Path) -> str:
    """A folder beside a missing one that is called almost alike; nothing else would help."""
    if not place.parent.is_dir():
        return f"Nor is there {place.parent}. "
    names = [p.name for p in place.parent.iterdir() if p.is_dir() and not p.name.startswith(".")]
    near = get_close_matches(place.name, sorted(names), n=1, cutoff=0.6)
    return f"Did you mean {place.parent / near[0]}? " if near else ""


def check_task(spec: Spec, stream: Stream, config: MethodConfig) -> None:
    """Refuse a method that does not do the stream's task, or is told what nobody knows."""
    if spec.task not in (None, stream.task):
        raise ConfigError(f"task = {spec.task}, but {spec.stream} streams {stream.task} data.")
    if spec.views and stream.task == "classification":
        raise ConfigError(
            f"{', '.join(spec.views)}: windows and views are for segmentation, and {spec.stream} "
            "streams classification data. Leave them out."
        )
    kind = METHODS[spec.method]
    if stream.task not in kind.info.tasks:
        able = [name for name in METHODS.names() if stream.task in METHODS[name].info.tasks]
        raise ConfigError(
            f"{spec.method} does not do {stream.task}. {did_you_mean(spec.method, able)}"
        )
    mixed = any(len(segment.parts) > 1 for segment in stream.segments)
    if mixed and "domain labels" in kind.needs(config) and not kind.told_by_image:
        raise ConfigError(
            f"{spec.label} is told the true domain, but batches of {spec.stream} mix several: "
            "choose the stream continual or recurring, or discriminator.kind = fdd."
        )


def check_fit(spec: Spec, model: nn.Module, stream: Stream) -> None:
    """One image through the model: does the size fit, are there enough outputs?"""
    vision = VisionModel(model, normalize=spec.normalize)
    segment = stream.segments[0]
    first = next(iter(rows_of(segment)))
    image = _load_one(stream, *first)
    advice = f"another data.transform than {stream.config.transform!r}, or another model"
    outputs = count_outputs(vision, image, spec.model, advice)
    for dataset in {id(p.dataset): p.dataset for s in stream.segments for p in s.parts}.values():
        match_folders(dataset, model, outputs)
    if outputs < stream.num_classes:
        raise ConfigError(
            f"{spec.model} has {outputs} outputs, {spec.stream} needs "
            f"{stream.num_classes}: choose another model, or num_classes with fitting weights."
        )


def match_folders(dataset: Dataset, model: nn.Module, outputs: int) -> None:
    """Number the classes of a user's folders as the model's outputs are, or refuse to guess.

    By name where the model has names; by number where the folders are called 0, 1, ...; in
    order where there are as many folders as outputs and the model has no names.
    """
    if not isinstance(dataset, FolderDataset) or not dataset.named_by_folders:
        return
    names = output_names(model)
    if len(names) != outputs:
        numbers = all(name.isdecimal() for name in dataset.class_names)
        names = tuple(map(str, range(outputs))) if numbers else ()
    if not names and dataset.num_classes == outputs:
        return
    unknown = dataset.match(names) if names else list(dataset.class_names)
    if unknown:
        known = f"names its outputs {', '.join(names[:12])}" if names else "does not name them"
        raise ConfigError(
            f"Which of the model's {outputs} outputs is the folder {unknown[0]!r}? The model "
            f"{known}. Rename the folders, pass data.options.class_names with {outputs} names in "
            "the order of the outputs, or data.options.labels = imagenet for WordNet ids."
        )


def _load_one(stream: Stream, domain: Domain, index: int) -> Tensor:
    from ostinato.data.loading import transform_image

    return transform_image(stream.config.transform, domain.dataset.image(index))[None]
