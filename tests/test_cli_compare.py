"""`ostinato compare` on folders of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato import cli
from ostinato.running.results import RunFolder
from ostinato.scoring.record import Record


def write(place: Path, name: str, hits: list[str]) -> Path:
    folder = RunFolder.create(place / name, {"method": name})
    for index, text in enumerate(hits):
        record = Record(
            run=folder.hash,
            index=index,
            round=index // 2,
            domain=("fog", "snow")[index % 2],
            images=4,
            correct=text.count("1"),
            counted=4,
            keys=tuple(f"image {n}" for n in range(4)),
            hits=text,
        )
        folder.append(record)
    folder.close()
    return folder.path


def test_the_verdict_and_every_part_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    worse = write(tmp_path, "tent", ["0000"] * 4)
    better = write(tmp_path, "ours", ["1111", "1110", "1111", "1111"])
    cli.main(["compare", str(worse), str(better), "--resamples", "500"])
    shown = capsys.readouterr().out
    assert "ours against tent: better" in shown
    for part in ("all", "round 1", "round 2", "fog", "snow"):
        assert part in shown
    overall = next(line for line in shown.splitlines() if "│ all" in line)
    assert "100.00" in overall
    assert "-93.75 [" in overall  # 15 of 16 answers

    cli.main(["compare", str(worse), str(better), "--baseline", "ours", "--no-parts"])
    shown = capsys.readouterr().out
    assert "tent against ours: worse" in shown
    assert "fog" not in shown


def test_runs_that_cannot_be_compared_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path, "tent", ["0000"])
    empty = write(tmp_path, "ours", [])
    for arguments, message in (
        ([one, empty], "has no finished batch; go on with: ostinato run"),
        ([one], "needs two runs or more"),
        ([one, tmp_path], "is not a run's folder"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["compare", *map(str, arguments)])
        assert message in capsys.readouterr().err
