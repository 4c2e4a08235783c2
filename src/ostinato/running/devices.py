"""The device that a spec, a command or a server means, and whether it is there."""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError, did_you_mean


def name_device(name: str) -> str:
    """The device that a spec means; an error where there is none of that name."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(name)
    except RuntimeError:
        hint = did_you_mean(name, ("auto", "cpu", "cuda", "mps"))
        raise ConfigError(f"There is no device {name!r}. {hint}") from None
    return name


def check_device(name: str) -> None:
    """Refuse to compute on a device that this machine does not have."""
    if torch.device(name_device(name)).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device = {name}, but torch sees no GPU here: use cpu or auto.")


def resolve_device(name: str) -> str:
    """The device to compute on, where there is one of that name."""
    check_device(name)
    return name_device(name)
