"""Every call that a client can make, as data: one place for paths, bodies and types."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
from pydantic import TypeAdapter

from ostinato.errors import InputError
from ostinato.serve import schema

_T = TypeVar("_T")


@dataclass(frozen=True)
class Call(Generic[_T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    parse: Callable[[httpx.Response], _T]
    query: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    content: bytes | None = None
    files: tuple[bytes, ...] = ()


def _of(kind: Any) -> Callable[[httpx.Response], Any]:
    reader = TypeAdapter(kind)
    return lambda response: reader.validate_json(response.content)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def predict(
    stream: str,
    images: Any,
    *,
    top: int = 5,
    source: bool = False,
    sequence: int | None = None,
    deadline_ms: int | None = None,
) -> Call[schema.Prediction]:
    """Answers for images: paths, encoded bytes, or a uint8 array or tensor (N, 3, H, W)."""
    query = _given(top=top, source=source, sequence=sequence, deadline_ms=deadline_ms)
    path = f"/v1/streams/{stream}/predict"
    return Call("POST", path, _of(schema.Prediction), query, files=_as_files(images))


def server() -> Call[schema.ServerInfo]:
    """What is served."""
    return Call("GET", "/v1/server", _of(schema.ServerInfo))


def streams() -> Call[list[schema.StreamInfo]]:
    """All streams."""
    return Call("GET", "/v1/streams", _of(list[schema.StreamInfo]))


def stream(name: str) -> Call[schema.StreamDetail]:
    """One stream with its domains."""
    return Call("GET", f"/v1/streams/{name}", _of(schema.StreamDetail))


def declare(
    name: str, *, preset: str | None = None, frozen: bool = False, start: str | None = None
) -> Call[schema.StreamDetail]:
    """Declare a stream; `start` copies another one's domains."""
    body = _given(name=name, preset=preset, frozen=frozen, start=start)
    return Call("POST", "/v1/streams", _of(schema.StreamDetail), body=body)


def remove(name: str) -> Call[None]:
    """Forget a stream."""
    return Call("DELETE", f"/v1/streams/{name}", lambda response: None)


def snapshots(name: str) -> Call[list[schema.SnapshotInfo]]:
    """A stream's states on disk."""
    return Call("GET", f"/v1/streams/{name}/snapshots", _of(list[schema.SnapshotInfo]))


def checkpoint(name: str, label: str) -> Call[schema.SnapshotInfo]:
    """Keep the state as it is now, under a name."""
    path = f"/v1/streams/{name}/checkpoints"
    return Call("POST", path, _of(schema.SnapshotInfo), body={"name": label})


def remove_checkpoint(name: str, label: str) -> Call[None]:
    """Remove a named state."""
    path = f"/v1/streams/{name}/checkpoints/{label}"
    return Call("DELETE", path, lambda response: None)


def rollback(
    name: str, to: str | int | None = None, domain: int | None = None
) -> Call[schema.StreamDetail]:
    """Go back to a state on disk, as a whole or for one domain's expert."""
    path = f"/v1/streams/{name}/rollback"
    return Call("POST", path, _of(schema.StreamDetail), body=_given(to=to, domain=domain))


def change(name: str, what: str, domain: int | None = None) -> Call[schema.StreamDetail]:
    """Reset, freeze or unfreeze a stream, or one of its domains."""
    path = f"/v1/streams/{name}/{what}"
    return Call("POST", path, _of(schema.StreamDetail), body=_given(domain=domain))


def move(name: str, to: int) -> Call[dict[str, Any]]:
    """Move a stream to another shard of a sharded server."""
    return Call("POST", f"/v1/streams/{name}/move", _of(dict[str, Any]), {"to": to})


def export(name: str, domain: int | None = None, *, images: bool = False) -> Call[bytes]:
    """The state, or one domain, as a safetensors file."""
    query = _given(domain=domain, images=images)
    path = f"/v1/streams/{name}/export"
    return Call("GET", path, lambda response: response.content, query)


def take_in(name: str, data: bytes) -> Call[schema.StreamDetail]:
    """Import an exported state or domain."""
    return Call("POST", f"/v1/streams/{name}/import", _of(schema.StreamDetail), content=data)


def events(
    name: str | None = None, after: int = 0, most: int = 1000
) -> Call[list[schema.EventInfo]]:
    """What happened, oldest first."""
    path = "/v1/events" if name is None else f"/v1/streams/{name}/events"
    return Call("GET", path, _of(list[schema.EventInfo]), {"after": after, "most": most})


def _as_files(images: Any) -> tuple[bytes, ...]:
    """Images as files: paths are read, bytes stay, arrays and tensors become npy.

    >>> _as_files(b"...")
    (b'...',)
    """
    if isinstance(images, bytes):
        return (images,)
    if isinstance(images, str | Path):
        return (Path(images).read_bytes(),)
    if hasattr(images, "__array__"):
        return (_npy(images),)
    try:
        return tuple(part for one in images for part in _as_files(one))
    except TypeError:
        raise InputError(
            f"Images are paths, bytes or uint8 arrays, not {type(images).__name__}."
        ) from None


def _npy(images: Any) -> bytes:
    import numpy as np

    array = np.ascontiguousarray(images)
    if array.dtype != np.uint8:
        raise InputError(f"Arrays of images are uint8, not {array.dtype}.")
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()
