"""A run's files show every change; what one damaged folder says is no other run's trouble."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path

import pytest
import torch

from ostinato.errors import ConfigError, DataError, OstinatoError, StateError
from ostinato.ops.snapshot import State
from ostinato.report._runs import read_variants
from ostinato.running import results
from ostinato.running.provenance import Provenance
from ostinato.running.results import RunFolder, find_run
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise

SPEC = {"method": "tent"}


def record(run: RunFolder, index: int) -> Record:
    return Record(
        run=run.hash, index=index, domain="fog", images=4, correct=2, counted=4, hits="0110",
        confidence=(0.5, 0.75, 0.25, 0.125), loss=index / 3, trained=100, seconds=0.5,
    )  # fmt: skip


def made(path: Path, batches: int = 4, complete: bool = False, seed: int = 0) -> RunFolder:
    run = RunFolder.create(path, {**SPEC, "seeds": [seed]})
    for index in range(batches):
        run.append(record(run, index))
    run.close()
    if complete:
        run.complete(summarise(run.records()))
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return made(tmp_path / "run")


def lines_of(run: RunFolder) -> list[bytes]:
    return (run.path / "records.jsonl").read_bytes().splitlines(keepends=True)


def write(run: RunFolder, lines: list[bytes]) -> None:
    (run.path / "records.jsonl").write_bytes(b"".join(lines))


def test_no_flipped_bit_passes(run: RunFolder) -> None:
    whole = b"".join(lines_of(run))
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    draw = random.Random(0)
    for _ in range(400):
        place, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        damaged = bytearray(whole)
        damaged[place] ^= bit
        write(run, [bytes(damaged)])
        if place == ends[-1]:  # as if a kill had cut the last line short: it is dropped
            assert len(RunFolder.open(run.path).records()) == 3
            continue
        number = 1 + sum(end < place for end in ends)
        with pytest.raises(DataError, match=rf"line {number} "):
            RunFolder.open(run.path).records()


def test_a_changed_result_is_refused_even_where_the_fields_agree(run: RunFolder) -> None:
    lines = lines_of(run)
    changed = lines[1].replace(b'"correct":2', b'"correct":3').replace(b'"0110"', b'"0111"')
    assert changed != lines[1]
    write(run, [lines[0], changed, *lines[2:]])
    with pytest.raises(DataError, match="line 2 does not follow"):
        RunFolder.open(run.path).records()


@pytest.mark.parametrize(
    ("order", "number"), [((0, 2, 3), 2), ((0, 0, 1, 2, 3), 2), ((1, 0, 2, 3), 1), ((1, 2, 3), 1)]
)
def test_removed_repeated_and_exchanged_lines_are_refused(
    run: RunFolder, order: tuple[int, ...], number: int
) -> None:
    lines = lines_of(run)
    write(run, [lines[place] for place in order])
    with pytest.raises(DataError, match=rf"records\.jsonl, line {number} "):
        RunFolder.open(run.path).records()


@pytest.mark.parametrize("keep", [0, 3, 3.5])
def test_a_complete_run_has_all_its_lines(tmp_path: Path, keep: float) -> None:
    run = made(tmp_path / "run", complete=True)
    lines = lines_of(run)
    half = [lines[int(keep)][:20]] if keep % 1 else []
    write(run, [*lines[: int(keep)], *half])
    with pytest.raises(DataError, match=rf"line {int(keep) + 1}: the run is complete"):
        RunFolder.open(run.path).records()


def test_lines_of_another_run_are_refused(tmp_path: Path, run: RunFolder) -> None:
    other = made(tmp_path / "other", seed=1)
    write(run, [*lines_of(run)[:1], *lines_of(other)[1:]])
    with pytest.raises(DataError, match="line 2 "):
        RunFolder.open(run.path).records()


@pytest.mark.parametrize("name", ["summary.json", "provenance.json"])
def test_changed_summaries_and_provenance_are_refused(tmp_path: Path, name: str) -> None:
    run = made(tmp_path / "run", complete=True)
    read = {"summary.json": run.summary, "provenance.json": run.provenance}[name]
    read()
    values = json.loads((run.path / name).read_text())
    for key in values:
        changed = {**values, key: 3 if values[key] != 3 else 4}
        (run.path / name).write_text(json.dumps(changed))
        with pytest.raises(OstinatoError, match="checksum"):
            read()


def test_a_run_of_the_first_version_is_still_read(run: RunFolder) -> None:
    head = json.loads((run.path / "spec.json").read_text())
    (run.path / "spec.json").write_text(json.dumps({**head, "version": 1}))
    write(run, [record(run, index).to_line().encode() + b"\n" for index in range(2)])
    old = RunFolder.open(run.path)
    old.append(record(run, 2))
    assert len(old.records()) == 3
    old.close()


@pytest.mark.parametrize(
    "change",
    [
        {"correct": 3}, {"counted": 5}, {"hits": "1111"}, {"correct": -1}, {"index": -1},
        {"confidence": (0.5, float("nan"), 0.2, 0.1)},
    ],
)  # fmt: skip
def test_results_that_contradict_each_other_are_no_record(run: RunFolder, change: dict) -> None:
    with pytest.raises(ConfigError):
        record(run, 0).replace(**change)


def test_pixels_that_contradict_each_other_are_no_record() -> None:
    good = {"run": "a", "index": 0, "domain": "x", "images": 1, "classes": 2,
            "confusion": ((3, 1, 0, 2),), "correct": 5, "counted": 6}  # fmt: skip
    Record.parse(good)
    for change in ({"correct": 4}, {"counted": 7}, {"confusion": ((3, 1, 1, 2),)}):
        with pytest.raises(ConfigError, match="confusion says"):
            Record.parse({**good, **change})


@pytest.mark.parametrize("after", [0, 1, 40, -1])
def test_a_full_disk_keeps_the_whole_lines(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = b"".join(lines_of(run))
    again = RunFolder.open(run.path)
    again.resume_point()
    for index in range(4):
        again.append(record(run, index))
    real, length = os.write, len(again._chain.line(record(run, 4)))
    left = [after % length]

    def fill(handle: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(handle, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(results.os, "write", fill)
    with pytest.raises(StateError, match=r"No space left .* go on with ostinato run"):
        again.append(record(run, 4))
    monkeypatch.undo()
    assert b"".join(lines_of(run)) == before
    again.append(record(run, 4))  # room was made
    assert len(again.records()) == 5
    again.close()


def test_a_state_that_is_not_finite_leaves_the_checkpoint_before_it(run: RunFolder) -> None:
    again = RunFolder.open(run.path)
    again.checkpoint(State({"w": torch.ones(1)}))
    again.checkpoint(State({"w": torch.tensor([float("nan")])}))
    point = again.resume_point()
    assert point.state is not None
    assert torch.equal(point.state.tensors["w"], torch.ones(1))
    again.close()


HEADS = {
    "no version": {"version": None}, "a word": {"version": "x"}, "a list": {"version": [1]},
    "true": {"version": True}, "half": {"version": 1.5}, "nan": {"spec": {"a": float("nan")}},
}  # fmt: skip


@pytest.mark.parametrize("damage", [*HEADS, "binary", "deep", "empty"])
def test_one_damaged_folder_is_named_and_left_out(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = made(tmp_path / "good", complete=True)
    bad = made(tmp_path / "bad", complete=True, seed=1)
    place = bad.path / "spec.json"
    if damage in HEADS:
        place.write_text(json.dumps({**json.loads(place.read_text()), **HEADS[damage]}))
    else:
        place.write_bytes({"binary": b"\xff\xfe\x00", "deep": b"[" * 100_000, "empty": b""}[damage])
    told: list[str] = []
    assert find_run(tmp_path, good.hash, told.append) == good.path
    assert len(told) == 1
    assert str(bad.path) in told[0]
    assert [v.first.path for v in read_variants([tmp_path])] == [good.path]
    assert str(bad.path) in capsys.readouterr().err
    with pytest.raises(DataError):
        read_variants([bad.path])  # named itself, it is an error


def test_a_folder_of_nothing_but_damaged_runs_is_an_error(tmp_path: Path) -> None:
    bad = made(tmp_path / "bad")
    (bad.path / "spec.json").write_text("{}")
    with pytest.raises(DataError, match="None of these"):
        read_variants([tmp_path])


def test_provenance_keeps_its_checksum_over_versions(tmp_path: Path) -> None:
    given = Provenance.collect(weights="abc", seeds={"method": 3})
    run = RunFolder.create(tmp_path / "run", SPEC, given)
    assert run.provenance() == given
