"""What is on disk: whole after a crash at any moment, made again from the log, written later."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.errors import ConfigError
from ostinato.ops.snapshot import State, load_state
from ostinato.serve import snapshots, writer
from ostinato.serve._sequences import MOST, Sequences
from ostinato.serve.fleet import Fleet
from ostinato.serve.replaying import Replay, _same, verify
from ostinato.serve.store import Store

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
ask, teach, batches, serving = (small[n] for n in ("ask", "teach", "batches", "serving"))
pytestmark = pytest.mark.usefixtures("trusting_throughout")


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, State]:
    """A folder as a crash leaves it, as a shutdown leaves it, and the state at the shutdown."""
    folder = tmp_path_factory.mktemp("data")
    crashed = tmp_path_factory.mktemp("crashed") / "data"
    with serving(folder, record=True) as (client, fleet):
        small["known"](fleet)
        teach(client, fleet, "gate", batches(3))
        client.post("/v1/streams/gate/checkpoints", json={"name": "three"})
        teach(client, fleet, "gate", batches(6)[3:], start=3)
        fleet.writer.flush()
        shutil.copytree(folder, crashed)
        state = fleet.streams["gate"].method.export_state().clone()
    return crashed, folder, state


def test_a_shutdown_loses_nothing(past: tuple[Path, Path, State]) -> None:
    _, folder, state = past
    with serving(folder) as (client, fleet):
        stream = fleet.streams["gate"]
        assert _same(state, stream.method.export_state())
        assert (stream.learned, stream.lost) == (6, 0)
        assert ask(client, "gate", batches(1)[0], sequence=0).json()["repeated"]


def test_a_crash_loses_what_came_after_the_snapshot_and_says_so(
    past: tuple[Path, Path, State], tmp_path: Path
) -> None:
    crashed, *_ = past
    shutil.copytree(crashed, tmp_path / "data")
    (tmp_path / "data" / "streams" / "1" / "half.safetensors").write_bytes(b"torn")
    with serving(tmp_path / "data") as (client, fleet):
        stream = fleet.streams["gate"]
        assert (stream.learned, stream.lost) == (3, 3)
        assert stream.met.intervals == [[0, 2]]
        began = client.get("/v1/streams/gate/events", params={"kind": "began"}).json()[-1]["body"]
        assert (began["why"], began["lost"]) == ("restarted", 3)
        # what was answered is answered the same; what was learned is not learned twice
        assert ask(client, "gate", batches(6)[4], sequence=4).json()["repeated"]
        teach(client, fleet, "gate", batches(3))
        assert stream.learned == 3
        assert not (fleet.store.place(1) / "half.safetensors").exists()


def test_without_its_record_a_repeated_number_is_answered_anew_and_not_learned(
    past: tuple[Path, Path, State], tmp_path: Path
) -> None:
    shutil.copytree(past[0], tmp_path / "data")
    with Store(tmp_path / "data").changing() as connection:
        connection.execute("DELETE FROM answers")
    with serving(tmp_path / "data") as (client, fleet):
        answer = ask(client, "gate", batches(2)[1], sequence=1).json()
        assert answer["repeated"]
        assert not answer["learning"]
        assert fleet.streams["gate"].waiting == 0


def test_a_damaged_snapshot_gives_way_to_the_one_before(
    past: tuple[Path, Path, State], tmp_path: Path
) -> None:
    shutil.copytree(past[1], tmp_path / "data")
    store = Store(tmp_path / "data")
    newest, *_ = store.snapshots(1)
    path = store.place(1) / newest.file
    path.write_bytes(path.read_bytes()[:-1000])
    with serving(tmp_path / "data") as (client, fleet):
        assert fleet.streams["gate"].learned == 3
        fleet.writer.flush()
        found = client.get("/v1/streams/gate/events", params={"kind": "damaged"}).json()
        assert found[0]["body"]["snapshot"] == newest.id


def test_the_log_leads_to_every_snapshot_again(past: tuple[Path, Path, State]) -> None:
    _, folder, _ = past
    chosen, served = small["settings"](folder), small["served"]()
    found = verify(Store(folder), chosen, served, "gate")
    assert len(found) >= 2
    assert all(good for _, good in found)
    # and would not, had it said anything else
    store = Store(folder)
    version = store.snapshots(1)[0].version
    other = version.rpartition(".")[0] + ".2"
    kept, _ = load_state(store.place(1) / store.snapshots(1)[0].file)
    if version != other:
        assert not _same(kept, Replay(store, chosen, served, "gate").to(other).export_state())


def test_only_the_latest_snapshots_and_the_named_ones_are_kept(tmp_path: Path) -> None:
    given = {"snapshots": {"keep": 2, "updates": 1}}
    with serving(tmp_path, **given) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        client.post("/v1/streams/gate/checkpoints", json={"name": "first"})
        for number, images in enumerate(batches(5)[1:], 1):
            teach(client, fleet, "gate", [images], start=number)
            assert fleet.writer.flush()
        rows = client.get("/v1/streams/gate/snapshots").json()
        assert [row["name"] for row in rows] == [None, None, "first"]
        assert rows[0]["learned"] == 5
        files = {path.name for path in fleet.store.place(1).iterdir()}
        assert files == {row.file for row in fleet.store.snapshots(1)}


def test_a_full_disk_is_served_through_shown_and_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_RETRY", 0.01)
    given = {"snapshots": {"updates": 1}}
    with serving(tmp_path, **given) as (client, fleet):
        teach(client, fleet, "gate", batches(1))
        assert fleet.writer.flush()
        before = fleet.store.snapshots(1)[0].learned

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(writer, "write_snapshot", full)
            patch.setattr(fleet.writer, "write_rows", full)
            teach(client, fleet, "gate", batches(3)[1:], start=1)
            small["wait_for"](lambda: fleet.writer.trouble)
            assert "No space left" in client.get("/v1/server").json()["storage"]
            assert "ostinato_storage_ok 0.0" in client.get("/metrics").text
            assert ask(client, "gate", batches(1)[0], sequence=0).json()["repeated"]
        fleet._retry.clear()
        teach(client, fleet, "gate", batches(4)[3:], start=3)
        assert fleet.writer.flush()
        assert client.get("/v1/server").json()["storage"] == "whole"
        assert fleet.store.snapshots(1)[0].learned == 4 > before
        learned = client.get("/v1/streams/gate/events", params={"kind": "learned"}).json()
        assert [one["body"]["learned"] for one in learned] == [1, 2, 3, 4]


def test_learning_that_fails_goes_back_to_the_newest_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (client, fleet):
        teach(client, fleet, "gate", batches(2))
        client.post("/v1/streams/gate/checkpoints", json={"name": "good"})
        stream = fleet.streams["gate"]
        kept = stream.method.export_state().clone()

        def broken(levels: torch.Tensor) -> tuple[str, ...]:
            stream.method.bank.updates += 1  # half a change
            raise RuntimeError("linear algebra")

        with monkeypatch.context() as patch:
            patch.setattr(stream.method, "take", broken)
            teach(client, fleet, "gate", batches(3)[2:], start=2)
        assert _same(kept, stream.method.export_state())
        assert ask(client, "gate", batches(1)[0], sequence=9).status_code == 200
        assert client.get("/v1/streams/gate/events", params={"kind": "failed"}).json()


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    with serving(tmp_path), pytest.raises(ConfigError, match="Another server"):
        Fleet(small["settings"](tmp_path), small["served"]()).start()


def test_sequence_numbers_take_little_room_and_forget_none_that_was_met() -> None:
    met, generator = Sequences(), torch.Generator().manual_seed(0)
    numbers = torch.randperm(4000, generator=generator)[:2500].tolist()
    for number in numbers:
        met.add(number)
    assert len(met.intervals) <= MOST
    assert all(number in met for number in numbers)
    again = Sequences(json.loads(json.dumps(met.export())))
    assert again.intervals == met.intervals
    assert not any(again.add(number) for number in numbers)


def test_a_row_never_names_a_file_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.add_stream("gate", "robust", frozen=False)
    header = {"stream": {"version": "a.1", "learned": 1, "domains": []}}
    state = State({"x": torch.ones(2)}, {})
    connection = store.connect()

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "write_atomically", cut)
        with pytest.raises(KeyboardInterrupt):
            snapshots.write_snapshot(store, connection, 1, state, header, None)
    assert store.snapshots(1) == []
    row = snapshots.write_snapshot(store, connection, 1, state, header, None)
    found = [one for one, kept, _, _ in snapshots.whole_states(store, 1) if kept is not None]
    assert found == [row]
    store.close()
