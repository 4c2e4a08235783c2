"""From a spec to something that can run: every name looked up, every file found, all of it checked.

Whatever can be known to be wrong is found here, before a run's folder exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ostinato.api import adapt_by, collect_statistics, prepare
from ostinato.data.corruptions import corrupt
from ostinato.data.datasets.base import Dataset, open_dataset
from ostinato.data.mosaic import MOSAIC
from ostinato.data.opening import DomainsConfig, Opener
from ostinato.data.segments import shuffled
from ostinato.data.stand_ins import EMBEDDED, TUNE, stand_in
from ostinato.data.streams import Stream, build_stream
from ostinato.errors import ConfigError, MissingResource
from ostinato.methods.base import Method
from ostinato.methods.contract import (
    MethodConfig,
    Need,
    choose_method,
    free_presets,
    resolve_config,
)
from ostinato.models.loading import check_model, load_model
from ostinato.ops.processes import ALONE, Processes
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.ops.statistics import SourceStatistics
from ostinato.registry import METHODS, STREAMS
from ostinato.running._fit import check_fit, check_roots, check_task, rows_of
from ostinato.running._run_files import alone
from ostinato.running.devices import check_device, name_device
from ostinato.running.provenance import hash_names, hash_tensors, spec_hash
from ostinato.running.spec import CheckedSpec, Spec

_PREPARED = "prepared.safetensors"
_PLUS = ("imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch")


@dataclass
class Job:
    """A run that is ready to start.

    Attributes:
        spec: with every default written out; what is stored and hashed.
        stream: what is shown.
        model: the source model.
        config: the method's settings.
        notes: what to say beside the result.

    >>> from ostinato.running.spec import Spec
    >>> job = open_job(Spec(method="tent", data={"limit": 5, "domains": ["fog"]}))
    >>> len(job.stream), job.config.seed == job.spec.seed
    (1, True)
    """

    spec: Spec
    stream: Stream
    model: nn.Module
    config: MethodConfig
    notes: tuple[str, ...] = ()

    def adapt(
        self,
        folder: Path | None = None,
        cache: Path | None = None,
        processes: Processes = ALONE,
    ) -> Method:
        """The method around the model, with what was prepared for it, or prepared anew.

        Args:
            folder: a run's folder, whose prepared file comes first.
            cache: where preparations are kept that runs can share.
            processes: those that do the run together.
        """
        kind = METHODS[self.spec.method]
        needs = kind.needs(self.config)
        help_given: dict[str, Any] = {}
        if "source statistics" in needs:
            help_given["statistics"] = self._statistics()
        if "prepared file" in needs:
            help_given["prepared"] = self._prepared(folder, cache)
        help_given |= {"normalize": self.spec.normalize, "group": processes}
        return adapt_by(self.model, kind, self.config, **help_given)

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
            save_state(folder / _PREPARED, state, {"method": self.spec.method})

    def _prepared(self, folder: Path | None, cache: Path | None) -> State:
        given, spec = self.spec.prepared, self.spec
        if isinstance(given, str):
            return load_state(given)[0]
        if folder is not None and (folder / _PREPARED).is_file():
            return load_state(folder / _PREPARED)[0]
        dataset, chosen = self._choose(int(given or 0))
        if cache is None:
            return self._prepare(dataset, chosen)
        keys = [dataset.key(i) for i in chosen]
        shared = cache / f"{spec.method}-{self._preparation(keys)}.safetensors"
        with alone(shared):  # rows side by side need it at the same time
            if not shared.is_file():
                save_state(shared, self._prepare(dataset, chosen), {"method": spec.method})
            return load_state(shared)[0]

    def _prepare(self, dataset: Dataset, chosen: list[int]) -> State:
        images, labels = self._load(dataset, chosen)
        spec = self.spec
        try:
            return prepare(
                self.model,
                spec.method,
                images.to(spec.device),
                labels.to(spec.device),
                normalize=spec.normalize,
                **self._recipe().model_dump(),
            )
        except RuntimeError as error:  # shapes that the method does not expect of a model
            raise ConfigError(
                f"{spec.method} cannot be prepared on {spec.model}: {str(error)[:160]}"
            ) from error

    def _preparation(self, keys: list[str]) -> str:
        """A hash of all that a preparation rests on."""
        config = self._recipe().model_dump(mode="json")
        weights = hash_tensors(self.model.state_dict())
        parts = [self.spec.method, self.spec.normalize, weights, self.stream.config.transform]
        return spec_hash(
            {"parts": parts, "config": config, "images": hash_names(keys), **self.spec.views}
        )

    def _recipe(self) -> MethodConfig:
        """The settings that a preparation is made under: one for all seeds and online rates.

        Whoever deploys a method prepares it once, so what a run draws and how fast it learns
        later are no part of it.
        """
        kind = METHODS[self.spec.method]
        usual = kind.Config()
        rates = {name: getattr(usual, name) for name in kind.rates}
        recipe: MethodConfig = self.config.replace(seed=0, total_steps=None, **rates)
        return recipe

    def _clean(self, count: int) -> tuple[Tensor, Tensor]:
        """Clean images and labels, none of which the stream shows."""
        return self._load(*self._choose(count))

    def _choose(self, count: int) -> tuple[Dataset, list[int]]:
        dataset = _clean_dataset(self.spec)
        shown = {_picture(p.dataset, i) for s in self.stream.segments for p, i in rows_of(s)}
        names = (dataset.indices(name) for name in dataset.domains())
        order = [int(i) for part in names for i in shuffled(dataset, part, 0)]
        free = [i for i in order if _picture(dataset, i) not in shown][:count]
        if len(free) < count:
            raise ConfigError(
                f"{dataset.name} has {len(free)} images that the stream does not show, not {count}."
            )
        return dataset, free

    def _load(self, dataset: Dataset, chosen: list[int]) -> tuple[Tensor, Tensor]:
        from ostinato.data.loading import load_batch
        from ostinato.data.segments import Domain

        domain = Domain(dataset.name, dataset, dataset.indices(dataset.domains()[0]))
        rows = [(domain, i) for i in chosen]
        images, labels, _ = load_batch(rows, transform=self.stream.config.transform)
        return images, labels


def check(spec: Spec) -> CheckedSpec:
    """The spec with its names and settings looked up, once for all that is done with it."""
    return spec if isinstance(spec, CheckedSpec) else CheckedSpec.of(spec, _check_spec(spec))


def _check_spec(spec: Spec) -> MethodConfig:
    """Look every name and setting up; nothing is opened. Returns the method's settings."""
    if isinstance(spec, CheckedSpec):
        return spec.config
    return _look_up(spec)


