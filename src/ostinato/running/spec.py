"""What to run, as one typed value: from YAML, from flags or from code, checked before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from ostinato.config import Config, Seed
from ostinato.errors import ConfigError
from ostinato.methods.contract import MethodConfig, choose_method, is_own, owner_of
from ostinato.models import Normalize
from ostinato.models.dense import check_scales, check_windows
from ostinato.ops.precision import Precision
from ostinato.text import DEEPEST, parse_yaml

SEEDS = (2025, 2026, 2027)
"""The seeds of the paper's tables."""
_VIEWS = {"window", "stride", "scales", "flip"}


class Spec(Config):
    """One evaluation. `seeds` with several entries asks for as many runs.

    >>> spec = Spec.parse({"method": "tent", "settings": {"lr": 1e-4}, "seeds": [1, 2]})
    >>> [one.seed for one in spec.runs()]
    [1, 2]
    >>> Spec.parse({"metod": "tent"})
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: Spec has no setting 'metod'. Did you mean 'method'? ...
    """

    model: str = Field(
        "embedded", description="'embedded', a timm name with its tag, or a Hugging Face name"
    )
    weights: str | None = Field(
        None, description="checkpoint file; 'random' for none; the model's own unless given"
    )
    num_classes: int | None = Field(
        None, ge=1, le=1_000_000, description="outputs of a timm model, where not its usual number"
    )
    normalize: Normalize = Field(
        "model", description="input convention: model, or none as in the literature's tables"
    )
    stream: str = Field("continual", description="a registered stream")
    data: dict[str, Any] = Field(default_factory=dict, description="the stream's settings")
    roots: str | dict[str, str] | None = Field(
        None,
        description="a folder per data set, one folder that holds them, or 'embedded' for the "
        "package's own images in their place",
    )
    method: str = Field("ostinato", description="a registered method")
    preset: str | None = Field(None, description="the method's named settings")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings on top of it")
    cosine: bool = Field(False, description="anneal the rate over the stream's length")
    statistics: int | str | None = Field(
        None,
        description="source statistics: a file, 'embedded', or how many clean images to take",
    )
    prepared: int | str | None = Field(
        None, description="a prepared file, or how many clean images to prepare the method from"
    )
    clean: str | None = Field(
        None, description="data set (or DATASET:SPLIT) of clean images for the two above"
    )
    seeds: tuple[Seed, ...] = Field((SEEDS[0],), min_length=1, description="one run for each")
    batch_size: int = Field(50, ge=1, description="images a batch")
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps; auto takes what there is")
    precision: Precision = Field(
        "fp32", description="bf16 runs under autocast; tf32 rounds the products of a GPU's fp32"
    )
    task: Literal["classification", "segmentation"] | None = Field(
        None, description="the stream's own unless given, which then has to agree"
    )

    window: tuple[int, int] | None = Field(
        None, description="segmentation: predict windows of this height and width"
    )
    stride: tuple[int, int] | None = Field(
        None, description="from one window to the next; three quarters of it unless given"
    )
    scales: tuple[float, ...] = Field(
        (), description="segmentation: predict the mean over views at these scales"
    )
    flip: bool = Field(False, description="segmentation: each view mirrored as well")

    @model_validator(mode="before")
    @classmethod
    def _own_method(cls, values: Any) -> Any:
        """A preset of this project's own names its method; neither is chosen by the statistics."""
        if not isinstance(values, dict):
            return values
        given, preset = values.get("method"), values.get("preset")
        if not all(value is None or isinstance(value, str) for value in (given, preset)):
            return values
        if given is None and preset is not None and owner_of(preset) is None:
            return values
        if given is not None and (preset is None or not is_own(given)):
            return values
        method, preset = choose_method(given, preset, values.get("statistics") is not None)
        return {**values, "method": method, "preset": preset}

    @model_validator(mode="after")
    def _possible_views(self) -> Self:
        if self.window is None and self.stride is not None:
            raise ValueError("stride goes with window: write window = [HEIGHT, WIDTH] beside it")
        if self.window is not None:
            check_windows(self.window, self.stride)
        if self.scales:
            check_scales(self.scales)
        return self

    @field_validator("data")
    @classmethod
    def _own_place(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "batch_size" in value:
            raise ValueError("write batch_size beside data, not in it")
        return value

    @field_validator("settings")
    @classmethod
    def _own_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("seed", "precision", "total_steps"):
            if name in value:
                other = {"seed": "seeds", "total_steps": "cosine"}.get(name, name)
                raise ValueError(f"{name} of a run comes from the spec: write {other} beside it")
        return value

    @field_validator("seeds")
    @classmethod
    def _once(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("each seed once: the same seed gives the same run")
        return value

    @property
    def seed(self) -> int:
        """The seed of a spec that has one alone."""
        return self.seeds[0]

    @property
    def label(self) -> str:
        """The method, with its preset where one is named."""
        return self.method if self.preset is None else f"{self.method}:{self.preset}"

    def runs(self) -> list[Spec]:
        """One spec for each seed."""
        return [self.replace(seeds=(seed,)) for seed in self.seeds]

    @property
    def views(self) -> dict[str, Any]:
        """Window and view settings that are in use; empty for the image as it is.

        >>> Spec.parse({"flip": True}).views
        {'flip': True}
        """
        return self.model_dump(mode="json", include=_VIEWS, exclude_defaults=True)

    def stored(self) -> dict[str, Any]:
        """Plain JSON values, as kept with the result.

        Views are left out where there are none, so that a run hashes as it did before specs
        could name them.
        """
        return {**self.model_dump(mode="json", exclude=_VIEWS), **self.views}


class CheckedSpec(Spec):
    """A spec whose names and settings were looked up, and what they came to.

    Whatever takes a spec takes one of these, and does not look anything up again; other seeds and
    another device leave it checked. `running.job.check` makes it.

    >>> from ostinato.running.job import check
    >>> checked = check(Spec(method="tent", settings={"lr": 1e-3}))
    >>> checked.config.lr, checked.replace(seeds=(7,)).config.seed
    (0.001, 7)
    """

    _config: MethodConfig = PrivateAttr()

    @classmethod
    def of(cls, spec: Spec, config: MethodConfig) -> CheckedSpec:
        """A spec together with the method's settings that it asks for."""
        made = cls.model_construct(spec.model_fields_set, **dict(spec))
        made._config = config
        return made

    @property
    def config(self) -> MethodConfig:
        """The method's settings, for the first seed."""
        return self._config

    def replace(self, **changes: Any) -> Self:
        """A copy: still checked if seeds and device alone are changed, else a plain spec."""
        plain = Spec.parse({**self.model_dump(), **changes})
        if not set(changes) <= {"seeds", "device"}:
            return plain  # type: ignore[return-value]
        config = self.config
        if plain.seed != self.seed:
            config = config.replace(seed=plain.seed)
        return type(self).of(plain, config)  # type: ignore[return-value]

    def without(self, **unused: None) -> CheckedSpec:
        """A copy that leaves out help which the method does not need, checked still."""
        return self.of(Spec.parse({**self.model_dump(), **unused}), self.config)


def split_label(text: str) -> tuple[str, str | None]:
    """A method as written on the command line: `name`, or `name:preset`.

    >>> split_label("dual_expert:paper"), split_label("tent")
    (('dual_expert', 'paper'), ('tent', None))
    """
    name, colon, preset = text.partition(":")
    if colon and not preset:
        raise ConfigError(f"{text!r}: write a preset after the colon, or {name!r} alone.")
    return name, preset or None


def parse_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """Settings from the command line; dots go into nested ones, values are read as YAML.

    >>> parse_pairs(["lr=0.01", "discriminator.kind=oracle", "domains=[fog, snow]"])
    {'lr': 0.01, 'discriminator': {'kind': 'oracle'}, 'domains': ['fog', 'snow']}
    """
    result: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise ConfigError(f"{pair!r}: write settings as KEY=VALUE, such as lr=0.001.")
        *outer, last = key.split(".")
        if len(outer) > DEEPEST:
            raise ConfigError(f"{pair!r:.60}: settings lie at most {DEEPEST} deep.")
        place = result
        for name in outer:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{pair!r}: {name!r} already has a value, so it has no parts.")
        place[last] = _number(text)
    return result


def parse_data(words: Iterable[str]) -> dict[str, Any]:
    """A stream's data from the command line: a data set by name, folders, and settings.

    `folder:DIR` is a folder of class folders, shown as it is; several are several domains. With
    `domains=[fog,snow]` beside it, its images are shown under these corruptions.
    `NAME` and `NAME:SPLIT` are registered data sets. Anything else is KEY=VALUE.

    >>> parse_data(["folder:day", "folder:night", "limit=100"])
    {'dataset': 'folder', 'domains': ['day', 'night'], 'limit': 100}
    >>> parse_data(["imagenet-val:tune"])
    {'dataset': 'imagenet-val', 'options': {'split': 'tune'}}
    """
    words = list(words)
    named = [word for word in words if "=" not in word or word.startswith("folder:")]
    given = parse_pairs(word for word in words if word not in named)
    folders = [word.partition(":")[2] for word in named if word.startswith("folder:")]
    others = [word for word in named if not word.startswith("folder:")]
    if len(others) > 1 or (others and folders):
        raise ConfigError(
            f"--data names several data sets ({', '.join(named)}): name one, and its domains with "
            "domains=[...]."
        )
    if folders:
        # Domains named beside folders are corruptions of what the folders hold.
        own = {"options": {"roots": folders}} if "domains" in given else {"domains": folders}
        return merge({"dataset": "folder", **own}, given)
    if others:
        name, colon, split = others[0].partition(":")
        found: dict[str, Any] = {"dataset": name}
        return merge(found | ({"options": {"split": split}} if colon else {}), given)
    return given


def _number(text: str) -> Any:
    """YAML reads 1e-4 as a word; everyone means the number."""
    value = parse_yaml(text, f"{text!r:.60}")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others on top, nested ones merged.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(base)
    for key, value in changes.items():
        known = result.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        result[key] = merge(known, value) if both else value  # type: ignore[arg-type]
    return result
