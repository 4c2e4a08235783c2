"""What keeps answers quick: nothing copied, looked up or made twice on their way."""

from __future__ import annotations

import gc
import hashlib
import http.client
import runpy
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from ostinato.methods.ostinato.common import Prepared
from ostinato.methods.ostinato.desk import InUse
from ostinato.serve import _wire as wire
from ostinato.serve._forwards import Forwards
from ostinato.serve._pixels import Fit, decode, digest
from ostinato.serve._stream import Current
from ostinato.serve._wire import HEAD, Sink, choose_parser
from ostinato.serve.batching import Batcher, Job
from ostinato.serve.fleet import Fleet
from ostinato.serve.schema import Guess, ImageAnswer, Prediction

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
ask, batches, serving = (small[n] for n in ("ask", "batches", "serving"))
Server = tuple[TestClient, Fleet]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as found:
        yield found


def test_a_tensor_stays_where_it_was_read_to() -> None:
    images = torch.arange(2 * 3 * 8 * 8).to(torch.uint8).view(2, 3, 8, 8)
    body = bytearray(small["npy"](images))
    levels = decode([body], Fit(8), pixels=64, images=2)
    assert torch.equal(levels, images)
    where = np.frombuffer(body, np.uint8).__array_interface__["data"][0]
    assert where <= levels.data_ptr() < where + len(body)


def test_digests_are_those_of_older_logs() -> None:
    images = batches(1)[0]
    expected = hashlib.blake2b(b"(8, 3, 32, 32)", digest_size=16)
    expected.update(images.numpy().tobytes())
    assert digest(images) == expected.hexdigest()
    assert digest(images[:, :, ::2, ::2]) == digest(images[:, :, ::2, ::2].contiguous())


@pytest.mark.parametrize("query", [{}, {"top": 0}, {"top": 7}, {"source": True, "top": 2}])
def test_an_answer_has_the_fields_that_are_declared(server: Server, query: Any) -> None:
    client, fleet = server
    answer = ask(client, "gate", batches(1)[0], **query)
    read = Prediction.model_validate_json(answer.content, strict=True)
    assert set(answer.json()) == set(Prediction.model_fields)
    top = query.get("top", 5) or fleet.served.outputs
    for image, one in zip(answer.json()["images"], read.images, strict=True):
        assert set(image) == set(ImageAnswer.model_fields)
        assert all(set(guess) == set(Guess.model_fields) for guess in image["guesses"])
        assert len(one.guesses) == top
        assert one.guesses == sorted(one.guesses, key=lambda guess: -guess.probability)
        assert one.guesses[0].name == fleet.served.names[one.guesses[0].label]
        assert (one.source is not None) == query.get("source", False)


def test_few_guesses_are_the_first_of_all(server: Server) -> None:
    client, _ = server
    few, all_of_them = (
        ask(client, "frozen", batches(1)[0], top=top).json()["images"] for top in (3, 0)
    )
    for image, whole in zip(few, all_of_them, strict=True):
        assert [guess["label"] for guess in image["guesses"]] == [
            guess["label"] for guess in whole["guesses"][:3]
        ]


