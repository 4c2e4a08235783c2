"""One writer per stream: epochs fence stale shards, streams move whole, the front holds."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.errors import StateError
from ostinato.scale._front import Front
from ostinato.scale._remote import RemoteStore
from ostinato.scale.fence import StaleShard, StaleStream
from ostinato.scale.shard import Shard
from ostinato.serve.batching import Away
from ostinato.serve.store import StorageError

shards = runpy.run_path(str(Path(__file__).with_name("_shards.py")))
Actor, Gone, get, keeper, predict, shard, batches, wait_for = (
    shards[name]
    for name in ("Actor", "Gone", "get", "keeper", "predict", "shard", "batches", "wait_for")
)


def teach(one: Shard, name: str, count: int, start: int = 0) -> str:
    """Numbered requests, each learned from; the version that answered last."""
    for number, images in enumerate(batches(count + start)[start:], start):
        reply = one.handle(predict(name, images, b"sequence=%d" % number))
        assert reply.status == 200, reply.body
        wait_for(lambda: not one.fleet.streams[name].waiting)
        one.fleet.learner.ask(lambda: None).result()
    return str(one.fleet.streams[name].version)


def state_of(one: Shard, name: str) -> dict[str, Any]:
    return one.fleet.streams[name].capture(images=True)[0].tensors


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_a_shard_that_was_replaced_can_write_nothing(tmp_path: Path) -> None:
    left: list[str] = []
    kept = keeper(tmp_path)
    old = shard(kept, 0, leave=lambda: left.append("left"))
    teach(old, "gate", 2)
    stream = old.fleet.streams["gate"]
    old.fleet.learner.ask(lambda: old.fleet.snapshot(stream)).result().result()  # type: ignore[union-attr]
    known = kept.store.snapshots(stream.id)

    new = shard(kept, 0)
    assert new.store.epoch > old.store.epoch
    assert new.fleet.streams["gate"].learned == 2
    teach(old, "gate", 1, start=2)  # it does not know yet
    wait_for(lambda: left)
    done = old.fleet.learner.ask(lambda: old.fleet.snapshot(stream)).result()
    assert done is not None
    with pytest.raises(StateError, match="epoch"):
        done.result()
    assert kept.store.snapshots(stream.id) == known
    assert len(list(kept.store.place(stream.id).iterdir())) == len(known)
    with pytest.raises(StaleShard):
        old.store.add_stream("other", "robust", frozen=False)
    with pytest.raises(StaleStream):
        old.store.set_frozen(stream.id, True)
    learned = [body["learned"] for *_, body in kept.store.events(stream.id, kind="learned")]
    assert learned == [1, 2]
    new.stop()
    old.stop()
    kept.close()


def test_a_stream_moves_with_its_whole_state(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    one, two = shard(kept, 0), shard(kept, 1)
    teach(one, "gate", 3)
    before = state_of(one, "gate")
    one.give("gate")
    assert "gate" not in one.fleet.streams
    found = kept.assign("gate", 1)
    assert found is not None
    two.take(*found)
    assert same(before, state_of(two, "gate"))
    repeated = two.handle(predict("gate", batches(3)[1], b"sequence=1"))
    assert json.loads(repeated.body)["repeated"]
    teach(two, "gate", 1, start=3)
    assert two.fleet.streams["gate"].learned == 4
    epochs = [body["epoch"] for *_, body in kept.store.events(None, kind="claimed")]
    assert epochs == sorted(set(epochs))
    for each in (one, two):
        each.stop()
    kept.close()


def test_the_front_holds_requests_and_refuses_what_might_be_done_twice(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    actor = Actor(lambda: shard(kept, 0))
    images = batches(2)

    async def go() -> None:
        front = Front(kept.settings, [actor], Actor(lambda: kept), Gone)
        await front.start()
        assert (
            await front.forward("gate", predict("gate", images[0], b"sequence=0"))
        ).status == 200
        old = actor.kill()
        with pytest.raises(Away, match="may have been done"):
            await front.forward("gate", predict("gate", images[0]))
        with pytest.raises(Away, match="coming back"):
            await front.forward("gate", predict("gate", images[0], b"deadline_ms=100"))
        held = asyncio.ensure_future(
            front.forward("gate", predict("gate", images[1], b"sequence=1"))
        )
        again = asyncio.ensure_future(front.forward("gate", get("/v1/streams/gate")))
        await asyncio.sleep(0.3)
        assert not held.done()
        old.stop()  # a kill leaves what was written before it; here everything was
        await asyncio.to_thread(actor.restart)
        assert (await held).status == 200
        assert json.loads((await again).body)["name"] == "gate"
        assert front.seats[0].starts == 2

    asyncio.run(go())
    actor.one.stop()
    kept.close()


def test_a_lost_shard_s_streams_go_to_the_others(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    actors = [Actor(lambda: shard(kept, 0)), Actor(lambda: shard(kept, 1))]

    async def go() -> None:
        front = Front(kept.settings, actors, Actor(lambda: kept), Gone, patience=0.5)
        await front.start()
        front.places["gate"] = 0
        assert (await front.forward("gate", predict("gate", batches(1)[0]))).status == 200
        await front.move("gate", 1)
        assert front.places["gate"] == 1
        lost = actors[1].kill()
        reply = await front.forward("gate", predict("gate", batches(1)[0], b"sequence=0"))
        assert reply.status == 200
        assert front.places["gate"] == 0
        lost.stop()

    asyncio.run(go())
    actors[0].one.stop()
    kept.close()


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'ostinato[ray]'"
)
@pytest.mark.slow
def test_a_shard_that_is_killed_under_load_comes_back_with_one_writer() -> None:
    words = "--streams 6 --shards 2 --every 15 --seconds 60 --callers 3 --moves 3 --interval 10"
    done = subprocess.run(
        [sys.executable, "ray_kills.py", *words.split()],
        cwd=Path(__file__).parents[1] / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
    )
    said = re.search(r"requests by status: ({.*?}); broken connections: (\d+)", done.stdout)
    counted = re.search(r"from the index: ({.*})", done.stdout)
    assert said is not None
    assert counted is not None
    statuses, index = ast.literal_eval(said[1]), ast.literal_eval(counted[1])
    assert set(statuses) <= {200, 429, 503}
    assert statuses[200] > 0
    assert said[2] == "0"
    assert index["states"] > 0
    assert index["claims"] > index["streams"]  # a shard did come back
    assert not index["epochs out of order"]
    assert not index["states under another epoch"]
    assert not index["starts that lost what was too old"]


def test_what_a_killed_shard_leaves_on_its_machine_goes_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    start = "from ostinato.scale._remote import RemoteStore; RemoteStore(lambda *_: (1, []), 0)"
    killed = f"{start}; import os; os.kill(os.getpid(), 9)"
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", killed], env=place, check=False)
    (left,) = tmp_path.iterdir()
    one = RemoteStore(lambda *_: (1, []), shard=0)
    other = RemoteStore(lambda *_: (1, []), shard=1)
    assert not left.exists()
    assert {one.folder, other.folder} == set(tmp_path.iterdir())  # those that live are left alone
    for each in (one, other):
        each.close()
    assert not list(tmp_path.iterdir())


def test_a_shard_changes_its_index_through_the_keeper_alone() -> None:
    store = RemoteStore(lambda *_: (1, []), shard=0)
    with pytest.raises(StorageError, match="keeper"):
        store.changing()
    store.close()
