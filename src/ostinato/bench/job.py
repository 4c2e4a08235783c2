"""From a spec to something that can run: every name looked up, every file found, all of it checked.

Whatever can be known to be wrong is found here, before a run's folder exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, collect_statistics, prepare
from ostinato.bench.models import OWN, check_model, load_model
from ostinato.bench.mosaic import MOSAIC
from ostinato.bench.small import EMBEDDED, TUNE, stand_in
from ostinato.bench.spec import Spec
from ostinato.data.datasets.base import Dataset, open_dataset
from ostinato.data.opening import DomainsConfig, Opener
from ostinato.data.splits import shuffled
from ostinato.data.streams import Stream, build_stream
from ostinato.errors import ConfigError, DataError, MissingResource, OstinatoError, did_you_mean
from ostinato.methods.base import Method
from ostinato.methods.contract import MethodConfig, resolve_config
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.ops.statistics import SourceStatistics
from ostinato.registry import METHODS, STREAMS

PREPARED = "prepared.safetensors"
PLUS = ("imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch")


@dataclass
class Job:
    """A run that is ready to start.

    Attributes:
        spec: with every default written out; what is stored and hashed.
        stream: what is shown.
        model: the source model.
        config: the method's settings.
        notes: what to say beside the result.
    """

    spec: Spec
    stream: Stream
    model: nn.Module
    config: MethodConfig
    notes: tuple[str, ...] = ()

    def adapt(self, folder: Path | None = None) -> Method:
        """The method around the model, with what a run's folder has prepared, or prepared anew."""
        spec = self.spec
        needs = METHODS[spec.method].needs(self.config)
        help_given: dict[str, Any] = {}
        if "source statistics" in needs:
            help_given["statistics"] = self._statistics()
        if "prepared file" in needs:
            help_given["prepared"] = self._prepared(folder)
        settings = self.config.model_dump()
        return adapt(
            self.model, spec.method, normalize=spec.normalize, preset=None, **help_given, **settings
        )

    def _statistics(self) -> SourceStatistics:
        given = self.spec.statistics
        if given == EMBEDDED:
            from ostinato.data.embedded import STATISTICS, asset_path

            return SourceStatistics.load(asset_path(STATISTICS))
        if isinstance(given, str):
            return SourceStatistics.load(given)
        images, _ = self._clean(int(given or 0))
        return collect_statistics(self.model, images, normalize=self.spec.normalize)

    def keep_prepared(self, method: Method, folder: Path) -> None:
        """Write what was prepared for a run beside it, so that going on starts from the same."""
        state = method.resources.prepared
        if state is not None and not isinstance(self.spec.prepared, str):
            save_state(folder / PREPARED, state, {"method": self.spec.method})

    def _prepared(self, folder: Path | None) -> State:
        given, spec = self.spec.prepared, self.spec
        if isinstance(given, str):
            return load_state(given)[0]
        if folder is not None and (folder / PREPARED).is_file():
            return load_state(folder / PREPARED)[0]
        images, labels = self._clean(int(given or 0))
        try:
            return prepare(
                self.model,
                spec.method,
                images.to(spec.device),
                labels.to(spec.device),
                normalize=spec.normalize,
                **self.config.model_dump(),
            )
        except RuntimeError as error:  # shapes that the method does not expect of a model
            raise ConfigError(
                f"{spec.method} cannot be prepared on {spec.model}: {str(error)[:160]}"
            ) from error

    def _clean(self, count: int) -> tuple[Tensor, Tensor]:
        """Clean images and labels, none of which the stream shows."""
        from ostinato.data.loading import load_batch
        from ostinato.data.segments import Domain

        dataset = _clean_dataset(self.spec)
        shown = {_picture(p.dataset, i) for s in self.stream.segments for p, i in _rows(s)}
        names = (dataset.indices(name) for name in dataset.domains())
        order = [int(i) for part in names for i in shuffled(dataset, part, 0)]
        free = [i for i in order if _picture(dataset, i) not in shown][:count]
        if len(free) < count:
            raise ConfigError(
                f"{dataset.name} has {len(free)} images that the stream does not show, not {count}."
            )
        domain = Domain(dataset.name, dataset, dataset.indices(dataset.domains()[0]))
        images, labels, _ = load_batch(
            [(domain, i) for i in free], transform=self.stream.config.transform
        )
        return images, labels