def _look_up(spec: Spec) -> MethodConfig:
    kind, shape = METHODS[spec.method], STREAMS[spec.stream]
    check_model(spec)
    options = {**_with_default_data(spec), "batch_size": spec.batch_size}
    shown = shape.Config.parse(options)
    if spec.cosine and shown.reset != "never":
        raise ConfigError(
            "cosine anneals over the whole stream, reset=domain starts over within it: leave one "
            "of them out."
        )
    extra = {"seed": spec.seed, "precision": spec.precision}
    config: MethodConfig = resolve_config(kind, _preset(spec), {**spec.settings, **extra})
    if "source statistics" in kind.needs(config) and spec.statistics is None:
        hint = _other_preset(kind, "source statistics")
        raise ConfigError(
            f"{spec.label} needs source statistics: set statistics to a file or to a number of "
            f"clean images (300 are good){', to embedded' * (spec.model == EMBEDDED)}{hint}."
        )
    if "prepared file" in kind.needs(config) and spec.prepared is None:
        raise ConfigError(
            f"{spec.label} has to be prepared on clean images: set prepared to a file or to a "
            "number of images (500 are good)."
        )
    if spec.statistics == EMBEDDED and spec.model != EMBEDDED:
        raise ConfigError("The embedded statistics are the embedded model's; count images instead.")
    for key in ("statistics", "prepared"):
        value = getattr(spec, key)
        if isinstance(value, str) and value != EMBEDDED and not Path(value).is_file():
            raise ConfigError(f"{key} = {value}: there is no such file.")
    if spec.cosine and config.lr == 0:
        raise ConfigError("cosine anneals the learning rate, which is 0 here.")
    return config


