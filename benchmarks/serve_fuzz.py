"""Malformed requests to a server: no 5xx, no state changed, memory flat.

    python benchmarks/serve_fuzz.py --requests 10000

Paths, queries and bodies are drawn from the server's own OpenAPI with values that do not belong
there; images are cut, flipped and lied about; states are damaged. One stream is watched: it has to
be the same afterwards, to the bit.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import random
import struct
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from _serving import Server, as_npy, images
from PIL import Image

NAMES = ("gate", "nobody", "..", "%2e%2e%2f", "a" * 80, "%00", "gate%20x", "'", "é", "gate/../x")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, "", "x", "../..", "é" * 50, "\x00"),
    *([], {}, [1], {"a": 1}, "'; DROP TABLE streams; --", "gate", "robust", "🙂"),
)
KINDS = (
    *("application/x-npy", "image/png", "image/jpeg", "image/webp", "application/octet-stream"),
    *("application/json", "multipart/form-data; boundary=x", "multipart/form-data", "text/html"),
    *("", "multipart/form-data; boundary=" + "y" * 300),
)


def png(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def header(text: str) -> bytes:
    padded = text.encode() + b" " * 20 + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


class Hostile:
    """Requests that nobody should send."""

    def __init__(self, seed: int, schema: dict[str, Any], states: list[bytes]) -> None:
        self.random, self.states = random.Random(seed), states
        self.paths = [
            (method.upper(), path, call.get("parameters", []))
            for path, calls in schema["paths"].items()
            for method, call in calls.items()
            if path != "/v1/live"
            and (method, path) != ("delete", "/v1/streams/{name}")  # that is no malformed request
        ]
        good = images(8)[0]
        self.files = [as_npy(good[:2])]
        for kind in ("png", "jpeg", "webp"):
            data = io.BytesIO()
            Image.fromarray(good[0].transpose(1, 2, 0)).resize((64, 48)).save(data, format=kind)
            self.files.append(data.getvalue())

    def request(self) -> tuple[str, str, bytes, dict[str, str]]:
        kind = self.random.randrange(4)
        if kind < 2:
            name = self.random.choice(NAMES)
            query = self.random.choice(
                ("", "?top=-1", "?sequence=1e9", "?top=5&source=maybe", "?%")
            )
            path = f"/v1/streams/{name}/predict{query}"
            return "POST", path, self.body(), {"content-type": self.random.choice(KINDS)}
        method, path, parameters = self.random.choice(self.paths)
        if path.endswith("/predict"):
            return "POST", "/v1/streams/gate/predict", self.body(), {"content-type": "image/png"}
        if path.endswith("/import"):
            return "POST", "/v1/streams/gate/import", self.state(), {"content-type": KINDS[4]}
        for word in ("name", "label", "domain", "number"):
            path = path.replace(f"{{{word}}}", self._plain(self.random.choice(NAMES)))
        query = "&".join(
            f"{one['name']}={self._plain(str(self.random.choice(VALUES)))}"
            for one in parameters
            if one["in"] == "query" and self.random.random() < 0.6
        )
        path = f"{path}?{query}" if query else path
        headers = {"content-type": self.random.choice(("application/json", *KINDS))}
        if self.random.random() < 0.1:
            method = self.random.choice(("PUT", "PATCH", "TRACE", "OPTIONS", "HEAD"))
        return method, path, self._json() if method not in ("GET", "HEAD") else b"", headers

    def state(self) -> bytes:
        """The stream's own state, cut, flipped, mixed or signed for something else."""
        data = bytearray(self.random.choice(self.states))
        turn = self.random.randrange(5)
        if turn == 0:
            return bytes(data[: self.random.randrange(len(data))])
        if turn == 1:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        elif turn == 2:  # the length of the header, and the header
            data[self.random.randrange(2000)] ^= 1 << self.random.randrange(8)
        elif turn == 3:
            start = self.random.randrange(len(data))
            data[start : start + 64] = self.random.randbytes(self.random.randrange(64))
        else:
            return self.random.randbytes(self.random.randrange(4000))
        return bytes(data)

    def _plain(self, text: str) -> str:
        from urllib.parse import quote

        return text if "%" in text else quote(text, safe="")

    def _json(self) -> bytes:
        keys = ("name", "to", "domain", "preset", "frozen", "start", "other")
        # Names that would be accepted are left out: this is about what must be refused.
        wrong = [value for value in VALUES if value not in ("x", "gate")]
        body = {self.random.choice(keys): self.random.choice(wrong) for _ in range(3)}
        body["surprise"] = 1
        text = json.dumps(body).encode()
        turn = self.random.randrange(5)
        return (text, text[:-3], b"\xff" * 40, b"[" * 3000, text + text)[turn]

    def body(self) -> bytes:
        data = bytearray(self.random.choice(self.files))
        turn = self.random.randrange(9)
        if turn == 0:
            return bytes(data[: self.random.randrange(len(data) - 1)])
        if turn == 1:  # damaged beyond the header, where that makes it unreadable
            return bytes(data[:30]) + self.random.randbytes(len(data) // 2)
        if turn == 2:
            return self.random.randbytes(self.random.randrange(2000))
        if turn == 3:
            return png(self.random.choice((2**31 - 1, 60_000, 0)), 60_000, bytes(100))
        if turn == 4:
            shape = self.random.choice(("(9999999, 3, 32, 32)", "(-1,)", "()", "(1, 3, 31, 31)"))
            return header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}")
        if turn == 5:
            return (
                header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"cos\nsystem\n."
            )
        if turn == 6:
            return as_npy(np.zeros((1, 3, 32, 32), np.float64))
        if turn == 7:
            return b"--x\r\ncontent-disposition: form-data; name=images; filename=a\r\n" + bytes(
                data
            )
        return b""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as place:
        settings = {"threads": 1, "device": "cpu", "limits": {"rate": 1e6, "streams": 1}}
        server = Server(Path(place), settings | {"streams": {"gate": {}}})
        server.start()
        for part in images(24)[1].reshape(3, 8, 3, 32, 32):
            _send(server, ("POST", "/v1/streams/gate/predict", as_npy(part),
                           {"content-type": "application/x-npy"}))  # fmt: skip
        while server.get("/v1/streams/gate")[1]["learned"] < 3:
            time.sleep(0.1)
        schema = server.get("/openapi.json")[1]
        where = "/v1/streams/gate/export"
        states = [server.get(where + query)[1] for query in ("", "?images=true")]
        hostile = Hostile(given.seed, schema, states)
        before, statuses, memory, taken = _state(server), Counter[int](), [], 0
        for number in range(given.requests):
            request = hostile.request()
            status = _send(server, request)
            statuses[status] += 1
            taken += status == 200 and request[0] == "POST"
            if number % max(1, given.requests // 50) == 0:
                memory.append(server.memory())
        shown = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
        print(f"{given.requests} malformed requests: {shown} (0: the connection was closed)")
        print(f"5xx: {sum(n for status, n in statuses.items() if status >= 500)}; "
              f"taken as requests that change something: {taken}")  # fmt: skip
        print(f"the watched stream is the same: {before == _state(server)}; "
              f"streams: {len(server.get('/v1/streams')[1])}")  # fmt: skip
        half = memory[len(memory) // 2 :]
        print(
            f"memory {memory[0]:.0f} MB at first, {half[0]:.0f} at half, {half[-1]:.0f} at the end"
        )
        server.stop()


def _state(server: Server) -> tuple[str, str]:
    found = server.get("/v1/streams/gate")[1]
    data = server.get("/v1/streams/gate/export?images=true")[1]
    length = struct.unpack("<Q", data[:8])[0]
    return found["version"], json.loads(data[8 : 8 + length])["__metadata__"]["digest"]


def _send(server: Server, request: tuple[str, str, bytes, dict[str, str]]) -> int:
    method, path, body, headers = request
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path.encode("ascii", "replace").decode(), body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    main()
