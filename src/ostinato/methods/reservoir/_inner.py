"""The methods that ReservoirTTA's release puts into its slots, and the settings it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ostinato.errors import ConfigError
from ostinato.methods.base import Method, MethodConfig
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS

_STEP = {"lr": 2.5e-4, "nesterov": True}
_RELEASED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tent": ("tent", _STEP),
    "eta": ("eata", {**_STEP, "fisher_alpha": 0.0}),
    "eata": ("eata", _STEP),
    "sar": ("sar", {"lr": 1e-3}),
    "roid": ("roid", _STEP),
}
"""By the release's names: our method, and the settings it has there."""


class ReservoirConfig(MethodConfig):
    """Settings of ReservoirTTA.

    >>> ReservoirConfig(inner="eata").slots
    16
    """

    inner: str = Field(
        "tent", description="tent, eta, eata, sar or roid as the release has them; or any other"
    )
    inner_preset: str | None = Field(None, description="a preset in place of the release's values")
    inner_settings: dict[str, Any] = Field({}, description="the inner method's own settings")
    slots: int = Field(16, ge=1, description="sets of parameters kept at most")
    quantile: float = Field(0.999, gt=0, lt=1, description="of source distances: what is far")
    threshold: float | None = Field(None, gt=0, description="a distance instead of the quantile")
    temperature: float = Field(1.0, gt=0, description="of the soft assignment to styles")
    memory: int = Field(1024, ge=1, description="past styles that centroids are fitted to")
    centroid_lr: float = Field(1e-4, ge=0, description="learning rate of the centroids")
    ensemble: bool = Field(True, description="predict with the sets' weighted mean")


def inner_method(config: ReservoirConfig) -> tuple[type[Method], MethodConfig]:
    """The inner method's class and config, from a `ReservoirConfig`.

    A preset, where one is named, comes in place of the release's settings. Seed and precision are
    the wrapper's.
    """
    if config.inner == "reservoir":
        raise ConfigError("A reservoir wraps another method, not itself: set inner='tent', say.")
    name, released = _RELEASED.get(config.inner, (config.inner, {}))
    kind: type[Method] = METHODS[name]
    usual = {} if config.inner_preset else released
    shared = {"seed": config.seed, "precision": config.precision}
    settings = {**usual, **shared, **config.inner_settings}
    return kind, resolve_config(kind, config.inner_preset, settings)
