"""What every request passes before anything reads it: names, origins, sizes, rates, headers."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from ostinato.serve.settings import Settings

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_SAFE = ("GET", "HEAD", "OPTIONS")
_LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
_SMALL = 64 * 1024
"""Bytes of a body that holds neither images nor states."""
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class TooMuch(HTTPException):
    """A body is longer than was allowed."""

    def __init__(self) -> None:
        super().__init__(413, "The request is too long.")


class _Buckets:
    """So many requests a second of each caller, with a second's worth at once.

    >>> buckets = _Buckets(rate=2.0)
    >>> [buckets.take("a", now=0.0) for _ in range(3)], buckets.take("a", now=0.6)
    ([0.0, 0.0, 0.5], 0.0)
    """

    MOST = 10_000

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str, now: float | None = None) -> float:
        """Seconds that a caller has to wait; 0 where it may go on."""
        at = time.monotonic() if now is None else now
        most = max(1.0, self.rate)
        left, before = self._left.pop(who, (most, at))
        left = min(most, left + (at - before) * self.rate)
        allowed = left >= 1
        self._left[who] = (left - 1 if allowed else left, at)
        while len(self._left) > self.MOST:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self.rate


class Guard:
    """An ASGI layer around the application.

    Args:
        app: what comes next.
        settings: of the server.
        counted: told the status of every request, with its path and how long it took.
        known: the name of whose key a header shows; None where it is none of ours.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        counted: Callable[[Any, int, float], None],
        known: Callable[[str], str | None],
    ) -> None:
        self.app, self.settings, self.counted, self.known = app, settings, counted, known
        self.buckets = _Buckets(settings.limits.rate)
        self.names = {*_LOCAL, settings.host, *settings.names}

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def sending(message: _Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                more = [one for one in _HEADERS if one[0] not in given]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await _say(sending, *refusal)
                return
            await self._limited(scope, receive, sending)
        finally:
            self.counted(scope, status, time.perf_counter() - started)

    def _refusal(self, scope: Any) -> tuple[int, str, float] | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.settings.loopback or self.settings.names:  # a page elsewhere may not point here
            name = host.rpartition(":")[0] if not host.endswith("]") else host
            if (name or host) not in self.names and host not in self.names:
                return 421, f"This server is not {host[:100]!r}.", 0.0
        if scope["method"] not in _SAFE and not _same_site(headers, host):
            return 403, "Requests from other sites' pages change nothing here.", 0.0
        caller = self.known(headers.get(b"authorization", ""))
        wait = self.buckets.take(caller or str((scope.get("client") or ("?",))[0]))
        if wait:
            return 429, "Too many requests: slow down.", wait
        length = headers.get(b"content-length", "0")
        if not (length.isascii() and length.isdecimal()):
            return 400, "The content length is no number.", 0.0
        if int(length) > self._most(scope["path"]):
            return 413, f"A request here has at most {self._most(scope['path'])} bytes.", 0.0
        return None

    def _most(self, path: str) -> int:
        limits = self.settings.limits
        if path.endswith("/predict"):
            return int(limits.body_mb * 2**20)
        return int(limits.state_mb * 2**20) if path.endswith("/import") else _SMALL

    async def _limited(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Count a body as it arrives: who announces no length is held to the same limit."""
        left, begun = self._most(scope["path"]), False

        async def receiving() -> _Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise TooMuch
            return message

        async def noting(message: _Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receiving, noting)
        except TooMuch:
            if not begun:
                await _say(send, 413, "The request is too long.", 0.0)


def _same_site(headers: dict[bytes, str], host: str) -> bool:
    if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get(b"origin")
    return origin is None or urlsplit(origin).netloc == host


async def _say(send: _Send, status: int, text: str, wait: float) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if wait:
        headers.append((b"retry-after", b"%d" % max(1, round(wait))))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
