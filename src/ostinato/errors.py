"""One exception tree. Every message says what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class OstinatoError(Exception):
    """The root of every error this library raises on purpose.

    >>> try:
    ...     raise ConfigError("lr = -1: choose a number above 0.")
    ... except OstinatoError as error:
    ...     print(error)
    lr = -1: choose a number above 0.
    """


class ConfigError(OstinatoError, ValueError):
    """A setting is unknown, of the wrong type or out of range.

    >>> from ostinato.registry import METHODS
    >>> METHODS["tent"].Config.parse({"lr": -1.0})
    Traceback (most recent call last):
    ostinato.errors.ConfigError: ...
    """


class InputError(OstinatoError, ValueError):
    """A batch of images cannot be used; nothing was changed.

    >>> from ostinato.checks import small_model
    >>> from ostinato.models import VisionModel
    >>> import torch
    >>> VisionModel(small_model()).check(torch.zeros(3, 32, 32))
    Traceback (most recent call last):
    ostinato.errors.InputError: ...
    """


class TargetError(OstinatoError, ValueError):
    """No place, or no fitting place, was found in the model.

    >>> import ostinato
    >>> from torch import nn
    >>> ostinato.adapt(nn.Linear(3, 2), preset="paper", normalize="none")
    Traceback (most recent call last):
    ostinato.errors.TargetError: ...
    """


class StateError(OstinatoError):
    """A state file cannot be read, or belongs to something else; nothing was changed.

    >>> from ostinato.ops.snapshot import load_state
    >>> load_state("nowhere.safetensors")
    Traceback (most recent call last):
    ostinato.errors.StateError: ...
    """


class DataError(OstinatoError):
    """A data set's files are missing, broken or not laid out as expected.

    >>> from ostinato.data.datasets.folder import FolderDataset
    >>> FolderDataset("nowhere")
    Traceback (most recent call last):
    ostinato.errors.DataError: ...
    """


class MissingResource(OstinatoError):
    """A method needs something prepared beforehand (source statistics, warmed adapters).

    >>> import ostinato
    >>> from ostinato.checks import small_model
    >>> ostinato.adapt(small_model(), preset="robust")
    Traceback (most recent call last):
    ostinato.errors.MissingResource: ...
    """


class Taken(ConfigError):
    """Another process is writing to the run's folder.

    >>> isinstance(Taken("Another process writes to runs/tent."), ConfigError)
    True
    """


class GroupError(OstinatoError, RuntimeError):
    """Processes that answer one stream together lost one another, or disagree.

    >>> isinstance(GroupError("A process has gone."), RuntimeError)
    True
    """


class UnknownName(OstinatoError, KeyError):
    """A name is not registered; the message offers the nearest one.

    >>> from ostinato.registry import METHODS
    >>> METHODS["tant"]
    Traceback (most recent call last):
    ostinato.errors.UnknownName: ...tent...
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """A closing sentence for an error message: the nearest option, or all of them.

    >>> did_you_mean("tnet", ["tent", "source"])
    "Did you mean 'tent'? Available: source, tent."
    """
    known = sorted(options)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"{hint}Available: {', '.join(known) or 'none'}."
