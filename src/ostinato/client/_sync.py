"""The client whose calls wait for their answer."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from ostinato.client import _calls as calls
from ostinato.client._calls import Call
from ostinato.client._transport import ServerError, options, read, request, unreachable
from ostinato.serve import schema

_T = TypeVar("_T")


class Client:
    """Calls that wait for their answer.

    Args:
        url: of the server.
        key: an API key; OSTINATO_KEY unless given.
        timeout: seconds that a call may take.
        patience: seconds for which a busy server's 429 is waited out.

    >>> with Client("http://127.0.0.1:9") as client:  # where no server is
    ...     client.streams()
    Traceback (most recent call last):
    ostinato.client._transport.Unreachable: http://127.0.0.1:9 does not answer ...
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = 60.0, patience: float = 30.0
    ) -> None:
        self.patience = patience
        self._http = httpx.Client(**options(url, key, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def send(self, call: Call[_T]) -> _T:
        """Make a call; come back later where the server is busy."""
        until = time.monotonic() + self.patience
        while True:
            try:
                return read(call, self._http.request(**request(call)))
            except ServerError as error:
                if error.status != 429 or time.monotonic() + error.wait > until:
                    raise
                time.sleep(max(error.wait, 0.05))
            except httpx.TransportError as error:
                raise unreachable(self._http.base_url, error) from error

    def predict(self, stream: str, images: Any, **options: Any) -> schema.Prediction:
        """Answers for images; `calls.predict` has the options."""
        return self.send(calls.predict(stream, images, **options))

    def server(self) -> schema.ServerInfo:
        """What is served."""
        return self.send(calls.server())

    def streams(self) -> list[schema.StreamInfo]:
        """All streams."""
        return self.send(calls.streams())

    def stream(self, name: str) -> schema.StreamDetail:
        """One stream with its domains."""
        return self.send(calls.stream(name))

    def declare(self, name: str, **options: Any) -> schema.StreamDetail:
        """Declare a stream; `calls.declare` has the options."""
        return self.send(calls.declare(name, **options))

    def remove(self, name: str) -> None:
        """Forget a stream."""
        self.send(calls.remove(name))

    def snapshots(self, name: str) -> list[schema.SnapshotInfo]:
        """A stream's states on disk."""
        return self.send(calls.snapshots(name))

    def checkpoint(self, name: str, label: str) -> schema.SnapshotInfo:
        """Keep the state as it is now, under a name."""
        return self.send(calls.checkpoint(name, label))

    def remove_checkpoint(self, name: str, label: str) -> None:
        """Remove a named state."""
        self.send(calls.remove_checkpoint(name, label))

    def rollback(
        self, name: str, to: str | int | None = None, domain: int | None = None
    ) -> schema.StreamDetail:
        """Go back to a state on disk."""
        return self.send(calls.rollback(name, to, domain))

    def reset(self, name: str, domain: int | None = None) -> schema.StreamDetail:
        """Forget everything learned, or one domain."""
        return self.send(calls.change(name, "reset", domain))

    def freeze(self, name: str, domain: int | None = None) -> schema.StreamDetail:
        """Answer on, and learn nothing."""
        return self.send(calls.change(name, "freeze", domain))

    def unfreeze(self, name: str, domain: int | None = None) -> schema.StreamDetail:
        """Learn again."""
        return self.send(calls.change(name, "unfreeze", domain))

    def move(self, name: str, to: int) -> dict[str, Any]:
        """Move it to another shard of a sharded server."""
        return self.send(calls.move(name, to))

    def export(self, name: str, domain: int | None = None, *, images: bool = False) -> bytes:
        """The state as a safetensors file."""
        return self.send(calls.export(name, domain, images=images))

    def take_in(self, name: str, data: bytes) -> schema.StreamDetail:
        """Import an exported state or domain."""
        return self.send(calls.take_in(name, data))

    def events(
        self, name: str | None = None, after: int = 0, most: int = 1000
    ) -> list[schema.EventInfo]:
        """What happened, oldest first."""
        return self.send(calls.events(name, after, most))
