"""A trial's question, its folder, and what methods need before they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ostinato import __version__
from ostinato.api import collect_statistics, prepare
from ostinato.errors import ConfigError
from ostinato.methods.contract import resolve_config
from ostinato.models import Normalize, fingerprint
from ostinato.models.loading import check_model, load_model
from ostinato.ops.files import write_atomically
from ostinato.ops.snapshot import save_state
from ostinato.registry import METHODS
from ostinato.running.devices import resolve_device
from ostinato.running.spec import Spec
from ostinato.trial._images import Taken
from ostinato.trial._plan import SEED, Row, Traffic

PEERS = ("eata", "rdumb")
"""Two that keep no domains: one that is prepared on clean images, one that needs nothing."""
_QUESTION = "trial.json"
_STATISTICS = "statistics.safetensors"


@dataclass(frozen=True)
class Request:
    """What a user asks.

    Attributes:
        model: 'embedded', or a timm name with its tag.
        images: a folder of images, with class folders or without; a data set or an npz file.
        domains: the user's own domains, each a folder, in place of the 15 corruptions.
        weights: a checkpoint file, or 'random'.
        num_classes: outputs of a timm model, where not its usual number.
        normalize: the input convention.
        severity: of the corruptions, 1 to 5.
        limit: images a domain; as many as fit into `minutes` where None.
        minutes: how long the trial may take, about.
        peers: the methods beside our own.
        device: cpu, cuda or auto.

    >>> Request(images="photos").spec(method="source").model
    'embedded'
    """

    model: str = "embedded"
    images: str = "embedded"
    domains: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    num_classes: int | None = None
    normalize: Normalize = "model"
    severity: int = 4
    limit: int | None = None
    minutes: float = 10.0
    peers: tuple[str, ...] = PEERS
    device: str = "auto"

    def spec(self, **changes: Any) -> Spec:
        """The part of a run's spec that all runs share."""
        shared = {
            "model": self.model,
            "weights": self.weights,
            "num_classes": self.num_classes,
            "normalize": self.normalize,
            "device": resolve_device(self.device),
            "seeds": (SEED,),
        }
        return Spec.parse({**shared, **changes})

    def load(self) -> nn.Module:
        """The source model."""
        spec = self.spec()
        check_model(spec)
        return load_model(spec)


def question(request: Request, limit: int | None, digest: str, model: nn.Module) -> dict[str, Any]:
    """All that a trial's figures follow from, as plain values."""
    return {
        "made by": "ostinato trial",
        "version": __version__,
        "model": request.model,
        "weights": fingerprint(model),
        "normalize": request.normalize,
        "images": digest,
        "domains": sorted(request.domains),
        "severity": request.severity,
        "peers": list(request.peers),
        "limit": limit,
    }


def read_question(home: Path) -> dict[str, Any] | None:
    """What the trial in a folder asked; None where there is none yet.

    A folder that holds something else is refused.
    """
    place = home / _QUESTION
    if not place.is_file():
        if home.is_dir() and any(home.iterdir()):
            raise ConfigError(f"{home} holds other files: choose a new or empty folder with --out.")
        return None
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("limit"), int | None):
        raise ConfigError(f"{place} cannot be read: choose another folder with --out.")
    return found


def write_question(home: Path, asked: Mapping[str, Any]) -> None:
    """Keep what a trial asks, so that the same command goes on with it."""
    home.mkdir(parents=True, exist_ok=True)
    write_atomically(home / _QUESTION, (json.dumps(dict(asked), indent=1) + "\n").encode())


def check_same(home: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a trial of another question."""
    open_yet = (
        before.get("limit") is None or now["limit"] is None
    )  # no run has begun, or none asked
    keys = [key for key in now if not (key == "limit" and open_yet)]
    differs = [key for key in keys if before.get(key) != now[key]]
    if differs:
        raise ConfigError(
            f"{home} holds a trial with other settings ({', '.join(differs)}): choose another "
            "folder with --out."
        )


class Preparations:
    """Makes what methods need from the clean images, each once, into the trial's folder."""

    def __init__(self, home: Path, request: Request, clean: Taken) -> None:
        self.home, self.request, self.clean = home, request, clean

    def help_for(self, row: Row) -> dict[str, str]:
        """Statistics and prepared file of a method, made where they are missing."""
        kind = METHODS[row.method]
        needs = kind.needs(resolve_config(kind, row.preset, {}))
        given = {}
        if "source statistics" in needs:
            given["statistics"] = str(self._statistics())
        if "prepared file" in needs:
            given["prepared"] = str(self._prepared(row))
        return given

    def _statistics(self) -> Path:
        place = self.home / _STATISTICS
        if not place.is_file():
            model, images = self.request.load(), self.clean.images
            collect_statistics(model, images, normalize=self.request.normalize).save(place)
        return place

    def _prepared(self, row: Row) -> Path:
        place = self.home / f"{row.method}.safetensors"
        if not place.is_file():
            model = self.request.load()
            device = next(model.parameters()).device
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                state = prepare(
                    model,
                    row.method,
                    self.clean.images.to(device),
                    self.clean.labels.to(device),
                    preset=row.preset,
                    normalize=self.request.normalize,
                )
            header = {"kind": "prepared", "method": row.method, "fingerprint": fingerprint(model)}
            save_state(place, state, header)
        return place

    def spec(self, row: Row, traffic: Traffic) -> Spec:
        """The spec of one run."""
        data = traffic.stream.config.model_dump(
            mode="json", exclude={"batch_size"}, exclude_none=True
        )
        data.pop("domains", None)
        return self.request.spec(
            method=row.method,
            preset=row.preset,
            stream=traffic.stream.name,
            data=data,
            batch_size=traffic.batch,
            **self.help_for(row),
        )
