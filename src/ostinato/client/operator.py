"""What `ostinato streams` does, as calls to a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ostinato.client._sync import Client
from ostinato.errors import ConfigError, did_you_mean
from ostinato.ops.files import write_atomically

_Given = dict[str, Any]


def _export(client: Client, name: str, given: _Given) -> None:
    if given["file"] is None:
        raise ConfigError("Name the file to write: --file STATE.safetensors")
    data = client.export(name, given["domain"], images=given["images"])
    write_atomically(given["file"], data)


def _import(client: Client, name: str, given: _Given) -> Any:
    if given["file"] is None or not Path(given["file"]).is_file():
        raise ConfigError("Name the file to read: --file STATE.safetensors")
    return client.take_in(name, Path(given["file"]).read_bytes())


def _checkpoint(client: Client, name: str, given: _Given) -> Any:
    if given["label"] is None:
        raise ConfigError("Name the checkpoint: --label NAME")
    return client.checkpoint(name, given["label"])


def _move(client: Client, name: str, given: _Given) -> Any:
    if given["to"] is None or not str(given["to"]).isdecimal():
        raise ConfigError("Name the shard by its number: --to 2")
    return client.move(name, int(given["to"]))


_WORK: dict[str, Callable[[Client, str, _Given], Any]] = {
    "show": lambda client, name, given: client.stream(name),
    "snapshots": lambda client, name, given: client.snapshots(name),
    "events": lambda client, name, given: client.events(name),
    "declare": lambda client, name, given: client.declare(
        name, preset=given["preset"], start=given["start"]
    ),
    "remove": lambda client, name, given: client.remove(name),
    "checkpoint": _checkpoint,
    "rollback": lambda client, name, given: client.rollback(name, given["to"], given["domain"]),
    "reset": lambda client, name, given: client.reset(name, given["domain"]),
    "freeze": lambda client, name, given: client.freeze(name, given["domain"]),
    "unfreeze": lambda client, name, given: client.unfreeze(name, given["domain"]),
    "move": _move,
    "export": _export,
    "import": _import,
}


def operate(url: str, key: str | None, what: str, name: str | None, given: _Given) -> Any:
    """Do one thing; what comes back is plain data for JSON, or None."""
    if what != "list" and what not in _WORK:
        raise ConfigError(f"Streams cannot be {what!r}. {did_you_mean(what, ['list', *_WORK])}")
    if what != "list" and name is None:
        raise ConfigError(f"Name the stream: ostinato streams {what} NAME")
    with Client(url, key) as client:
        found = client.streams() if what == "list" else _WORK[what](client, str(name), given)
    return _plain(found)


def _plain(found: Any) -> Any:
    if isinstance(found, BaseModel):
        return found.model_dump(mode="json")
    return [_plain(one) for one in found] if isinstance(found, list) else found
