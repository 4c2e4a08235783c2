"""From names in a spec to open data sets and domains."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, field_serializer, field_validator

from ostinato.data.corruptions import COMMON, DRIVING, EXTRA
from ostinato.data.datasets.base import Dataset, check_severity, open_dataset
from ostinato.data.segments import Domain
from ostinato.data.streams import OpenDataset, StreamConfig
from ostinato.errors import ConfigError, DataError, did_you_mean

# The ten permutations that CoTTA published for ImageNet-C (its cfgs/10orders, files 0 to 9),
# which later papers average over; numbers are positions in COMMON.
_TEN = (
    (10, 13, 0, 5, 6, 4, 2, 14, 3, 12, 1, 8, 7, 9, 11),
    (14, 1, 6, 8, 11, 9, 3, 12, 0, 10, 4, 2, 13, 7, 5),
    (11, 3, 0, 1, 7, 8, 4, 6, 12, 14, 13, 10, 2, 5, 9),
    (1, 9, 4, 13, 7, 12, 10, 2, 3, 8, 11, 0, 5, 14, 6),
    (13, 4, 6, 7, 9, 2, 10, 5, 8, 14, 0, 1, 11, 3, 12),
    (5, 7, 9, 1, 3, 11, 6, 10, 8, 12, 4, 0, 13, 14, 2),
    (8, 2, 14, 11, 6, 4, 13, 7, 3, 5, 10, 12, 1, 9, 0),
    (4, 6, 2, 9, 7, 14, 0, 8, 1, 10, 11, 5, 13, 3, 12),
    (3, 5, 6, 1, 0, 4, 14, 9, 11, 13, 8, 7, 10, 12, 2),
    (11, 0, 3, 6, 8, 4, 14, 9, 13, 12, 1, 2, 7, 5, 10),
)


class Opener:
    """Opens data sets by name below known roots, each once.

    >>> Opener("/data").root("imagenet-a").as_posix()
    '/data/imagenet-a'
    """

    def __init__(
        self,
        roots: Mapping[str, str | Path] | str | Path | None = None,
        datasets: Mapping[str, Dataset] | None = None,
    ) -> None:
        self.roots = roots
        self._open: dict[str, Dataset] = dict(datasets or {})

    def root(self, name: str) -> Path:
        """Where a data set lies."""
        if isinstance(self.roots, Mapping):
            if name in self.roots:
                return Path(self.roots[name])
        elif self.roots is not None:
            return Path(self.roots) / name
        if home := os.environ.get("OSTINATO_DATA"):
            return Path(home) / name
        raise DataError(
            f"No root is known for {name!r}. Name one (roots = {{{name}: DIR}}), or set the "
            f"environment variable OSTINATO_DATA to a folder that holds {name}/."
        )

    def __call__(self, name: str, **options: Any) -> Dataset:
        """Open a data set, or return it where it is open already."""
        if name in self._open:
            return self._open[name]
        key = f"{name} {sorted(options.items())!r}"  # one data set may be open in several ways
        if key not in self._open:
            if name == "folder" and "roots" in options:
                from ostinato.data.datasets.folder import FolderDataset

                self._open[key] = FolderDataset(**options)
            else:
                self._open[key] = open_dataset(name, self.root(name), **options)
        return self._open[key]


class DomainsConfig(StreamConfig):
    """Settings of streams over a list of domains.

    A domain is written `DOMAIN`, `CORRUPTION` or `DOMAIN+CORRUPTION`, with `@SEVERITY` behind it
    and `DATASET:` before it where these differ from the settings below: `fog`, `fog@3`,
    `imagenet-val+fog@3`, `acdc:night`. A data set's own domain goes before a corruption of the
    same name. Without a list, a data set of several domains gives all of them, any other the 15
    common corruptions (the four weathers, for segmentation). With `dataset = "folder"` and no
    root, the domains are the paths of labelled folders.

    >>> DomainsConfig.parse({"dataset": "folder", "domains": ["day", "night"]}).severity
    5
    """

    dataset: str = Field("imagenet-c", description="The data set that domains are taken from.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="The data set's own options (subset, split, ...)."
    )
    domains: tuple[str, ...] | None = Field(
        None, min_length=1, description="The domains, in order; the data set's own unless given."
    )
    severity: int = Field(5, description="Of corruptions, 1 to 5.")
    order: int = Field(0, description="Of the 15 corruptions: 0 usual, 1 to 10 the fixed orders.")

    @field_serializer("domains", when_used="json")
    def _stored(self, value: tuple[str, ...] | None) -> tuple[str, ...]:
        return value or ()  # as runs have always kept it, so that they are found by their hash

    @field_validator("severity")
    @classmethod
    def _in_range(cls, value: int) -> int:
        return check_severity(value)

    @field_validator("order")
    @classmethod
    def _fixed(cls, value: int) -> int:
        _corruption_order(value)
        return value


def open_domains(config: DomainsConfig, opener: OpenDataset) -> list[Domain]:
    """The domains that settings ask for."""
    if config.order and config.domains:
        raise ConfigError(
            "order arranges the 15 common corruptions; with domains given, list them in the "
            "order you want and leave order at 0."
        )
    if config.dataset == "folder" and config.domains and not _missing(config):
        dataset = opener("folder", roots=config.domains, **config.options)
        return [Domain(name, dataset, dataset.indices(name)) for name in dataset.domains()]
    try:
        dataset = opener(config.dataset, **config.options)
    except DataError as error:
        raise _naming_folder(config, error) from None
    texts = config.domains or _default_domains(dataset, config.order)
    return [_resolve_domain(text, dataset, opener, config.severity) for text in texts]


def _missing(config: DomainsConfig) -> list[str]:
    """Domains that are no folders here; below a known root they may be."""
    return [place for place in config.domains or () if not Path(place).is_dir()]


def _naming_folder(config: DomainsConfig, error: DataError) -> DataError:
    """The error; where a folder was named that is not there, it comes first."""
    if config.dataset != "folder" or not config.domains or "roots" in config.options:
        return error
    name = _missing(config)[0]
    near = get_close_matches(name, [p.name for p in Path().iterdir() if p.is_dir()], n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return DataError(f"There is no folder {name}.{hint} Below a root: {error}")


def _default_domains(dataset: Dataset, order: int) -> tuple[str, ...]:
    own = dataset.domains()
    if dataset.stored_severities or len(own) == 1:
        return _corruption_order(order) if dataset.task == "classification" else DRIVING
    if order:
        raise ConfigError(f"order is for the 15 corruptions; {dataset.name} has its own domains.")
    return tuple(own)


class _DomainName(NamedTuple):
    """A domain as written in a spec, taken apart.

    >>> _parse_domain("fog@3").severity
    3
    """

    dataset: str | None
    base: str
    corruption: str | None
    severity: int | None


def _parse_domain(text: str) -> _DomainName:
    """Take a domain's spelling apart.

    >>> _parse_domain("imagenet-val:imagenet-val+fog@3")
    _DomainName(dataset='imagenet-val', base='imagenet-val', corruption='fog', severity=3)
    """
    rest, _, level = text.partition("@")
    if level and not level.isdecimal():
        raise ConfigError(f"{text!r}: after '@' comes a severity from 1 to 5, as in 'fog@3'.")
    before, colon, after = rest.partition(":")
    base, _, corruption = (after if colon else before).partition("+")
    severity = check_severity(int(level)) if level else None
    return _DomainName(before if colon else None, base, corruption or None, severity)


def _resolve_domain(text: str, dataset: Dataset, opener: OpenDataset, severity: int = 5) -> Domain:
    """The domain that a spelling names."""
    written = _parse_domain(text)
    if written.dataset is not None and written.dataset != dataset.name:
        dataset = opener(written.dataset)
    level = severity if written.severity is None else written.severity
    own = dataset.domains()
    if written.corruption is not None:
        _check_corruption(written.corruption, dataset)
        indices = dataset.indices(written.base)
        return Domain(text, dataset, indices, corruption=written.corruption, severity=level)
    if written.base in own:
        return Domain(text, dataset, dataset.indices(written.base, level), severity=level)
    _check_corruption(written.base, dataset)
    if dataset.stored_severities:
        raise DataError(
            f"{dataset.name} lacks {written.base!r} below its root. Fetch the rest with 'ostinato "
            f"data fetch {dataset.name}', or leave the domain out."
        )
    everything = np.concatenate([dataset.indices(name) for name in own])
    return Domain(text, dataset, everything, corruption=written.base, severity=level)


def _check_corruption(name: str, dataset: Dataset) -> None:
    known = (*COMMON, *EXTRA, *DRIVING)
    if name not in known:
        hint = did_you_mean(name, (*dataset.domains(), *known))
        raise ConfigError(f"{name!r} is no domain of {dataset.name} and no corruption. {hint}")


def _corruption_order(order: int) -> tuple[str, ...]:
    """The common corruptions in a fixed order: 0 is the usual one, 1 to 10 the literature's ten.

    >>> _corruption_order(0)[:2], _corruption_order(1)[:2]
    (('gaussian_noise', 'shot_noise'), ('brightness', 'pixelate'))
    """
    if order == 0:
        return COMMON
    if not 1 <= order <= len(_TEN):
        raise ConfigError(f"order = {order}: choose 0 (usual) or 1 to {len(_TEN)} (fixed orders).")
    return tuple(COMMON[position] for position in _TEN[order - 1])
