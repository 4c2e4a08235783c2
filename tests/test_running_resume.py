"""A run that is killed or interrupted and resumed gives the records of an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ostinato.errors import ConfigError
from ostinato.running import runner
from ostinato.running.job import open_job
from ostinato.running.results import RunFolder, find_run
from ostinato.running.runner import Interrupted, resume, run
from ostinato.running.spec import Spec

TINY: dict[str, Any] = {
    "method": "dual_expert",
    "preset": "paper",
    "stream": "recurring",
    "batch_size": 4,
    "device": "cpu",
    "data": {"domains": ["fog", "contrast"], "limit": 12, "rounds": 2},
}

# One process that imports once and forks the runs, so that three kills take seconds.
DRIVER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from ostinato.running.job import open_job
from ostinato.running.runner import run
from ostinato.running.spec import Spec

spec, out, seed = Spec.parse(json.loads(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
open_job(spec).adapt()  # whatever loads when first used is loaded before the forks

def count():
    files = list(out.glob("*/records.jsonl"))
    return files[0].read_bytes().count(b"\\n") if files else 0

kills = []
for target in sorted(draw.sample(range(1, 11), 3)):
    child = os.fork()
    if child == 0:
        run(spec, out=out, every=2, quiet=True)
        os._exit(0)
    while count() < target:
        time.sleep(0.003)
        if os.waitpid(child, os.WNOHANG)[0]:
            sys.exit("the run ended before it was killed")
    time.sleep(draw.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills.append(count())
run(spec, out=out, every=2, quiet=True)
print(json.dumps(kills))
"""


def contents(folder: RunFolder) -> list[dict[str, Any]]:
    return [record.content() for record in folder.records()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    (folder,) = run(Spec.parse(TINY), out=tmp_path_factory.mktemp("whole"), quiet=True)
    return folder


def test_three_kills_at_random_batches_change_no_record(whole: RunFolder, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(TINY), str(tmp_path), str(time.time_ns())],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 3
    found = find_run(tmp_path, whole.hash)
    assert found is not None
    folder = RunFolder.open(found)
    assert folder.is_complete
    assert contents(folder) == contents(whole)
    assert folder.provenance().weights == whole.provenance().weights


def test_the_run_adapts_and_keeps_what_figures_need(whole: RunFolder) -> None:
    records = whole.records()
    assert [r.index for r in records] == list(range(12))
    assert any(r.updated for r in records)
    assert all(len(r.descriptor) == 25 and r.decision is not None for r in records)
    assert whole.summary().rf is not None
    assert not whole.state_path.exists()


def test_a_complete_run_is_not_run_again_unless_asked(
    whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec.parse(TINY)
    out = whole.path.parent
    (same,) = run(spec, out=out, quiet=True)
    assert same.path == whole.path
    (other,) = run(spec, out=out, again=True, quiet=True)
    assert other.path != whole.path
    assert contents(other) == contents(whole)


def test_ctrl_c_finishes_the_batch_and_says_how_to_go_on(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Signals(runner.RunProgress):
        def show(self, record: Any) -> None:
            super().show(record)
            if record.index == 4:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(runner, "RunProgress", Signals)
    with pytest.raises(Interrupted, match=r"batch 5 of 12.*ostinato run .*dual_expert"):
        run(Spec.parse(TINY), out=tmp_path, every=100, quiet=True)
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    found = find_run(tmp_path, whole.hash)
    assert found is not None
    assert RunFolder.open(found).resume_point().next_index == 5
    folder = resume(found, quiet=True)
    assert contents(folder) == contents(whole)


def test_a_folder_of_other_settings_is_not_resumed(tmp_path: Path) -> None:
    job = open_job(Spec.parse(TINY))
    stored = job.spec.stored()
    stored["settings"] = {}  # as if a default had changed since
    folder = RunFolder.create(tmp_path / "old", stored)
    with pytest.raises(ConfigError, match="run its spec anew"):
        resume(folder.path, quiet=True)


def test_labels_never_reach_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.methods.source import Source

    seen: list[dict[str, Any]] = []
    step = Source.step

    def spy(self: Any, images: torch.Tensor, **more: Any) -> Any:
        seen.append(more)
        return step(self, images, **more)

    monkeypatch.setattr(Source, "step", spy)
    spec = Spec.parse({**TINY, "method": "source", "preset": None, "statistics": None})
    run(spec, out=tmp_path, quiet=True)
    assert len(seen) == 12
    assert all(more == {"classes": None, "oracle": None} for more in seen)


def test_the_oracle_alone_is_told_the_domain(tmp_path: Path) -> None:
    told = {"preset": "source-free", "settings": {"discriminator": {"kind": "oracle"}}}
    spec = Spec.parse({**TINY, **told})
    (folder,) = run(spec, out=tmp_path, quiet=True)
    routing = folder.summary().routing
    assert routing is not None
    assert (routing.found, routing.purity, routing.exclusiveness) == (2, 1.0, 1.0)


def test_seeds_are_runs_of_their_own_with_their_own_corruptions(tmp_path: Path) -> None:
    values = {**TINY, "method": "source", "preset": None, "statistics": None, "seeds": [1, 2]}
    values["data"] = {"domains": ["gaussian_noise"], "limit": 8, "rounds": 1}
    first, second = run(Spec.parse(values), out=tmp_path, quiet=True)
    assert first.hash != second.hash
    assert first.records()[0].confidence != second.records()[0].confidence
    assert first.records()[0].keys == second.records()[0].keys


def test_progress_without_a_terminal_is_plain_lines(tmp_path: Path) -> None:
    spec = Spec.parse({**TINY, "method": "source", "preset": None, "statistics": None})
    with (tmp_path / "log").open("w+") as file:
        run(spec, out=tmp_path / "runs", console=Console(file=file))
        file.seek(0)
        text = file.read()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert "12/12 error" in lines[-2]
    assert "images/s" in lines[-1]


def test_runs_work_outside_the_main_thread(tmp_path: Path) -> None:
    spec = Spec.parse({**TINY, "method": "source", "preset": None, "statistics": None})
    done: list[RunFolder] = []
    thread = threading.Thread(target=lambda: done.extend(run(spec, out=tmp_path, quiet=True)))
    thread.start()
    thread.join()
    assert done[0].is_complete


@pytest.mark.parametrize("complete", [False, True])
def test_other_weights_under_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    spec = Spec.parse({**TINY, "method": "tent", "preset": None, "statistics": None})
    (folder,) = run(spec, out=tmp_path, quiet=True)
    if not complete:
        (folder.path / "summary.json").unlink()
    before = (folder.path / "records.jsonl").read_bytes()
    real = runner.open_job

    def changed(*arguments: Any) -> Any:
        job = real(*arguments)
        with torch.no_grad():
            next(job.model.parameters()).mul_(1.5)
        return job

    monkeypatch.setattr(runner, "open_job", changed)
    with pytest.raises(ConfigError, match="other weights"):
        run(spec, out=tmp_path, quiet=True)
    if not complete:
        with pytest.raises(ConfigError, match="other weights"):
            resume(folder.path, quiet=True)
    assert (folder.path / "records.jsonl").read_bytes() == before
