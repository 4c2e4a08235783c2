"""Rows elsewhere: batches from the store, files carried back, and a table on a real cluster."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ostinato.errors import ConfigError, OstinatoError
from ostinato.running.job import open_stream
from ostinato.running.results import RunFolder
from ostinato.running.runner import run
from ostinato.running.spec import Spec
from ostinato.scale import cluster
from ostinato.scale._batches import Hand, HandedStream, deal, make_hand
from ostinato.scale._desk import Desk
from ostinato.scale._rows import pack, unpack
from ostinato.scale.cluster import _check_answers, connected
from ostinato.scale.resources import Resources
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request

QUIET = Console(quiet=True)
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SPEC = {
    "model": "embedded",
    "method": "tent",
    "batch_size": 4,
    "stream": "recurring",
    "data": {"limit": 8, "rounds": 2, "domains": ["fog", "contrast"]},
    "seeds": [1],
    "device": "cpu",
}
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'ostinato[ray]'"
)


def test_handed_batches_are_the_stream_s_own_and_what_does_not_fit_is_made() -> None:
    stream = open_stream(Spec.parse(SPEC))
    size = stream[0].images.nbytes / 2**30
    dealt = deal(stream, 3.5 * size, hands=2)
    assert sorted(len(hand) for hand in dealt) == [1, 2]  # of 4 different batches, 3 fit
    hands = [make_hand(stream, hand, 1)[1] for hand in dealt]
    asked = []

    def take(number: int) -> Hand:
        asked.append(number)
        return hands[number]

    handed = HandedStream(stream, dealt, take)
    for index in range(len(stream)):
        mine, true = handed[index], stream[index]
        assert torch.equal(mine.images, true.images)
        assert torch.equal(mine.labels, true.labels)
        assert mine.labels.dtype == true.labels.dtype
        assert (mine.index, mine.round, mine.domain, mine.keys) == (
            *(true.index, true.round, true.domain, true.keys),
        )
    assert len(asked) == 6  # three of the four batches, in each of two rounds


class Stop(Exception):
    """The machine is gone."""


def test_a_run_that_was_carried_goes_on_from_its_checkpoint_elsewhere(tmp_path: Path) -> None:
    from ostinato.running.progress import Listener
    from ostinato.scoring.record import Record

    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    (whole,) = run(Spec.parse(SPEC), out=here, quiet=True)
    desk = Desk(str(out))

    class Lost(Listener):
        """Sends what a row sends, and then is gone."""

        def batch(self, record: Record) -> None:
            if record.index == 5:
                raise Stop

        def saved(self, folder: RunFolder) -> None:
            desk.write(desk.place(folder.path.name, folder.hash), pack(folder.path))

    with pytest.raises(Stop):
        run(Spec.parse(SPEC), out=there, quiet=True, every=4, listener=Lost())
    found = desk.read(whole.hash)
    assert found is not None
    unpack(tmp_path / "third" / found[0], found[1])
    starts = []

    class Seen(Listener):
        def begun(self, folder: RunFolder | None, done: int, total: int) -> None:
            starts.append((done, total))

    (again,) = run(Spec.parse(SPEC), out=tmp_path / "third", quiet=True, listener=Seen())
    assert starts == [(4, 8)]
    assert [r.content() for r in again.records()] == [r.content() for r in whole.records()]
    assert desk.place(again.path.name, "another") == f"{again.path.name}-2"


def test_an_engine_s_outcomes_become_the_table_s_rows(tmp_path: Path) -> None:
    class Here:
        said = "ran here"

        def run(self, specs, *, out, again, memory, console):  # type: ignore[no-untyped-def]
            found = {}
            for spec in specs:
                if spec.method == "tent":
                    found[spec.model_dump_json()] = OstinatoError("no machine wants it")
                else:
                    (folder,) = run(spec, out=out, quiet=True)
                    found[spec.model_dump_json()] = folder.summary()
            return found

    changes = {key: SPEC[key] for key in ("batch_size", "stream", "data", "device")}
    asked = {"seeds": (1, 2), "changes": changes, "out": tmp_path}
    result = build_table("imagenet-c", Request(methods=("source",), engine=Here(), **asked), QUIET)
    assert "ran here" in result.notes
    plain = build_table("imagenet-c", Request(methods=("source",), finished=True, **asked), QUIET)
    assert [r.values for r in result.rows] == [r.values for r in plain.rows]
    with pytest.raises(OstinatoError, match="no machine"):
        build_table(
            "imagenet-c", Request(methods=("source", "tent"), engine=Here(), **asked), QUIET
        )


def test_resources_are_read_and_a_gpu_is_taken_whole_unless_shared() -> None:
    given = Resources.read(["cpu=2", "memory=4"])
    assert given.options() == {"num_cpus": 2.0, "num_gpus": 0.0, "memory": 4 << 30}
    assert given.for_device("cuda").gpu == 1
    assert Resources(gpu=0.5).for_device("cuda:1").gpu == 0.5
    with pytest.raises(ConfigError, match=r"write cpu=2"):
        Resources.read(["cpu"])


def test_addresses_where_no_cluster_is_are_refused_at_once() -> None:
    _check_answers("auto")
    for wrong in ("nonsense", "host:", ":6379", "host:x", "host:99999", ""):
        with pytest.raises(ConfigError, match="write auto or HOST:PORT"):
            _check_answers(wrong)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Ray cluster at {address} .*ray start"):
            _check_answers(address)
        bound.listen()
        _check_answers(address)
        _check_answers(f"ray://{address}")


def test_a_listener_that_lets_nobody_join_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed:
        is_initialized = staticmethod(lambda: False)

        @staticmethod
        def init(**_: object) -> None:
            raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(cluster, "_get_ray", lambda _: Closed)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"could not join .* token"), connected(address):
            pass
    with pytest.raises(ConfigError, match="no Ray cluster at auto"), connected("auto"):
        pass


class Machines:
    """What Ray says of a cluster's machines; the last one is gone."""

    @staticmethod
    def nodes() -> list[dict[str, object]]:
        two = [{"Alive": True, "Resources": {"CPU": 4.0, "memory": 8.0 * 2**30}}] * 2
        return [*two, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]


