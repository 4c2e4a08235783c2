"""Where a result came from: versions, weights, data, seeds, commit, device, date."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato import __version__
from ostinato.config import Config
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "torchmetrics")


class Provenance(Config):
    """What someone needs to know to get the same numbers again.

    Attributes:
        versions: of Python and of the packages that were installed.
        weights: hash of the source model's weights.
        data: fingerprint of the images and labels.
        seeds: every seed in use, by what it is for.
        commit: the source tree's commit, with "+" where it had changes; None outside git.
        device: the processor that computed.
        date: when the run was created, UTC.

    >>> found = Provenance.collect(seeds={"method": 2025})
    >>> found.seeds["method"], found.device
    (2025, 'cpu')
    """

    versions: dict[str, str]
    weights: str | None = None
    data: str | None = None
    seeds: dict[str, int] = {}
    commit: str | None = None
    device: str = "cpu"
    date: str

    @classmethod
    def collect(
        cls,
        *,
        weights: str | None = None,
        data: str | None = None,
        seeds: Mapping[str, int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Provenance:
        """Look around and write down what is there."""
        return cls(
            versions=_installed_versions(),
            weights=weights,
            data=data,
            seeds=dict(seeds or {}),
            commit=_source_commit(),
            device=describe_device(device),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def spec_hash(spec: Mapping[str, Any]) -> str:
    """A short name for a resolved spec: equal settings, in any order, hash alike.

    >>> spec_hash({"a": 1, "b": [2]}) == spec_hash({"b": [2], "a": 1})
    True
    """
    try:
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"A spec should hold plain JSON values ({error}); use model_dump(mode='json')."
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A hash of weights, whatever device holds them and whatever file they came from."""
    import torch

    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def hash_names(names: Iterable[str]) -> str:
    """A fingerprint of an ordered list, such as every image's key.

    >>> hash_names(["a", "b"]) != hash_names(["b", "a"])
    True
    """
    total = hashlib.sha256()
    for name in names:
        total.update(f"{len(name)}:{name};".encode())
    return total.hexdigest()[:16]


def _installed_versions() -> dict[str, str]:
    """Python's version and those of the packages that shape a result."""
    import torch

    found = {"python": platform.python_version(), "ostinato": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["torch"] = str(torch.__version__)  # with the build ("+cu124"), which metadata leaves out
    return found


def _source_commit() -> str | None:
    """The commit of this source tree, if git keeps it (an installed copy has none)."""
    here = Path(__file__)
    if _git("ls-files", "--error-unmatch", here.name) is None:
        return None  # installed into a folder that some other repository happens to hold
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def describe_device(device: torch.device | str) -> str:
    """The device in words: its kind, and a GPU's name."""
    import torch

    where = torch.device(device)
    if where.type == "cuda" and torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(where)})"
    return where.type
