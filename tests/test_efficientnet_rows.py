"""EfficientNet's rows: their order, their commands, going on, and the table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS, STREAMS
from ostinato.running.results import RunFolder
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "efficientnet_rows.py"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> Any:
    words = ["rows", "--root", "data", "--weights", "w.safetensors", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    return script.parse()


def finished(path: Path, correct: int) -> Path:
    """A complete run of four images."""
    folder = RunFolder.create(path, {"method": path.name})
    record = Record(
        run=folder.hash, index=0, domain="fog", images=4, correct=correct, counted=4,
        hits="1" * correct + "0" * (4 - correct), confidence=(0.5,) * 4,
    )  # fmt: skip
    folder.append(record)
    folder.complete(summarise([record]))
    return path


def test_what_matters_most_comes_first(script: ModuleType) -> None:
    names = [row.name for row in script.rows()]
    assert len(names) == len(set(names)) == 9 + 6 + 7 * 3
    assert {name.split("/")[1] for name in names[:15]} == {"robust", "forward-only", "source"}
    assert all(name.endswith("/2025") for name in names[9:22])
    assert {row.method for row in script.rows()} == set(script.ORDER)


def test_patterns_say_the_order(script: ModuleType) -> None:
    found = script.chosen_rows(["*/cotta/*", "mixed/forward-only/*", "*/cotta/2026"])
    seeds = [f"recurring/cotta/{seed}" for seed in script.SEEDS]
    assert [row.name for row in found] == [*seeds, "mixed/forward-only/2025"]


def test_commands_name_methods_settings_and_streams_that_exist(
    script: ModuleType, given: argparse.Namespace
) -> None:
    for row in script.rows():
        words = row.command(given)
        said = dict(zip(words[1::2], words[2::2], strict=False))
        settings = dict([said["--settings"].split("=")]) if "--settings" in said else {}
        resolve_config(METHODS[said["--method"]], said.get("--preset"), settings)
        assert said["--stream"] in STREAMS.names()
        assert f"limit={100 if row.traffic == 'single' else 1200}" in words
        assert ("rounds=3" in words) == (row.traffic == "recurring")


def test_rows_that_are_done_are_left_out_and_the_table_has_them(
    script: ModuleType,
    given: argparse.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun: list[str] = []

    def begin(row: Any, given: argparse.Namespace) -> Any:
        begun.append(row.name)
        log = given.out / "log.txt"
        log.write_text("it broke")
        failed = row.method == "source"
        path = given.out / row.name.replace("/", "-")
        said = f"import sys; print({str(path)!r} + '  error'); sys.exit({int(failed)})"
        if not failed:
            finished(path, correct=3)
        process = subprocess.Popen(
            [sys.executable, "-c", said], stdout=subprocess.PIPE, text=True
        )  # as `ostinato run` ends
        return script.Running(row, process, log, 0.0)

    monkeypatch.setattr(script, "begin", begin)
    given.only = ["recurring/robust/*", "recurring/source/2025"]
    monkeypatch.setattr(script, "parse", lambda: given)
    assert script.main() == 1
    assert begun == [f"recurring/{n}" for n in ("robust/2025", "robust/2026", "robust/2027",
                                                "source/2025")]  # fmt: skip
    shown = capsys.readouterr().out
    assert "recurring/source/2025: failed" in shown
    assert "it broke" in shown
    assert "| robust | 25.00 | 25.00 | 25.00 | 25.00 |  |  |" in shown
    begun.clear()
    given.only = ["recurring/robust/*"]
    assert script.main() == 0
    assert not begun
    kept = [json.loads(line) for line in (given.out / "rows.jsonl").read_text().splitlines()]
    assert [one["row"][-4:] for one in kept] == ["2025", "2026", "2027"]
    given.limit = 10  # other images are other rows
    assert script.known(given) == {}


def test_time_that_is_over_stops_rows_and_says_which(
    script: ModuleType,
    given: argparse.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    held: list[Any] = []

    def begin(row: Any, given: argparse.Namespace) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        held.append(process)
        return script.Running(row, process, given.out / "log.txt", 0.0)

    monkeypatch.setattr(script, "begin", begin)
    monkeypatch.setattr(script, "GRACE", 0.5)
    given.seconds = 0.1
    assert script.work(list(script.rows())[:2], given)
    assert [process.poll() is not None for process in held] == [True]
    assert "not done: recurring/robust/2025, recurring/forward-only/2025" in capsys.readouterr().out