@pytest.mark.parametrize(
    ("words", "count"),
    [(["cpu=5"], 1), (["gpu=0.1"], 1), (["memory=9"], 1), (["cpu=0.1"], 81), (["cpu=3"], 3)],
)
def test_what_there_is_no_room_for_is_refused_or_waited_for(
    words: list[str], count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = Resources.read(words)
    with pytest.raises(ConfigError, match=f"of {count} rows, .*Ask for less"):
        given.check_room(Machines, count, "rows", may_grow=False)
    given.check_room(Machines, count, "rows", may_grow=True)
    assert "Waiting for more machines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "count"), [(["cpu=4", "memory=8"], 2), (["cpu=0.1"], 80), (["cpu=3"], 2)]
)
def test_what_there_is_room_for_is_let_be(words: list[str], count: int) -> None:
    Resources.read(words).check_room(Machines, count, "rows", may_grow=False)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("words", ["run --method source", "serve --shards 2 --port 0"])
def test_a_command_that_asks_for_more_than_there_is_ends_and_says_so(
    words: str, tmp_path: Path
) -> None:
    out = ["--data" if words.startswith("serve") else "--out", str(tmp_path / "out")]
    asked = [*words.split(), *out, "--engine", "ray", "--resources", "gpu=64"]
    done = subprocess.run(
        [sys.executable, "-m", "ostinato", *asked], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, "Ask for less with --resources" in done.stderr) == (2, True)
    assert done.stderr.count("\n") == 1


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--carried"]])
def test_a_table_on_a_cluster_that_loses_a_node_is_the_plain_one(more: list[str]) -> None:
    command = [
        sys.executable,
        "ray_table.py",
        "--nodes",
        "2",
        "--limit",
        "20",
        "--batch",
        "4",
        *more,
    ]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    for name in ("cluster", "one node killed"):
        assert f"{name}: 76 cells, 0 differ []; 4 of 4 rows record the same" in done.stdout
    said = re.search(
        r"before the kill: (\d+), of them run again: 0; rows cut off: \['(\d+)", done.stdout
    )
    assert said is not None, done.stdout
    assert int(said[1]) >= 1
    went_on = re.findall(r"(\d+) batches done, went on after (\d+)", done.stdout)
    assert all(0 < int(start) <= int(batches) for batches, start in went_on)


@needs_ray
@pytest.mark.slow
def test_ctrl_c_leaves_checkpoints_that_the_same_command_goes_on_from(tmp_path: Path) -> None:
    command = "from ostinato.cli import main; main()"
    words = "table imagenet-c --methods tent --seeds 1 --engine ray --set device=cpu batch_size=2"
    started = subprocess.Popen(
        [sys.executable, "-c", command, *words.split(), "data.limit=100", "--out", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any(p.read_bytes().count(b"\n") > 5 for p in tmp_path.glob("*/records.jsonl")):
        if started.poll() is not None:
            pytest.fail(started.communicate()[1])
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    said = started.communicate()[1]
    assert started.returncode == 130
    assert "The same command goes on from there" in said
    (path,) = (file.parent for file in tmp_path.glob("*/spec.json"))
    folder = RunFolder.open(path)
    count = len(folder.records())
    assert 5 < count < 750
    assert folder.resume_point().next_index == count
    assert not list(tmp_path.glob(".sweep-*"))
