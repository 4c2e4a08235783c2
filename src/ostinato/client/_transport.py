"""Between a call and httpx: requests out, answers or errors in."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import httpx

from ostinato.client._calls import Call
from ostinato.errors import OstinatoError

_T = TypeVar("_T")
_KEY = "OSTINATO_KEY"
"""The variable that holds a key where none is passed."""


class ServerError(OstinatoError):
    """The server refused a request.

    Attributes:
        status: of HTTP.
        wait: seconds after which it may be tried again.

    >>> busy = ServerError("The server is busy.", status=429, wait=2.0)
    >>> busy.status, busy.wait
    (429, 2.0)
    """

    def __init__(self, text: str, status: int, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.wait = status, wait


class Unreachable(OstinatoError):
    """There is no server at that address, or it went away.

    >>> isinstance(Unreachable("http://127.0.0.1:9 does not answer."), OstinatoError)
    True
    """


def options(url: str, key: str | None, timeout: float) -> dict[str, Any]:
    """For httpx's own clients."""
    shown = key if key is not None else os.environ.get(_KEY)
    headers = {"authorization": f"Bearer {shown}"} if shown else {}
    return {"base_url": url, "headers": headers, "timeout": timeout}


def request(call: Call[_T]) -> dict[str, Any]:
    """A call as httpx takes it."""
    given: dict[str, Any] = {"method": call.method, "url": call.path, "params": call.query}
    if call.files:
        kind = "application/octet-stream"
        given["files"] = [("images", (str(n), data, kind)) for n, data in enumerate(call.files)]
    elif call.content is not None:
        given["content"] = call.content
        given["headers"] = {"content-type": "application/octet-stream"}
    elif call.body is not None:
        given["json"] = call.body
    return given


def read(call: Call[_T], response: httpx.Response) -> _T:
    """The answer to a call, or a ServerError."""
    if response.status_code < 400:
        return call.parse(response)
    try:
        text = str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = response.text[:200]
    wait = response.headers.get("retry-after", "")
    raise ServerError(text, response.status_code, float(wait) if wait.isdecimal() else 0.0)


def unreachable(url: object, error: Exception) -> Unreachable:
    """What to tell of an address that does not answer."""
    return Unreachable(f"{url} does not answer ({error or type(error).__name__}).")