def check_spec(spec: Spec) -> MethodConfig:
    """Look every name and setting up; nothing is opened. Returns the method's settings."""
    kind, shape = METHODS[spec.method], STREAMS[spec.stream]
    check_model(spec)
    shape.config_class.parse({**_with_default_data(spec), "batch_size": spec.batch_size})
    extra = {"seed": spec.seed, "precision": spec.precision}
    config: MethodConfig = resolve_config(kind, _preset(spec), {**spec.settings, **extra})
    if "source statistics" in kind.needs(config) and spec.statistics is None:
        hint = _other_preset(kind, "source statistics")
        raise ConfigError(
            f"{spec.label} needs source statistics: set statistics to a file or to a number of "
            f"clean images (300 are good){', to embedded' * (spec.model in OWN)}{hint}."
        )
    if "prepared file" in kind.needs(config) and spec.prepared is None:
        raise ConfigError(
            f"{spec.label} has to be prepared on clean images: set prepared to a file or to a "
            "number of images (500 are good)."
        )
    if spec.statistics == EMBEDDED and spec.model not in OWN:
        raise ConfigError("The embedded statistics are the embedded model's; count images instead.")
    for key in ("statistics", "prepared"):
        value = getattr(spec, key)
        if isinstance(value, str) and value != EMBEDDED and not Path(value).is_file():
            raise ConfigError(f"{key} = {value}: there is no such file.")
    if spec.cosine and config.lr == 0:
        raise ConfigError("cosine anneals the learning rate, which is 0 here.")
    return config


def open_stream(spec: Spec) -> Stream:
    """Open the data; a missing root is an error that names what is there."""
    options = _with_default_data(spec) | {"batch_size": spec.batch_size}
    options.setdefault("seed", spec.seed)
    if spec.roots == EMBEDDED:
        datasets = {name: stand_in(name) for name in _named(spec, options)}
        return build_stream(spec.stream, options, datasets=datasets)
    own = [n for n in (EMBEDDED, TUNE) if options.get("dataset") == n]
    _check_roots(spec)
    return build_stream(
        spec.stream, options, roots=spec.roots, datasets={name: stand_in(name) for name in own}
    )


def open_job(spec: Spec, stream: Stream | None = None) -> Job:
    """Check a spec of one seed, open its data and model, and show the model one image."""
    if len(spec.seeds) > 1:
        raise ConfigError(f"A job has one seed, this spec {len(spec.seeds)}: take spec.runs().")
    spec = spec.replace(device=_device(spec.device))
    config = check_spec(spec)
    stream = stream or open_stream(spec)
    _check_task(spec, stream, config)
    if spec.cosine:
        config = config.replace(total_steps=len(stream))
    model = load_model(spec)
    _check_fit(spec, model, stream)
    own = {"seed", "precision", "total_steps"}
    data = stream.config.model_dump(mode="json", exclude={"batch_size"})
    spec = spec.replace(
        preset=_preset(spec),
        settings=config.model_dump(mode="json", exclude=own),
        data=data,
        task=stream.task,
    )
    return Job(spec, stream, model, config, stream.notes())


def _preset(spec: Spec) -> str | None:
    """The default of `ostinato.adapt`, written out."""
    if spec.preset is None and spec.method == "dual_expert":
        return "source-free" if spec.statistics is None else "robust"
    return spec.preset


def _other_preset(kind: type[Method], need: str) -> str:
    free = [name for name in kind.presets if need not in kind.needs(resolve_config(kind, name, {}))]
    return f", or choose preset = {free[-1]}" if free else ""


def _with_default_data(spec: Spec) -> dict[str, Any]:
    """The embedded model's own images, where a stream takes any data set and none is named."""
    options = dict(spec.data)
    takes_any = issubclass(STREAMS[spec.stream].config_class, DomainsConfig)
    if takes_any and spec.model == EMBEDDED and spec.roots is None:
        options.setdefault("dataset", EMBEDDED)
    return options


