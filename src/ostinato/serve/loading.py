"""The model of a server, and what has to be known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ostinato.errors import ConfigError
from ostinato.methods.ostinato.settings import PRESETS, OstinatoConfig
from ostinato.methods.ostinato.streams import SharedModel
from ostinato.models import fingerprint, output_names
from ostinato.ops.statistics import SourceStatistics
from ostinato.serve._pixels import Fit
from ostinato.serve.settings import Settings


@dataclass(frozen=True)
class Served:
    """One model, ready to be served.

    Attributes:
        model: with the hooks of all streams.
        name: what the settings call it.
        fingerprint: which weights these are.
        names: what it calls its outputs; may be empty.
        outputs: how many there are.
        task: classification, or segmentation where it labels pixels.
        fit: how pictures are made to fit it.
    """

    model: SharedModel
    name: str
    fingerprint: str
    names: tuple[str, ...]
    outputs: int
    task: Literal["classification", "segmentation"]
    fit: Fit


def load_served(settings: Settings) -> Served:
    """Load the model that the settings name, with its source statistics."""
    from ostinato.models.loading import check_model, load_model
    from ostinato.running.devices import resolve_device
    from ostinato.running.spec import Spec

    device = resolve_device(settings.device)
    spec = Spec.parse(
        {
            "model": settings.model,
            "weights": settings.weights,
            "num_classes": settings.num_classes,
            "normalize": settings.normalize,
            "device": device,
        }
    )
    check_model(spec)
    statistics = SourceStatistics.load(_statistics_file(settings))
    model = load_model(spec)
    config = method_config(settings, settings.preset)
    shared = SharedModel(model, statistics, config, normalize=settings.normalize)
    side = settings.size or int(Fit.of(model, None, dense=False).side or 224)
    try:
        with torch.no_grad():
            logits = shared(torch.zeros(1, 3, side, side, device=shared.device))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"{settings.model} does not take images of {side}×{side} ({str(error)[:160]}): name "
            "the size that it was trained with."
        ) from error
    dense = logits.ndim > 2
    return Served(
        shared,
        settings.model,
        fingerprint(model),
        output_names(model),
        int(logits.shape[1]),
        "segmentation" if dense else "classification",
        Fit.of(model, settings.size, dense=dense),
    )


def method_config(settings: Settings, preset: str) -> OstinatoConfig:
    """The method's settings for streams of a preset."""
    given = {"precision": settings.precision, **settings.settings}
    return OstinatoConfig.parse({**given, **PRESETS[preset]})


def _statistics_file(settings: Settings) -> str:
    if settings.statistics is not None:
        return str(settings.statistics)
    if settings.model == "embedded":
        from ostinato.data.embedded import STATISTICS, asset_path

        return str(asset_path(STATISTICS))
    raise ConfigError(
        f"Serving {settings.model} needs statistics of clean images: make them with 'ostinato "
        "prepare statistics --model ... --data ... --out FILE', then pass --statistics FILE."
    )
