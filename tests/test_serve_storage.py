"""A disk that fails: nothing is forgotten, nothing is written twice, nobody dies, nothing leaks."""

from __future__ import annotations

import gc
import io
import json
import runpy
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import StateError
from ostinato.ops.snapshot import State
from ostinato.serve import _learning as learning
from ostinato.serve import fleet as fleets
from ostinato.serve import writer
from ostinato.serve._unwritten import Promise
from ostinato.serve.fleet import Fleet
from ostinato.serve.replaying import Replay
from ostinato.serve.store import StorageError, Store

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
disk = runpy.run_path(str(Path(__file__).with_name("_small_disk.py")))
ask, teach, batches, serving = (small[n] for n in ("ask", "teach", "batches", "serving"))
OFTEN = {"snapshots": {"updates": 1}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_RETRY", 0.01)
    monkeypatch.setattr(fleets, "_AGAIN", 0.01)


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def open_files(name: str) -> int:
    """How often this process has the index open."""
    place = Path("/proc/self/fd")
    if not place.is_dir():
        pytest.skip("no /proc here")
    return sum(_leads_to(handle, name) for handle in place.iterdir())


def _leads_to(handle: Path, name: str) -> bool:
    try:
        return handle.readlink().name == name
    except OSError:  # closed meanwhile
        return False


def test_a_snapshot_whose_turn_did_not_come_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events come first: where they cannot be written, the state behind them must not be lost."""
    with serving(tmp_path) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        assert fleet.writer.flush()
        stream = fleet.streams["gate"]
        with monkeypatch.context() as patch:
            patch.setattr(fleet.writer, "write_rows", full)
            fleet.writer.event(stream.id, "noted")
            done = fleet.snapshot(stream)
            assert done is not None
            with pytest.raises(OSError, match="No space"):
                done.result(timeout=10)
        assert stream.dirty
    assert Store(tmp_path).snapshots(1)[0].learned == 1  # it was written when the server stopped


@pytest.mark.parametrize("fails", [False, True])
def test_a_state_is_let_go_of_without_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Once it is written, or could not be: the collector takes minutes to come to old objects."""
    handed: list[weakref.ref[State]] = []

    def hand(job: writer.SnapshotJob) -> None:
        handed.append(weakref.ref(job.state))
        writer.Writer.snapshot(fleet.writer, job)

    with serving(tmp_path) as (client, fleet), monkeypatch.context() as patch:
        teach(client, fleet, "gate", batches(1))
        assert fleet.writer.flush()
        patch.setattr(fleet.writer, "snapshot", hand)
        if fails:
            patch.setattr(writer, "write_snapshot", full)
        gc.disable()
        try:
            for _ in range(3):
                fleet._retry.clear()
                assert fleet.snapshot(fleet.streams["gate"]) is not None
                small["wait_for"](lambda: not fleet.writer._jobs and fleet.writer._idle)
            assert [ref() for ref in handed] == [None] * 3
        finally:
            gc.enable()


def test_a_log_that_cannot_be_written_doubles_no_event_and_gets_every_line_later(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log.jsonl"
    log.mkdir()
    with serving(tmp_path / "data", log=str(log)) as (client, fleet):
        teach(client, fleet, "gate", batches(2))
        small["wait_for"](lambda: fleet.writer.trouble)
        assert "directory" in client.get("/v1/server").json()["storage"]
        log.rmdir()
        small["wait_for"](lambda: fleet.writer.trouble is None)
        learned = client.get("/v1/streams/gate/events", params={"kind": "learned"}).json()
        assert [one["body"]["learned"] for one in learned] == [1, 2]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["learned"] for line in lines if line["kind"] == "learned"] == [1, 2]


def test_a_line_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    writer._append_whole(str(log), b"first\n")

    class Short(io.FileIO):
        left = 3

        def write(self, data: Any) -> int:
            if not Short.left:
                full()
            done = super().write(bytes(data)[: Short.left])
            Short.left -= done
            return int(done)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode, buffering: Short(str(self), mode))
        with pytest.raises(OSError, match="No space"):
            writer._append_whole(str(log), b"second\n")
    assert log.read_bytes() == b"first\n"


def test_threads_that_end_and_disks_that_fail_leave_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        assert fleet.writer.flush()
        before = open_files("index.db")
        for _ in range(20):
            thread = threading.Thread(target=fleet.store.streams)
            thread.start()
            thread.join()
        with monkeypatch.context() as patch:
            tried: list[int] = []

            def failing(*_: Any) -> None:
                tried.append(1)
                full()

            patch.setattr(fleet.writer, "write_rows", failing)
            fleet.writer.event(1, "noted")
            small["wait_for"](lambda: len(tried) > 20)
        assert fleet.writer.flush()
        assert open_files("index.db") <= before + 1


def test_learning_that_fails_while_the_index_cannot_be_read_begins_at_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        stream = fleet.streams["gate"]

        def broken(*_: Any) -> None:
            raise RuntimeError("linear algebra")

        def unreadable(*_: Any) -> None:
            raise StorageError("The data folder cannot be read.")

        with monkeypatch.context() as patch:
            patch.setattr(stream.method, "take", broken)
            patch.setattr(fleet.store, "snapshots", unreadable)
            teach(client, fleet, "gate", batches(2)[1:], start=1)
        life = stream.life
        assert fleet.alive()
        teach(client, fleet, "gate", batches(3)[2:], start=2)
        assert (stream.life, stream.number) == (life, 1)