@dataclass(frozen=True)
class _CorruptOn:
    """Makes corruptions on an accelerator, where they take a hundredth of the time."""

    device: str

    def __call__(self, images: Tensor, *how: Any, **constants: Any) -> Tensor:
        """`ostinato.data.corruptions.corrupt`, there and back."""
        return corrupt(images.to(self.device), *how, **constants).cpu()


def open_stream(spec: Spec) -> Stream:
    """Open the data; a missing root is an error that names what is there."""
    far = _CorruptOn(spec.device) if spec.device.startswith("cuda") else None
    options = _with_default_data(spec) | {"batch_size": spec.batch_size}
    options.setdefault("seed", spec.seed)
    if spec.roots == EMBEDDED:
        datasets = {name: stand_in(name) for name in _named(spec, options)}
        return build_stream(spec.stream, options, datasets=datasets, corrupt=far)
    own = [n for n in (EMBEDDED, TUNE) if options.get("dataset") == n]
    check_roots(spec)
    known = {name: stand_in(name) for name in own}
    return build_stream(spec.stream, options, roots=spec.roots, datasets=known, corrupt=far)


def resolve(spec: Spec, stream: Stream | None = None) -> tuple[Spec, MethodConfig, Stream]:
    """Check a spec of one seed and write out all that it leaves open; no model is needed yet."""
    if len(spec.seeds) > 1:
        raise ConfigError(f"A job has one seed, this spec {len(spec.seeds)}: take spec.runs().")
    spec = spec.replace(device=name_device(spec.device))
    config = _check_spec(spec)
    stream = stream or open_stream(spec)
    check_task(spec, stream, config)
    if spec.cosine:
        config = config.replace(total_steps=len(stream))
    own = {"seed", "precision", "total_steps"}
    resolved = spec.replace(
        preset=_preset(spec),
        settings=config.model_dump(mode="json", exclude=own),
        data=stream.config.model_dump(mode="json", exclude={"batch_size"}),
        task=stream.task,
    )
    return resolved, config, stream


def open_job(spec: Spec, stream: Stream | None = None) -> Job:
    """Check a spec of one seed, open its data and model, and show the model one image."""
    check_device(spec.device)
    resolved, config, stream = resolve(spec, stream)
    model = load_model(resolved)
    check_fit(resolved, model, stream)
    return Job(resolved, stream, model, config, stream.notes())


def _preset(spec: Spec) -> str | None:
    """The default of `ostinato.adapt`, written out."""
    return choose_method(spec.method, spec.preset, spec.statistics is not None)[1]


def _other_preset(kind: type[Method], need: Need) -> str:
    free = free_presets(kind.name, need)
    return f", or choose preset = {free[-1]}" if free else ""


def _with_default_data(spec: Spec) -> dict[str, Any]:
    """The embedded model's own images, where a stream takes any data set and none is named."""
    options = dict(spec.data)
    takes_any = issubclass(STREAMS[spec.stream].Config, DomainsConfig)
    if takes_any and spec.model == EMBEDDED and spec.roots is None:
        options.setdefault("dataset", EMBEDDED)
    return options


def _named(spec: Spec, options: dict[str, Any]) -> tuple[str, ...]:
    if not issubclass(STREAMS[spec.stream].Config, DomainsConfig):
        return _PLUS
    written = [d.partition(":")[0] for d in options.get("domains") or () if ":" in d]
    return (options.get("dataset", "imagenet-c"), *written)


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
