"""How bytes become requests: the faster parser where it is installed, with bounded heads."""

from __future__ import annotations

from typing import Any

HEAD = 32 * 1024
"""Bytes of a request that are not its body: its line, its headers, the sizes of its pieces."""


def choose_parser() -> dict[str, Any]:
    """Options of uvicorn: httptools, which takes less time for long bodies, or else h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return {"http": "h11", "h11_max_incomplete_event_size": HEAD}

    class Bounded(HttpToolsProtocol):
        """Refuses a head that does not end, which the parser would gather for ever."""

        left = HEAD

        def data_received(self, data: bytes) -> None:
            """Some of a request came."""
            self.left -= len(data)
            super().data_received(data)
            if self.left < 0 and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_message_begin(self) -> None:
            """A request begins."""
            self.left = HEAD
            super().on_message_begin()

        def on_body(self, body: bytes) -> None:
            """Pieces of a body come with their sizes, which may be longer than they are."""
            self.left += 9 * len(body)
            super().on_body(body)

    return {"http": Bounded}
