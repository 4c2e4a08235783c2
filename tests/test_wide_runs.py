"""`ostinato run` under torchrun: the same records, one folder, gentle stops and no hanging."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ostinato.running.results import RunFolder
from ostinato.scoring.record import Record

pytestmark = pytest.mark.slow
bench: Any = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "wide.py"))
WORDS = [
    *("run", "--model", "embedded", "--stream", "continual", "--method", "ostinato"),
    *("--statistics", "embedded", "--seeds", "0", "--batch-size", "21", "--device", "cpu"),
    *("--settings", "micro=8", "enough=8", "--data", "domains=[gaussian_noise,fog]"),
]


def command(processes: int, *words: str) -> list[str]:
    """One process, or several by torchrun."""
    alone = [sys.executable, "-m"]
    several = [*alone, "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*(several if processes > 1 else alone), *["-m"] * (processes > 1), "ostinato", *words]


def run(processes: int, *words: str) -> str:
    given = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(processes, *words), env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def records(folder: Path) -> list[Record]:
    (only,) = folder.iterdir()
    return RunFolder.open(only).records()


def alike(one: Record, other: Record) -> None:
    """The same but for what a machine does differently, and rounding."""
    a, b = one.content(), other.content()
    for name in ("confidence", "loss"):
        x, y = a.pop(name), b.pop(name)
        assert x == pytest.approx(y, abs=2e-4)
    assert a == b


def test_a_run_on_several_processes_is_the_run_on_one(tmp_path: Path) -> None:
    words = [*WORDS, "limit=50"]
    run(1, *words, "--out", str(tmp_path / "one"))
    wanted = records(tmp_path / "one")
    for processes in (2, 4):
        place = tmp_path / str(processes)
        printed = run(processes, *words, "--out", str(place))
        assert len(printed.splitlines()) == 1  # one of them speaks
        for one, other in zip(wanted, records(place), strict=True):
            alike(one, other)
        again = run(processes, *words, "--out", str(place))
        assert printed == again  # what is complete is opened by all, and run by none


def wait_for(records_file: Path, lines: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if records_file.is_file() and records_file.read_text().count("\n") >= lines:
            return
        time.sleep(0.2)


def begun(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """Two processes in the middle of a run, and the run's folder."""
    place = tmp_path / "runs"
    words = command(2, *WORDS, "limit=210", "--every", "2", "--out", str(place))
    given = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list(place.glob("*/spec.json")):
        time.sleep(0.2)
    (folder,) = place.iterdir()
    wait_for(folder / "records.jsonl", 3, process)
    return process, folder


def test_a_stopped_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    process, folder = begun(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert "Go on with: ostinato run" in said
    before = len(RunFolder.open(folder).records())
    assert 3 <= before < 20
    with RunFolder.open(folder) as opened:
        assert opened.resume_point().next_index == before
    run(1, "run", str(folder))
    assert RunFolder.open(folder).is_complete
    run(1, *WORDS, "limit=210", "--out", str(tmp_path / "one"))
    pairs = zip(records(tmp_path / "one"), RunFolder.open(folder).records(), strict=True)
    for one, other in pairs:
        assert one.hits.count("1") == pytest.approx(other.hits.count("1"), abs=1)


def test_a_process_that_dies_ends_the_others_and_the_run_goes_on(tmp_path: Path) -> None:
    process, folder = begun(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    process.communicate()
    assert process.returncode != 0
    assert not RunFolder.open(folder).is_complete
    run(2, "run", str(folder))
    assert RunFolder.open(folder).is_complete


def test_a_method_that_cannot_share_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    words = [word if word != "ostinato" else "cotta" for word in WORDS]
    words = [word for word in words if word not in ("--settings", "micro=8", "enough=8")]
    tried = subprocess.run(
        command(2, *words, "limit=50", "--out", str(tmp_path / "runs")),
        capture_output=True,
        text=True,
    )
    assert tried.returncode != 0
    assert "cotta cannot share its work between processes" in tried.stderr
    assert not (tmp_path / "runs").exists()
    other = subprocess.run(command(2, "demo"), capture_output=True, text=True)
    assert "only 'run' is done by several, not demo" in other.stderr


@pytest.mark.parametrize("preset", ["robust", "forward-only"])
def test_one_two_and_four_processes_agree_for_fifty_batches(preset: str, tmp_path: Path) -> None:
    one = bench["Case"]("float32", preset, 1)
    many = bench["Case"]("float64", preset, 50)
    half = bench["Case"]("float64", preset, 26)
    saved = tmp_path / f"{half.name}-2-0.safetensors"
    later = bench["Case"]("float64", preset, 50, first=26, start=str(saved))
    bench["launch"]([one, many], 1, tmp_path)
    bench["launch"]([one, many, half], 2, tmp_path)
    bench["launch"]([one, many, later], 4, tmp_path)
    bench["launch"]([later], 1, tmp_path)
    found = [bench["difference"](case, world, tmp_path) for case in (one, many) for world in (2, 4)]
    found += [bench["difference"](later, world, tmp_path, many) for world in (1, 4)]
    for each in found:
        assert each.logits < 1e-5
        assert each.state < 1e-5
        assert each.alike
        assert each.same_events
    assert found[-1].domains >= 3
    assert (found[-1].updates > 10) == (preset == "robust")