def _named(spec: Spec, options: dict[str, Any]) -> tuple[str, ...]:
    if not issubclass(STREAMS[spec.stream].config_class, DomainsConfig):
        return PLUS
    written = [d.partition(":")[0] for d in options.get("domains", ()) if ":" in d]
    return (options.get("dataset", "imagenet-c"), *written)


def _check_roots(spec: Spec) -> None:
    places = spec.roots.values() if isinstance(spec.roots, dict) else [spec.roots]
    for place in places:
        if place is not None and not Path(place).exists():
            above = Path(place).parent
            there = [p.name for p in sorted(above.iterdir())][:40] if above.is_dir() else []
            hint = did_you_mean(Path(place).name, there) if there else f"Nor is there {above}."
            raise DataError(f"The data root {place} does not exist. {hint}")


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        hint = did_you_mean(name, ("auto", "cpu", "cuda", "mps"))
        raise ConfigError(f"There is no device {name!r}. {hint}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device = {name}, but torch sees no GPU here: use cpu or auto.")
    return name


def _check_task(spec: Spec, stream: Stream, config: MethodConfig) -> None:
    if spec.task not in (None, stream.task):
        raise ConfigError(f"task = {spec.task}, but {spec.stream} streams {stream.task} data.")
    kind = METHODS[spec.method]
    if stream.task not in kind.info.tasks:
        able = [name for name in METHODS.names() if stream.task in METHODS[name].info.tasks]
        raise ConfigError(
            f"{spec.method} does not do {stream.task}. {did_you_mean(spec.method, able)}"
        )
    mixed = any(len(segment.parts) > 1 for segment in stream.segments)
    if mixed and "domain labels" in kind.needs(config):
        raise ConfigError(
            f"{spec.label} is told the true domain, but batches of {spec.stream} mix several: "
            "choose the stream continual or recurring, or discriminator.kind = fdd."
        )


def _check_fit(spec: Spec, model: nn.Module, stream: Stream) -> None:
    """One image through the model: does the size fit, are there enough outputs?"""
    from ostinato.models import VisionModel

    vision = VisionModel(model, normalize=spec.normalize)
    segment = stream.segments[0]
    first = next(iter(_rows(segment)))
    image = _load_one(stream, *first)
    try:
        with torch.no_grad():
            logits = vision(vision.check(image))
    except (RuntimeError, AssertionError, ValueError) as error:
        if isinstance(error, OstinatoError):
            raise
        size = "×".join(str(n) for n in image.shape[2:])
        raise ConfigError(
            f"{spec.model} does not take {size} images ({str(error)[:120]}). Choose another "
            f"data.transform than {stream.config.transform!r}, or another model."
        ) from None
    if logits.shape[1] < stream.num_classes:
        raise ConfigError(
            f"{spec.model} has {logits.shape[1]} outputs, {spec.stream} needs "
            f"{stream.num_classes}: choose another model, or num_classes with fitting weights."
        )


def _load_one(stream: Stream, domain: Any, index: int) -> Tensor:
    from ostinato.data.transforms import transform_image

    return transform_image(stream.config.transform, domain.dataset.image(index))[None]


def _rows(segment: Any) -> Any:
    pairs = zip(segment.which.tolist(), segment.where.tolist(), strict=True)
    return ((segment.parts[which], where) for which, where in pairs)


def _picture(dataset: Dataset, index: int) -> str:
    """What tells pictures apart across data sets: a file's name; a bare number with its set."""
    key = dataset.source_key(index)
    name = key.rpartition("/")[2]
    return key if name.isdecimal() else name


def _clean_dataset(spec: Spec) -> Dataset:
    name = spec.clean or {EMBEDDED: TUNE, MOSAIC: MOSAIC}.get(spec.model)
    if name is None:
        raise MissingResource(
            "Statistics and preparation take clean images: set clean to a data set, such as "
            "imagenet-val."
        )
    if name in (EMBEDDED, TUNE, MOSAIC):
        return stand_in(name)
    roots = None if spec.roots == EMBEDDED else spec.roots
    name, colon, split = name.partition(":")
    options = {"split": split} if colon else {}
    return open_dataset(name, Opener(roots).root(name), **options)
