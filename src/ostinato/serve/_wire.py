"""How bytes become requests: the faster parser where it is installed, with bounded heads."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

HEAD = 32 * 1024
"""Bytes of a request that are not its body: its line, its headers, the sizes of its pieces."""
SINK = "ostinato.sink"
"""Where a request's scope has its `Sink`."""


class Sink:
    """Takes the rest of a body past the event loop's queue, once somebody wants all of it.

    Handed on piece by piece, a long body wakes its reader for every 64 kB, and each time the event
    loop needs the interpreter; like this its reader wakes once, and fewer copies are made.

    The request knows its sink. What the sink holds on to would stay for as long: a whole body as
    long as its connection is open, and with the request itself in it, until the collector comes.
    """

    def __init__(self) -> None:
        self._cycle: Any = None
        self._whole = False
        self._body: memoryview | None = None
        self._count = 0

    def of(self, cycle: Any) -> None:
        """Say which request it is."""
        self._cycle = weakref.ref(cycle)

    def begin(self, length: int) -> memoryview:
        """Room for a whole body, which is gathered there from now on; what has come already first.

        Args:
            length: of the body, as it was announced and checked: what grows is copied many times.
        """
        body = self._body = room(length)
        cycle = self._cycle()
        self.take(cycle.body)
        cycle.body = bytearray()
        if self._whole:
            self.end()
        return body

    def take(self, piece: bytes | bytearray) -> bool:
        """Put a piece of the body where it belongs; False where nobody wants that."""
        if self._body is None:
            return False
        start, self._count = self._count, self._count + len(piece)
        self._body[start : self._count] = piece
        return True

    def end(self) -> None:
        """All of the body has come."""
        self._whole, self._body = True, None


def room(length: int) -> memoryview:
    """So many bytes to be written to; whatever they are before."""
    return np.empty(length, np.uint8).data


def choose_parser() -> dict[str, Any]:
    """Options of uvicorn: httptools, which takes less time for long bodies, or else h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return {"http": "h11", "h11_max_incomplete_event_size": HEAD}

    class Bounded(HttpToolsProtocol):
        """Refuses a head that does not end, which the parser would gather for ever."""

        left = HEAD
        sink: Sink

        def data_received(self, data: bytes) -> None:
            """Some of a request came."""
            self.left -= len(data)
            super().data_received(data)
            if self.left < 0 and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_message_begin(self) -> None:
            """A request begins."""
            self.left, self.sink = HEAD, Sink()
            super().on_message_begin()
            self.scope[SINK] = self.sink  # type: ignore[literal-required]

        def on_headers_complete(self) -> None:
            """Its body begins."""
            super().on_headers_complete()
            self.sink.of(self.cycle)

        def on_body(self, body: bytes) -> None:
            """Pieces of a body come with their sizes, which may be longer than they are."""
            self.left += 9 * len(body)
            if not self.sink.take(body):
                super().on_body(body)

        def on_message_complete(self) -> None:
            """A request has come whole."""
            super().on_message_complete()
            self.sink.end()

    return {"http": Bounded}
