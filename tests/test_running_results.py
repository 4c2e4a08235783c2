from __future__ import annotations

import json
import multiprocessing
import os
import signal
import warnings
from pathlib import Path

import pytest
import torch

from ostinato.errors import ConfigError, DataError
from ostinato.ops.snapshot import State
from ostinato.running.provenance import (
    Provenance,
    _installed_versions,
    _source_commit,
    hash_names,
    hash_tensors,
    spec_hash,
)
from ostinato.running.results import RunFolder, find_run
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise

SPEC = {"method": "tent", "stream": {"rounds": 3}}


def line(run: RunFolder, index: int) -> Record:
    return Record(
        run=run.hash, index=index, domain="fog", images=2, correct=1, counted=2, hits="01",
        confidence=(0.5, 0.75), loss=index / 3,
    )  # fmt: skip


def begun(path: Path, batches: int) -> RunFolder:
    run = RunFolder.create(path, SPEC)
    for index in range(batches):
        run.append(line(run, index))
    return run


def test_a_run_can_be_closed_and_read_back(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 3)
    run.close()
    again = RunFolder.open(tmp_path / "a")
    assert again.spec == SPEC
    assert again.hash == spec_hash(SPEC)
    assert again.records() == [line(run, i) for i in range(3)]
    assert again.provenance().versions["torch"] == torch.__version__


def test_records_reach_the_file_at_once(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 1)
    text = (tmp_path / "a" / "records.jsonl").read_text()
    assert text == run.chain().line(line(run, 0)).decode()


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_half_written_line_is_dropped(tmp_path: Path, keep: int) -> None:
    run = begun(tmp_path / "a", 2)
    run.close()
    half = line(run, 2).to_line().encode()[:keep] if keep > 0 else line(run, 2).to_line().encode()
    path = tmp_path / "a" / "records.jsonl"
    with path.open("ab") as file:
        file.write(half)
    again = RunFolder.open(tmp_path / "a")
    assert len(again.records()) == 2
    again.append(line(run, 2))
    assert again.records() == [line(run, i) for i in range(3)]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 3)
    run.close()
    path = tmp_path / "a" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for broken in ("nonsense\n", line(run, 7).to_line() + "\n"):
        path.write_text(lines[0] + broken + lines[2])
        with pytest.raises(DataError, match=r"records\.jsonl, line 2"):
            RunFolder.open(tmp_path / "a").records()
        with pytest.raises(DataError, match="Cut the file before"):
            RunFolder.open(tmp_path / "a").append(line(run, 3))


def test_resume_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 2)
    run.checkpoint(State({"w": torch.arange(3.0)}, {"steps": 2}))
    for index in (2, 3):
        run.append(line(run, index))
    run.close()
    again = RunFolder.open(tmp_path / "a")
    point = again.resume_point()
    assert point.next_index == 2
    assert point.state is not None
    assert point.state.values == {"steps": 2}
    assert torch.equal(point.state.tensors["w"], torch.arange(3.0))
    assert len(again.records()) == 2
    again.append(line(run, 2))
    assert len(again.records()) == 3


def test_without_a_usable_checkpoint_a_run_starts_over(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 2)
    assert run.resume_point() == (0, None)
    assert run.records() == []
    run = begun(tmp_path / "b", 2)
    run.checkpoint(State({"w": torch.zeros(1)}))
    run.close()
    (tmp_path / "b" / "records.jsonl").write_text("")  # the records were lost, the state was not
    assert RunFolder.open(tmp_path / "b").resume_point() == (0, None)


def test_a_damaged_or_foreign_checkpoint_is_named(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 1)
    run.state_path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="delete it, and the run starts over"):
        run.resume_point()
    other = RunFolder.create(tmp_path / "b", {"method": "source"})
    other.checkpoint(State({"w": torch.zeros(1)}))
    run.state_path.write_bytes(other.state_path.read_bytes())
    with pytest.raises(DataError, match=f"belongs to run '{other.hash}'"):
        run.resume_point()
    assert len(run.records()) == 1


def test_records_come_in_order_and_from_this_run(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 1)
    for index in (0, 2):
        with pytest.raises(ConfigError, match="expects batch 1"):
            run.append(line(run, index))
    with pytest.raises(ConfigError, match="does not belong"):
        run.append(line(run, 1).replace(run="other"))
    assert len(run.records()) == 1


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 1)
    second = RunFolder.open(tmp_path / "a")
    assert len(second.records()) == 1
    with pytest.raises(ConfigError, match="Another process is writing"):
        second.append(line(run, 1))
    run.close()
    second.append(line(run, 1))


