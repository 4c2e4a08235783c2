"""Who may do what, and what a request may be."""

from __future__ import annotations

import io
import runpy
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from PIL import Image

from ostinato.cli import main
from ostinato.errors import ConfigError
from ostinato.serve import keys
from ostinato.serve.fleet import Fleet
from ostinato.serve.guard import _Buckets
from ostinato.serve.keys import add_key, list_keys, revoke_key
from ostinato.serve.running import check_closed
from ostinato.serve.schema import ROLES
from ostinato.serve.store import Store

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
ask, batches, npy, serving = (small[n] for n in ("ask", "batches", "npy", "serving"))
Server = tuple[TestClient, Fleet]
OPEN = {"/", "/page.js", "/charts.js", "/page.css", "/favicon.ico", "/healthz", "/readyz"}
CALLS = {
    "predict": [("POST", "/v1/streams/gate/predict", {"content": npy(batches(1, 2)[0])})],
    "operate": [
        ("POST", "/v1/streams", {"json": {"name": "made"}}),
        ("POST", "/v1/streams/gate/checkpoints", {"json": {"name": "kept"}}),
        ("POST", "/v1/streams/gate/rollback", {"json": {"to": "kept"}}),
        ("DELETE", "/v1/streams/gate/checkpoints/kept", {}),
        ("POST", "/v1/streams/gate/freeze", {"json": {}}),
        ("POST", "/v1/streams/gate/unfreeze", {"json": {}}),
        ("GET", "/v1/streams/gate/export", {}),
        ("POST", "/v1/streams/gate/import", {"content": b"junk"}),
        ("POST", "/v1/streams/gate/reset", {"json": {}}),
        ("DELETE", "/v1/streams/made", {}),
    ],
    "read": [
        ("GET", "/v1/server", {}),
        ("GET", "/v1/streams", {}),
        ("GET", "/v1/streams/gate", {}),
        ("GET", "/v1/streams/gate/timeline", {}),
        ("GET", "/v1/streams/gate/snapshots", {}),
        ("GET", "/v1/streams/gate/events", {}),
        ("GET", "/v1/streams/gate/domains/1/thumbnails/0", {}),
        ("GET", "/v1/events", {}),
        ("GET", "/v1/live?stream=nobody", {}),
        ("GET", "/metrics", {}),
        ("GET", "/openapi.json", {}),
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    given = {"limits": {"body_mb": 1, "images": 4, "pixels": 100_000}}
    with serving(tmp_path_factory.mktemp("data"), **given) as found:
        yield found


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("closed")
    store = Store(folder)
    made = {role: add_key(store, role, [role]) for role in ROLES}
    store.close()
    with serving(folder) as (client, fleet):
        fleet.create("gate", None)
        yield client, made


# Keys.


@pytest.mark.parametrize("role", ROLES)
def test_a_key_does_its_own_work_and_nobody_elses(
    closed: tuple[TestClient, dict[str, str]], role: str
) -> None:
    client, made = closed
    for needed, calls in CALLS.items():
        for method, path, body in calls:
            kind = {"content-type": "application/x-npy"} if "content" in body else {}
            for shown, expected in ((None, 401), ("ost_wrong", 401), (made[role], 403)):
                headers = kind | ({"authorization": f"Bearer {shown}"} if shown else {})
                answer = client.request(method, path, headers=headers, **body)
                if expected == 403 and needed == role:
                    assert answer.status_code not in (401, 403), (path, answer.text)
                else:
                    assert answer.status_code == expected, (path, role)


def test_every_path_is_in_that_test(server: Server) -> None:
    client, _ = server
    paths = {
        (method, route.path)
        for route in _routes(client.app)
        for method in route.methods
        if route.path not in OPEN
    }
    assert len(paths) == sum(len(calls) for calls in CALLS.values())


def _routes(app: Any) -> list[APIRoute]:
    found: list[APIRoute] = []
    for route in app.routes:
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        found += _routes(inner) if inner is not None else []
        if isinstance(route, APIRoute):
            found.append(route)
    return found


def test_keys_are_kept_as_hashes_and_can_be_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_FRESH", 0.0)
    main(["keys", "add", "camera", "--role", "predict", "--data", str(tmp_path)])
    key = capsys.readouterr().out.strip()
    assert all(key.encode() not in path.read_bytes() for path in tmp_path.iterdir())
    headers = {"authorization": f"Bearer {key}", "content-type": "application/x-npy"}
    with serving(tmp_path) as (client, _):
        where = "/v1/streams/gate/predict"
        assert client.post(where, content=npy(batches(1)[0]), headers=headers).status_code == 200
        store = Store(tmp_path)
        revoke_key(store, "camera")
        assert list_keys(store) == []
        store.close()
        assert client.post(where, content=npy(batches(1)[0]), headers=headers).status_code == 401


def test_another_address_needs_a_key(tmp_path: Path) -> None:
    chosen = small["settings"](tmp_path, host="0.0.0.0")
    with pytest.raises(ConfigError, match="needs keys"):
        check_closed(chosen)
    store = Store(tmp_path)
    add_key(store, "camera", ["predict"])
    store.close()
    check_closed(chosen)


# Pages elsewhere.


def test_pages_of_other_sites_change_nothing_and_other_names_are_not_ours(server: Server) -> None:
    client, _ = server
    path, body = "/v1/streams", {"name": "theirs"}
    for headers in (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "null"},
    ):
        assert client.post(path, json=body, headers=headers).status_code == 403
    assert client.get("/v1/streams", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/v1/streams", headers={"host": "localhost:8000"}).status_code == 200
    assert client.post(path, json=body, headers={"origin": "http://127.0.0.1"}).status_code == 201


def test_every_answer_has_a_strict_policy_and_get_changes_nothing(server: Server) -> None:
    client, _ = server
    for path in ("/", "/v1/streams", "/v1/streams/none", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    for what in ("freeze", "unfreeze", "reset", "rollback", "import", "checkpoints", "predict"):
        assert client.get(f"/v1/streams/theirs/{what}").status_code == 405


# Requests.


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few hundred bytes that announces billions of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def picture(size: tuple[int, int] = (40, 40), kind: str = "png") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size).save(data, format=kind)
    return data.getvalue()


def header(text: str) -> bytes:
    padded = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


OBJECTS = np.array([{"a": 1}], dtype=object)
UINT8 = "{'descr': '|u1', 'fortran_order': %s, 'shape': %s}"
REFUSED: dict[str, tuple[bytes, int]] = {
    "a bomb": (bomb(), 413),
    "too many pixels": (picture((400, 400)), 413),
    "too many bytes": (bytes(2**20 + 1), 413),
    "too many images": (npy(np.zeros((5, 3, 32, 32), np.uint8)), 413),
    "nothing": (b"", 422),
    "no image": (b"GIF89a" + bytes(100), 422),
    "half an image": (picture(kind="jpeg")[:200], 422),
    "a page": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422),
    "floats": (npy(np.zeros((1, 3, 32, 32), np.float32)), 422),
    "another size": (npy(np.zeros((1, 3, 31, 32), np.uint8)), 422),
    "one channel": (npy(np.zeros((1, 1, 32, 32), np.uint8)), 422),
    "objects": (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"cos\n.", 422),
    "a shape that is not there": (header(UINT8 % (False, "(4, 3, 32, 32)")) + bytes(10), 422),
    "a negative shape": (header(UINT8 % (False, "(-1, 3, 32, 32)")), 422),
    "columns first": (header(UINT8 % (True, "(1, 3, 32, 32)")) + bytes(3072), 422),
    "a program for a header": (header("__import__('os').system('true')"), 422),
    "a deep header": (header("(" * 60 + ")" * 58), 422),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_refused_and_leaves_no_trace(server: Server, what: str) -> None:
    client, fleet = server
    data, status = REFUSED[what]
    answer = client.post(
        "/v1/streams/victim/predict",
        content=data,
        headers={"content-type": "application/octet-stream"},
    )
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]
    assert "victim" not in fleet.streams


def test_a_body_without_a_length_is_held_to_the_same_limit(server: Server) -> None:
    client, _ = server

    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield bytes(2**16)

    for path in ("/v1/streams/gate/predict", "/v1/streams"):
        kind = {"content-type": "application/x-npy"}
        assert client.post(path, content=endless(), headers=kind).status_code == 413


def _around(folder: Path) -> list[str]:
    """What lies in a server's folder and beside it, but for states and index that it writes to."""
    found = [*folder.rglob("*"), *folder.parent.iterdir()]
    own = (".safetensors", "index.db")
    return sorted(str(path) for path in found if not any(part in path.name for part in own))


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2fb", "-x", "a" * 65, "%00", "é"])
def test_a_name_is_never_a_path(server: Server, name: str) -> None:
    client, fleet = server
    before, known = _around(fleet.store.folder), set(fleet.streams)
    answer = client.post(
        f"/v1/streams/{name}/predict",
        content=npy(batches(1, 2)[0]),
        headers={"content-type": "application/x-npy"},
    )
    assert answer.status_code in (404, 405, 422)
    assert set(fleet.streams) == known
    assert _around(fleet.store.folder) == before


def test_too_many_requests_of_one_caller_are_slowed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = _Buckets.take  # all within a moment, however slow the machine is
    monkeypatch.setattr(_Buckets, "take", lambda self, who: take(self, who, now=0.0))
    store = Store(tmp_path)
    key = add_key(store, "camera", ["read"])
    store.close()
    with serving(tmp_path, limits={"rate": 3}) as (client, _):
        # who shows no key of ours, or invents new ones, is told by address
        invented = [{"authorization": f"Bearer {at}"} for at in range(5)]
        found = [client.get("/healthz", headers=one).status_code for one in invented]
        assert found == [200, 200, 200, 429, 429]
        mine = client.get("/healthz", headers={"authorization": f"Bearer {key}"})
        assert mine.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/streams", {"name": "x", "surprise": 1}),
        ("/v1/streams", {"name": "../x"}),
        ("/v1/streams", {"name": "x", "preset": "paper"}),
        ("/v1/streams", []),
        ("/v1/streams/theirs/rollback", {"domain": 0}),
        ("/v1/streams/theirs/freeze", {"domain": "all"}),
        ("/v1/streams/theirs/checkpoints", {"name": "a/b"}),
    ],
)
def test_bodies_that_say_something_else_are_refused(server: Server, path: str, body: Any) -> None:
    answer = server[0].post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert set(answer.json()) == {"error"}


def test_the_interface_describes_itself_with_examples(server: Server) -> None:
    client, _ = server
    found = client.get("/openapi.json").json()
    assert "multipart/form-data" in str(found["paths"]["/v1/streams/{name}/predict"])
    assert found["components"]["schemas"]["Prediction"]["properties"]["version"]["examples"]
    assert all(
        {"401", "403"} <= set(call["responses"])
        for path, calls in found["paths"].items()
        if path not in OPEN
        for call in calls.values()
    )
