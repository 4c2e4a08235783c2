"""What a method says of its state after a run's last batch: a file beside the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.errors import DataError
from ostinato.running.chain import seal, unseal
from ostinato.running.results import RunFolder
from ostinato.running.run_files import read_json, write_json

_FILE = "diagnostics.json"


def write_diagnostics(folder: RunFolder, values: Mapping[str, Any]) -> None:
    """Keep plain values beside a run's records; a method that is silent leaves no file."""
    if values:
        write_json(folder.path / _FILE, seal(folder.hash, dict(values)))


def read_diagnostics(folder: RunFolder) -> dict[str, Any]:
    """What was kept; empty where nothing was. A file that was changed is a DataError."""
    place = folder.path / _FILE
    if not place.is_file():
        return {}
    try:
        return unseal(folder.hash, read_json(place))
    except DataError as error:
        raise DataError(f"{place} {error}") from None
