"""The client for asynchronous programs: the same calls, awaited."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from ostinato.client import _calls as calls
from ostinato.client._calls import Call
from ostinato.client._transport import ServerError, options, read, request, unreachable
from ostinato.serve import schema

_T = TypeVar("_T")


class AsyncClient:
    """Calls to be awaited.

    Args:
        url: of the server.
        key: an API key; OSTINATO_KEY unless given.
        timeout: seconds that a call may take.
        patience: seconds for which a busy server's 429 is waited out.

    >>> import asyncio
    >>> async def names() -> list[str]:
    ...     async with AsyncClient("http://127.0.0.1:9") as client:  # where no server is
    ...         return [stream.name for stream in await client.streams()]
    >>> asyncio.run(names())
    Traceback (most recent call last):
    ostinato.client._transport.Unreachable: http://127.0.0.1:9 does not answer ...
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = 60.0, patience: float = 30.0
    ) -> None:
        self.patience = patience
        self._http = httpx.AsyncClient(**options(url, key, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def send(self, call: Call[_T]) -> _T:
        """Make a call; come back later where the server is busy."""
        until = time.monotonic() + self.patience
        while True:
            try:
                return read(call, await self._http.request(**request(call)))
            except ServerError as error:
                if error.status != 429 or time.monotonic() + error.wait > until:
                    raise
                await asyncio.sleep(max(error.wait, 0.05))
            except httpx.TransportError as error:
                raise unreachable(self._http.base_url, error) from error

    async def predict(self, stream: str, images: Any, **options: Any) -> schema.Prediction:
        """Answers for images; `calls.predict` has the options."""
        return await self.send(calls.predict(stream, images, **options))

    async def server(self) -> schema.ServerInfo:
        """What is served."""
        return await self.send(calls.server())

    async def streams(self) -> list[schema.StreamInfo]:
        """All streams."""
        return await self.send(calls.streams())

    async def stream(self, name: str) -> schema.StreamDetail:
        """One stream with its domains."""
        return await self.send(calls.stream(name))

    async def declare(self, name: str, **options: Any) -> schema.StreamDetail:
        """Declare a stream; `calls.declare` has the options."""
        return await self.send(calls.declare(name, **options))

    async def remove(self, name: str) -> None:
        """Forget a stream."""
        await self.send(calls.remove(name))

    async def snapshots(self, name: str) -> list[schema.SnapshotInfo]:
        """A stream's states on disk."""
        return await self.send(calls.snapshots(name))

    async def checkpoint(self, name: str, label: str) -> schema.SnapshotInfo:
        """Keep the state as it is now, under a name."""
        return await self.send(calls.checkpoint(name, label))

    async def remove_checkpoint(self, name: str, label: str) -> None:
        """Remove a named state."""
        await self.send(calls.remove_checkpoint(name, label))

    async def rollback(
        self, name: str, to: str | int | None = None, domain: int | None = None
    ) -> schema.StreamDetail:
        """Go back to a state on disk."""
        return await self.send(calls.rollback(name, to, domain))

    async def reset(self, name: str, domain: int | None = None) -> schema.StreamDetail:
        """Forget everything learned, or one domain."""
        return await self.send(calls.change(name, "reset", domain))

    async def freeze(self, name: str, domain: int | None = None) -> schema.StreamDetail:
        """Answer on, and learn nothing."""
        return await self.send(calls.change(name, "freeze", domain))

    async def unfreeze(self, name: str, domain: int | None = None) -> schema.StreamDetail:
        """Learn again."""
        return await self.send(calls.change(name, "unfreeze", domain))

    async def move(self, name: str, to: int) -> dict[str, Any]:
        """Move it to another shard of a sharded server."""
        return await self.send(calls.move(name, to))

    async def export(self, name: str, domain: int | None = None, *, images: bool = False) -> bytes:
        """The state as a safetensors file."""
        return await self.send(calls.export(name, domain, images=images))

    async def take_in(self, name: str, data: bytes) -> schema.StreamDetail:
        """Import an exported state or domain."""
        return await self.send(calls.take_in(name, data))

    async def events(
        self, name: str | None = None, after: int = 0, most: int = 1000
    ) -> list[schema.EventInfo]:
        """What happened, oldest first."""
        return await self.send(calls.events(name, after, most))