def test_numbers_above_all_others_are_not_looked_for_on_disk(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, fleet = server
    looked: list[int] = []
    found = fleet.store.answer
    monkeypatch.setattr(
        fleet.store, "answer", lambda stream, n: looked.append(n) or found(stream, n)
    )
    for number in (4, 7, 9, 8):
        assert ask(client, "counted", batches(1)[0], sequence=number).status_code == 200
    assert looked == [8]


def test_after_a_restart_recorded_numbers_are_still_found(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, _):
        first = ask(client, "gate", batches(1)[0], sequence=5).json()
    with serving(tmp_path) as (client, fleet):
        assert fleet.streams["gate"].record.highest == 5
        again = ask(client, "gate", batches(1)[0], sequence=5).json()
    assert again == first | {"repeated": True}


@pytest.fixture
def overlapping(tmp_path: Path) -> Iterator[Server]:
    """A server whose forwards go in three steps, as on a GPU."""
    fleet = Fleet(small["settings"](tmp_path, batching={"images": 16}), small["served"]())
    fleet.batcher.forwards = Forwards(
        fleet.served.model, fleet._answered, fleet.metrics.ran, overlap=True
    )
    app = small["make_app"](fleet)
    with TestClient(app, base_url=small["HOME"], raise_server_exceptions=False) as client:
        yield client, fleet


def test_steps_that_overlap_answer_as_those_that_do_not(
    server: Server, overlapping: Server
) -> None:
    given = batches(4)
    for client, _ in (server, overlapping):
        for name in "abcd":
            client.post("/v1/streams", json={"name": name, "frozen": True})
    client, fleet = overlapping
    with ThreadPoolExecutor(8) as pool:
        work = [
            pool.submit(ask, client, name, images, top=0)
            for _ in range(4)
            for name, images in zip("abcd", given, strict=True)
        ]
        found = [one.result().json()["images"] for one in work]
    for at, images in enumerate(found):
        expected = ask(server[0], "abcd"[at % 4], given[at % 4], top=0).json()["images"]
        for mine, its in zip(images, expected, strict=True):
            shares = [{g["label"]: g["probability"] for g in one["guesses"]} for one in (mine, its)]
            assert shares[0] == pytest.approx(shares[1], abs=1e-5)
    assert not fleet.batcher.busy()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_forward_counts_with_the_time_that_it_takes(
    server: Server, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    _, fleet = server
    run, told = Prepared.launch, list[tuple[int, int, float]]()

    def slow(prepared: Prepared) -> Any:
        time.sleep(0.05)
        return run(prepared)

    monkeypatch.setattr(Prepared, "launch", slow)
    forwards = Forwards(
        fleet.served.model, lambda *_: None, lambda *one: told.append(one), overlap=overlap
    )
    gate = fleet.open("gate")
    for _ in range(3):
        forwards.await_room()
        forwards.take([Job(gate, batches(1)[0], False, time.monotonic() + 60)])
    forwards.stop()
    assert [one[:2] for one in told] == [(1, 8)] * 3
    assert all(seconds >= 0.05 for _, _, seconds in told)


def test_requests_that_come_while_there_is_no_room_go_together(server: Server) -> None:
    class Slow:
        """Forwards that have room when they are told so."""

        def __init__(self) -> None:
            self.room, self.taken = threading.Semaphore(1), list[int]()

        def await_room(self) -> None:
            self.room.acquire()

        def take(self, jobs: list[Job]) -> None:
            self.taken.append(len(jobs))

        def stop(self) -> None:
            """Nothing is on its way."""

    forwards: Any = Slow()
    batcher = Batcher(forwards, images=64, wait=0.001, most=256, threads=1)
    batcher.start()
    for wanted in (1, 4):
        for _ in range(wanted):  # each has waited for longer than others are waited for
            job = Job(server[1].open("gate"), batches(1)[0], False, time.monotonic() + 60)
            batcher.submit(job)
            time.sleep(0.01)
        if wanted > 1:
            assert forwards.taken == [1]
            forwards.room.release()
        small["wait_for"](lambda wanted=wanted: forwards.taken[-1:] == [wanted])
    forwards.room.release()
    batcher.stop()
    assert forwards.taken == [1, 4]


@pytest.mark.parametrize("step", ["prepare", "launch"])
def test_what_fails_in_a_step_harms_no_other_request(
    overlapping: Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    client, fleet = overlapping
    ask(client, "bad", batches(1)[0])
    ask(client, "good", batches(1)[0])
    fleet.learner.ask(lambda: None).result()
    if step == "prepare":
        broken: Any = InUse(None, (0, 0))  # type: ignore[arg-type]
        monkeypatch.setattr(fleet.streams["bad"], "current", Current("broken", broken))
    else:
        run = Prepared.launch

        def fails(prepared: Prepared) -> Any:
            if len(prepared.places) > 1 or prepared.pixels[0, 0, 0, 0] == 0:
                raise RuntimeError("out of memory")
            return run(prepared)

        monkeypatch.setattr(Prepared, "launch", fails)
    bad = torch.zeros_like(batches(1)[0])
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(ask, client, "bad", bad)
        other = pool.submit(ask, client, "good", 255 - bad)
        assert one.result().status_code == 422
        assert other.result().status_code == 200
    small["wait_for"](lambda: not fleet.batcher.busy())


def test_a_head_that_does_not_end_is_refused(tmp_path: Path) -> None:
    with small["listening"](tmp_path) as (address, _):
        place = urlsplit(address)
        for line in (b"x-one: " + b"a" * 8 * HEAD, b"x-n: 1\r\n" * HEAD, b""):
            start = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            if not line:
                start = b"GET /" + b"a" * 8 * HEAD
            with socket.create_connection((place.hostname, place.port), timeout=20) as wire:
                said = b""
                try:
                    wire.sendall(start + line)
                    said = wire.recv(1000)
                except ConnectionError:
                    continue  # refused before it was read
                assert b" 400 " in said.split(b"\r\n")[0], choose_parser()
        where = f"{address}/v1/streams/gate/predict"
        kind = {"content-type": "application/x-npy"}
        answer = httpx.post(where, content=small["npy"](batches(1)[0]), headers=kind)
        assert answer.status_code == 200


@pytest.mark.parametrize("way", ["whole", "pieces", "chunked", "continue"])
def test_a_body_arrives_as_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    begun, begin = list[int](), Sink.begin
    monkeypatch.setattr(Sink, "begin", lambda self, length: begun.append(1) or begin(self, length))
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    body = small["npy"](images)
    head = "POST /v1/streams/gate/predict?sequence=%d HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += "content-type: application/x-npy\r\n"
    sized = f"content-length: {len(body)}\r\n"
    with small["listening"](tmp_path) as (address, fleet):
        fleet.open("gate").frozen = True
        seen, offer = list[torch.Tensor](), fleet.streams["gate"].offer
        monkeypatch.setattr(
            fleet.streams["gate"], "offer", lambda entry: seen.append(entry.levels) or offer(entry)
        )
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=20) as wire:
            for number in range(3):  # over one connection
                start = head % number
                if way == "chunked":
                    wire.sendall((start + "transfer-encoding: chunked\r\n\r\n").encode())
                    for part in (body[:100], body[100:70_000], body[70_000:]):
                        wire.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                    wire.sendall(b"0\r\n\r\n")
                elif way == "continue":
                    wire.sendall((start + sized + "expect: 100-continue\r\n\r\n").encode())
                    assert b" 100 " in wire.recv(1000).split(b"\r\n")[0]
                    wire.sendall(body)
                elif way == "whole":
                    wire.sendall((start + sized + "\r\n").encode() + body)
                else:
                    wire.sendall((start + sized + "\r\n").encode())
                    for at in range(0, len(body), 30_001):
                        wire.sendall(body[at : at + 30_001])
                        time.sleep(0.002)
                answer = http.client.HTTPResponse(wire, method="POST")
                answer.begin()
                assert answer.status == 200, answer.read()
                answer.read()
    assert len(seen) == 3
    assert all(torch.equal(one, images) for one in seen)
    assert len(begun) == (0 if way == "chunked" else 3)


def test_a_body_is_let_go_of_without_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[weakref.ref[Any]]()

    def room(length: int) -> memoryview:
        whole = np.empty(length, np.uint8)
        made.append(weakref.ref(whole))
        return memoryview(whole)

    monkeypatch.setattr(wire, "room", room)
    kind = {"content-type": "application/x-npy"}
    with small["listening"](tmp_path) as (address, fleet):
        fleet.open("gate").frozen = True
        where = f"{address}/v1/streams/gate/predict"
        gc.collect()
        gc.disable()
        with httpx.Client() as client:
            for size in (2, 64, 64, 2):  # whole before anybody asks for it, and piece by piece
                content = small["npy"](torch.zeros(size, 3, 32, 32, dtype=torch.uint8))
                assert client.post(where, content=content, headers=kind).status_code == 200
            time.sleep(0.2)  # the last one's answer is known before its forward is put away
            alive = sum(one() is not None for one in made)
        gc.enable()
    assert len(made) == 4
    assert alive <= 1, choose_parser()


def test_who_goes_away_in_the_middle_of_a_body_harms_nobody(tmp_path: Path) -> None:
    with small["listening"](tmp_path) as (address, fleet):
        place = urlsplit(address)
        for _ in range(3):
            with socket.create_connection((place.hostname, place.port), timeout=20) as wire:
                wire.sendall(
                    b"POST /v1/streams/gate/predict HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                    b"content-type: application/x-npy\r\ncontent-length: 900000\r\n\r\n"
                    + bytes(9000)
                )
        where, kind = f"{address}/v1/streams/gate/predict", {"content-type": "application/x-npy"}
        answer = httpx.post(where, content=small["npy"](batches(1)[0]), headers=kind)
        assert answer.status_code == 200
        assert fleet.streams["gate"].watch.answered == 8