def test_completion(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", 2)
    assert not run.is_complete
    with pytest.raises(DataError, match="not complete"):
        run.summary()
    summary = summarise(run.records())
    with pytest.raises(ConfigError, match="covers 1 batches"):
        run.complete(summarise(run.records()[:1]))
    run.complete(summary)
    again = RunFolder.open(tmp_path / "a")
    assert again.is_complete
    assert again.summary() == summary
    for change in (lambda: again.append(line(run, 2)), again.resume_point):
        with pytest.raises(ConfigError, match="is complete"):
            change()


def test_folders_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    begun(tmp_path / "a", 1).close()
    with pytest.raises(ConfigError, match="already holds this very run"):
        RunFolder.create(tmp_path / "a", SPEC)
    with pytest.raises(ConfigError, match="holds another run"):
        RunFolder.create(tmp_path / "a", {"method": "source"})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ConfigError, match="choose a new or empty one"):
        RunFolder.create(tmp_path / "photos", SPEC)
    assert [f.name for f in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_what_a_kill_within_create_leaves_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "provenance.json").write_text("{")
    (tmp_path / "a" / ".spec.json.123.tmp").touch()
    RunFolder.create(tmp_path / "a", SPEC)
    assert RunFolder.open(tmp_path / "a").provenance().device == "cpu"


def test_foreign_edited_and_newer_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no spec\.json"):
        RunFolder.open(tmp_path)
    run = RunFolder.create(tmp_path / "a", SPEC)
    path = run.path / "spec.json"
    head = json.loads(path.read_text())
    cases = {
        "was edited": {**head, "spec": {"method": "source"}},
        "not one that Ostinato wrote": {"name": "package"},
        "reads up to 2: update": {**head, "version": 3},
    }
    for message, value in cases.items():
        path.write_text(json.dumps(value))
        with pytest.raises(DataError, match=message):
            RunFolder.open(run.path)
    path.write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        RunFolder.open(run.path)


def test_a_run_is_found_by_its_hash(tmp_path: Path) -> None:
    assert find_run(tmp_path / "nowhere", "x") is None
    first = begun(tmp_path / "a", 1)
    second = begun(tmp_path / "b", 1)
    RunFolder.create(tmp_path / "c", {"method": "source"})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "spec.json").write_text("nonsense")
    assert find_run(tmp_path, first.hash) == first.path
    second.complete(summarise(second.records()))
    assert find_run(tmp_path, first.hash) == second.path
    assert find_run(tmp_path, "0" * 16) is None


def test_specs_hash_by_value() -> None:
    assert spec_hash({"a": 1.0, "b": None}) != spec_hash({"a": 1.5, "b": None})
    for bad in ({"a": float("nan")}, {"a": object()}):
        with pytest.raises(ConfigError, match="plain JSON values"):
            spec_hash(bad)


def test_fingerprints_see_every_change() -> None:
    weights = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    same = hash_tensors(dict(reversed(weights.items())))
    assert hash_tensors(weights) == same
    for changed in (
        {**weights, "a": torch.arange(4.0).reshape(2, 2)},
        {**weights, "a": torch.arange(4.0) + 1e-6},
        {"a": weights["a"]},
    ):
        assert hash_tensors(changed) != same
    assert hash_names(["ab", "c"]) != hash_names(["a", "bc"])


def test_provenance_looks_around() -> None:
    provenance = Provenance.collect(weights="w", data="d", seeds={"stream": 2025})
    assert provenance.versions == _installed_versions()
    assert {"python", "torch", "timm", "numpy"} <= provenance.versions.keys()
    assert provenance.seeds == {"stream": 2025}
    assert provenance.device == "cpu"
    assert Provenance.parse(provenance.model_dump(mode="json")) == provenance
    commit = _source_commit()
    assert commit is None or len(commit.rstrip("+")) == 40


def _write_until_killed(path: str) -> None:
    run = RunFolder.open(path)
    index = run.resume_point().next_index
    while True:
        run.append(line(run, index))
        index += 1
        if index % 50 == 0:
            run.checkpoint(State({"w": torch.full((2,), float(index))}))


def test_killed_writers_leave_a_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a"
    RunFolder.create(path, SPEC)
    context = multiprocessing.get_context("fork")
    reached = 0
    for _ in range(3):
        writer = context.Process(target=_write_until_killed, args=(str(path),))
        with warnings.catch_warnings():  # newer Pythons warn of threads, which the child leaves be
            warnings.simplefilter("ignore", DeprecationWarning)
            writer.start()
        file = path / "records.jsonl"
        size = (reached + 70) * len(line(RunFolder.open(path), 100).to_line())
        while not file.is_file() or file.stat().st_size < size:
            assert writer.is_alive()
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        run = RunFolder.open(path)
        point = run.resume_point()
        assert point.next_index % 50 == 0
        assert point.next_index >= reached
        assert point.next_index == 0 or float(point.state.tensors["w"][0]) == point.next_index  # type: ignore[union-attr]
        assert run.records() == [line(run, i) for i in range(point.next_index)]
        run.close()
        reached = point.next_index
    assert reached > 0
