"""HTTP requests as plain values, so that they can be answered in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

_Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Call:
    """One request, body and all.

    >>> call = Call("POST", "/v1/streams/gate/predict", b"sequence=7&top=1", (), b"", ("::1", 1))
    >>> call.repeatable, call.within(0.25).query
    (True, b'sequence=7&top=1&deadline_ms=250')
    """

    method: str
    path: str
    query: bytes
    headers: _Headers
    body: bytes
    client: tuple[str, int]

    @property
    def values(self) -> dict[str, str]:
        """The query."""
        return dict(parse_qsl(self.query.decode("latin-1"), keep_blank_values=True))

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent twice without being done twice."""
        numbered = self.path.endswith("/predict") and "sequence" in self.values
        return numbered or self.method in ("GET", "HEAD")

    @property
    def timed(self) -> bool:
        """Whether it waits no longer than so many milliseconds, its own or the server's."""
        return self.path.endswith("/predict") and self.values.get("deadline_ms", "1").isdecimal()

    def within(self, seconds: float) -> Call:
        """The same, for somebody who has waited already."""
        left = {"deadline_ms": str(max(1, round(1000 * seconds)))}
        return replace(self, query=urlencode(self.values | left).encode())


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    headers: _Headers
    body: bytes


def _scope_of(call: Call) -> dict[str, Any]:
    """A call as ASGI describes it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "query_string": call.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in call.headers],
        "client": call.client,
        "server": None,
        "state": {},
    }


async def answer(app: Any, call: Call) -> Reply:
    """Have an application answer a call."""
    status, headers, parts = 500, (), []
    given, ended = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await ended.wait()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": call.body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], _plain(message["headers"])
        else:
            parts.append(bytes(message.get("body", b"")))

    try:
        await app(_scope_of(call), receive, send)
    finally:
        ended.set()
    return Reply(status, headers, b"".join(parts))


def _plain(headers: Iterable[tuple[bytes, bytes]]) -> Any:
    return tuple((bytes(name), bytes(value)) for name, value in headers)
