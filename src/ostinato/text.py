"""Texts from outside: read within limits, shown on one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ostinato.errors import ConfigError

_LARGEST = 1 << 20
"""Bytes of settings; the longest spec in use has a few thousand."""
DEEPEST = 20
"""Lists and tables within each other."""


def read_yaml(path: str | Path) -> Any:
    """The settings in a file, within limits; a ConfigError that names the file otherwise."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name a YAML file.") from None
    if len(content) > _LARGEST:
        raise ConfigError(f"{path} has more than {_LARGEST:,} bytes, so it is no file of settings.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8: save it as such.") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Any:
    """A YAML value, within limits.

    An alias stands for as much as its anchor, so a few lines of them can stand for gigabytes;
    settings have no use for them.

    >>> parse_yaml("{a: [1, 2]}", "here")
    {'a': [1, 2]}
    >>> parse_yaml("{a: &x 1, b: *x}", "here")
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: here: aliases (*x) are not read; write the value out.
    """
    try:
        _check_events(text, name)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {one_line(error)}") from None
    except (ValueError, OverflowError, RecursionError) as error:  # a date or number that is none
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} cannot be read as YAML: {one_line(error)}") from None


def _check_events(text: str, name: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(
                f"{name}: aliases (*{event.anchor}) are not read; write the value out."
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise ConfigError(f"{name}: lists and tables lie more than {DEEPEST} deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def one_line(error: object, length: int = 200) -> str:
    """An error of another library on one line.

    >>> one_line("first\\n  second")
    'first second'
    """
    text = " ".join(str(error).split())
    return text if len(text) <= length else f"{text[:length]}..."