def test_a_tick_that_fails_does_not_end_learning_and_a_dead_worker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as (client, fleet):
        ticked: list[int] = []

        def broken(learning: object) -> None:
            ticked.append(1)
            raise RuntimeError("out of memory")

        monkeypatch.setattr(fleet.learner, "_tick", broken)
        small["wait_for"](lambda: len(ticked) > 1)
        assert "the learner goes on" in caplog.text
        assert client.get("/healthz").status_code == 200
        fleet.learner.stop()
        assert client.get("/healthz").json() == {"status": "dead"}


def test_an_update_that_takes_long_does_not_keep_other_streams_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "TICK", 0.0)
    with serving(tmp_path, snapshots={"seconds": 1e-3}) as (client, fleet):
        fleet.create("slow", None)
        slow, taken = fleet.streams["slow"], list[int]()
        fleet.promise = Promise(1e9)
        small["known"](fleet)
        teach(client, fleet, "gate", batches(1))
        gate = fleet.streams["gate"]

        def long(levels: Any) -> tuple[str, ...]:
            fleet.promise = Promise(0.0)
            fleet.learner.give_way()
            taken.append(gate.dirty)
            taken.append(slow.dirty)
            return ()

        monkeypatch.setattr(slow.method, "take", long)
        before = slow.dirty
        teach(client, fleet, "slow", batches(1))
        assert taken == [0, before]  # gate was handed to the writer, slow was not
        assert fleet.writer.flush()
        assert fleet.store.snapshots(gate.id)[0].learned == 1


def test_a_repeated_number_is_answered_though_the_index_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        fleet.streams["gate"].record.clear()

        def unreadable(*_: Any) -> None:
            raise StorageError("The data folder cannot be read.")

        monkeypatch.setattr(fleet.store, "answer", unreadable)
        answer = ask(client, "gate", batches(1)[0], sequence=0)
        assert answer.status_code == 200, answer.text
        assert answer.json()["repeated"]
        assert not answer.json()["learning"]


def test_a_recorded_input_that_was_cut_is_written_anew_and_never_replayed(tmp_path: Path) -> None:
    with serving(tmp_path, record=True) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        (path,) = (fleet.store.place(1) / "inputs").iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[:300])
        teach(client, fleet, "gate", batches(1), start=1)
        assert path.read_bytes() == whole
        version = fleet.streams["gate"].version
    again = Replay(Store(tmp_path), small["settings"](tmp_path), small["served"](), "gate")
    for wrong in (whole[:300], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(wrong)
        with pytest.raises(StateError, match="cut or changed"):
            again.to(version)


def test_what_a_kill_left_on_its_way_in_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "incoming" / "0123.safetensors"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with serving(tmp_path):
        assert not left.exists()


def test_a_disk_that_is_really_full_is_served_through_and_made_up_for(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    with disk["small_disk"](place), serving(place / "data", **OFTEN) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        assert fleet.writer.flush()
        with disk["filled"](place):
            teach(client, fleet, "gate", batches(4)[1:], start=1)
            small["wait_for"](lambda: fleet.storage() != "whole")
            assert "ostinato_storage_ok 0.0" in client.get("/metrics").text
        _written(fleet, lambda: fleet.store.snapshots(1)[0].learned == 4)
        assert client.get("/v1/server").json()["storage"] == "whole"
        learned = client.get("/v1/streams/gate/events", params={"kind": "learned"}).json()
        assert [one["body"]["learned"] for one in learned] == [1, 2, 3, 4]


def _written(fleet: Fleet, done: Callable[[], bool]) -> None:
    small["wait_for"](lambda: fleet.writer.flush() and done())


def test_a_stream_that_never_learned_takes_no_room_and_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, fleet):
        client.post("/v1/streams", json={"name": "silent"})
        teach(client, fleet, "copied", batches(1))
        client.post("/v1/streams", json={"name": "copy", "start": "copied"})
    store = Store(tmp_path)
    written = {row.name: len(store.snapshots(row.id)) for row in store.streams()}
    store.close()
    assert written["silent"] == 0
    assert written["copied"] >= 1
    assert written["copy"] >= 1  # whose start cannot be made again
    with serving(tmp_path) as (client, fleet):
        assert fleet.streams["silent"].dirty == 0
        assert ask(client, "silent", batches(1)[0]).status_code == 200


def test_free_memory_goes_back_once_nothing_was_written_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(writer, "give_back", lambda: given.append(True))
    monkeypatch.setattr(writer, "_REST", 0.05)
    store = Store(tmp_path)
    store.take()
    working = writer.Writer(store, keep=1, events=10, answers=10)
    working.start()
    for round_ in range(3):  # a pause each; in none of them more than once
        working.event(None, "noted")
        small["wait_for"](lambda expected=round_ + 1: len(given) == expected)
        threading.Event().wait(0.2)
        assert len(given) == round_ + 1
    working.stop()
    store.close()
