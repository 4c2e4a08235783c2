"""The demo ends well wherever it runs, goes on after any crash, and shows what it should."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ostinato import cli
from ostinato.demo import _folder as folder
from ostinato.demo import _plan as plan
from ostinato.demo import _workers as workers
from ostinato.demo import command
from ostinato.demo._folder import Job, choose_home, prepare
from ostinato.demo._live import picture
from ostinato.demo._plan import BATCH, DOMAINS, ROUNDS, ROWS, Plan, Row
from ostinato.errors import ConfigError, OstinatoError
from ostinato.running import runner
from ostinato.running.results import RunFolder
from ostinato.scoring.record import Record, RecordedDecision
from ostinato.scoring.summary import summarise

SOURCE, ROBUST = ROWS[0], ROWS[-1]
TINY = Plan((SOURCE, ROBUST), (2025,), BATCH)

# The command itself, with a plan that takes seconds.
DRIVER = """
import sys
from ostinato import cli
from ostinato.demo import _plan as plan
from ostinato.demo._plan import BATCH, ROWS, Plan

if __name__ == "__main__":
    plan.DOMAINS = plan.DOMAINS[:2]
    Plan.make = classmethod(lambda cls, quick=False: cls((ROWS[0], ROWS[-1]), (2025,), BATCH))
    cli.main(["demo", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("driver") / "tiny_demo.py"
    path.write_text(DRIVER)
    return [sys.executable, str(path)]


def contents(home: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of every complete run, by the run's folder."""
    return {
        path.parent.name: [r.content() for r in RunFolder.open(path.parent).records()]
        for path in home.glob("**/summary.json")
    }


def session(leader: int) -> list[str]:
    """What still runs in a session, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(entry.name)
    return found


# Folders


def test_a_new_folder_is_taken_and_known_again(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    assert choose_home(home) == (home, None)
    (home / "more").touch()
    assert choose_home(home) == (home, None)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    (tmp_path / "demo.json").write_text('{"made by": "somebody"}')
    with pytest.raises(ConfigError, match="holds other files"):
        choose_home(tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    assert (tmp_path / "demo.json").read_text() == '{"made by": "somebody"}'


def test_a_file_in_the_way_sends_the_demo_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder.tempfile, "tempdir", str(tmp_path))
    Path(folder.HOME).write_text("in the way")
    home, reason = choose_home(None)
    assert home.is_dir()
    assert home.parent == tmp_path
    assert reason is not None
    assert str(home) in reason
    with pytest.raises(ConfigError, match="--out"):
        choose_home(Path(folder.HOME))
    assert Path(folder.HOME).read_text() == "in the way"


def test_no_folder_at_all_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match=r"Permission denied.*--out"):
        choose_home(None)


# What an earlier demo left


def fake_record(job: Job, run: str, index: int, wrong: int, found: int) -> Record:
    per_round = job.batches // ROUNDS
    number, place = divmod(index, per_round)
    domain = place * len(DOMAINS) // per_round
    bad = wrong - number
    decision = None
    if found:
        decision = RecordedDecision(
            domain=domain % found, is_new=index < found, distance=0.1, threshold=0.2
        )
    return Record(
        run=run,
        index=index,
        round=number,
        domain=DOMAINS[domain],
        images=BATCH,
        counted=BATCH,
        correct=BATCH - bad,
        hits="0" * bad + "1" * (BATCH - bad),
        confidence=(0.5,) * BATCH,
        decision=decision,
        seconds=0.1,
    )


def fake_run(job: Job, wrong: int = 5, batches: int | None = None, found: int = 0) -> RunFolder:
    """A run as a worker would leave it; `wrong` images of a batch in round 1, then one less.

    It is complete unless `batches` says how many there are.
    """
    run = RunFolder.create(job.home / "run", job.spec.stored())
    for index in range(job.batches if batches is None else batches):
        run.append(fake_record(job, run.hash, index, wrong, found))
    if batches is None:
        run.complete(summarise(run.records()))
    run.close()
    return run


def begin(plan: Plan, home: Path) -> list[Job]:
    jobs, begun = prepare(plan, home)
    assert not begun
    return jobs


def cut_line(run: RunFolder) -> None:
    path = run.path / "records.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())


def spoil_spec(run: RunFolder) -> None:
    (run.path / "spec.json").write_text("{")


def lose_spec(run: RunFolder) -> None:
    (run.path / "spec.json").unlink()


def spoil_state(run: RunFolder) -> None:
    run.state_path.write_bytes(b"half a file")


def spoil_summary(run: RunFolder) -> None:
    (run.path / "summary.json").write_text("{}")


def other_version(run: RunFolder) -> None:
    path = run.path.parent / folder.ASKED
    path.write_text(path.read_text().replace("0.", "9.", 1))


@pytest.mark.parametrize(
    "damage", [cut_line, spoil_spec, lose_spec, spoil_state, spoil_summary, other_version]
)
def test_a_damaged_run_starts_anew_and_the_others_go_on(
    damage: Callable[[RunFolder], None], tmp_path: Path
) -> None:
    first, second = begin(TINY, tmp_path)
    kept = fake_run(first, batches=4)
    damage(fake_run(second, batches=None if damage is spoil_summary else 4))
    jobs, begun = prepare(TINY, tmp_path)
    assert begun
    assert len(kept.records()) == 4
    assert [path.name for path in jobs[1].home.iterdir()] == [folder.ASKED]


def test_a_half_line_is_no_damage(tmp_path: Path) -> None:
    job = begin(TINY, tmp_path)[0]
    run = fake_run(job, batches=4)
    with (run.path / "records.jsonl").open("ab") as file:
        file.write(b'{"run": "ha')
    assert prepare(TINY, tmp_path)[1]
    assert len(run.records()) == 4


def test_only_a_demo_with_its_report_starts_anew(tmp_path: Path) -> None:
    for job in begin(TINY, tmp_path):
        fake_run(job)
    jobs, begun = prepare(TINY, tmp_path)  # interrupted while it drew the report
    assert begun
    assert all(job.is_finished for job in jobs)
    (tmp_path / TINY.page).touch()
    jobs, begun = prepare(TINY, tmp_path)
    assert not begun
    assert not any(job.is_finished for job in jobs)
    assert not (tmp_path / TINY.page).exists()


def test_a_short_demo_leaves_the_whole_one_beside_it_alone(tmp_path: Path) -> None:
    full = begin(Plan.make(), tmp_path)
    fake_run(full[0], batches=3)
    (tmp_path / Plan.make().page).write_text("seen")
    assert begin(Plan.make(quick=True), tmp_path)
    assert (tmp_path / Plan.make().page).read_text() == "seen"
    assert prepare(Plan.make(), tmp_path)[1]


# What is on the screen


def test_looking_follows_a_file_that_grows_shrinks_and_is_written_again(tmp_path: Path) -> None:
    job = begin(TINY, tmp_path)[0]
    run = fake_run(job, wrong=5, batches=6)
    path = run.path / "records.jsonl"
    old = path.read_bytes()
    lines = old.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:10])
    job.look()
    assert [r.index for r in job.records] == [0, 1]
    path.write_bytes(old)
    job.look()
    assert [r.index for r in job.records] == list(range(6))
    assert job.error == pytest.approx(100 * (5 * 5 + 4) / (6 * BATCH))  # one batch of round 2
    path.write_bytes(lines[0])  # a resumed run drops what no checkpoint covers
    job.look()
    assert [r.index for r in job.records] == [0]
    path.write_bytes(old)
    job.look()
    chain, longer = run.chain(), b""  # cut and grown past this point
    for record in [*job.records, job.records[-1].replace(index=6)]:
        line = chain.line(record.replace(seconds=0.123))
        chain.read(line)
        longer += line
    path.write_bytes(longer)
    job.look()  # in the middle of a line
    job.look()
    assert [r.index for r in job.records] == list(range(7))


def test_the_live_picture_fits_eighty_columns_and_does_not_move(tmp_path: Path) -> None:
    def drawn(jobs: list[Job]) -> list[str]:
        kept = io.StringIO()
        Console(file=kept, width=80, color_system=None).print(picture(jobs))
        return kept.getvalue().splitlines()

    jobs = begin(Plan.make(), tmp_path)
    before = drawn(jobs)
    for count, job in enumerate(jobs):
        fake_run(job, wrong=25, batches=1 + 5 * count, found=5)
    after = drawn(jobs)
    for lines in (before, after):
        assert len(lines) == 1 + len(jobs) <= 24 - 4
        assert max(map(len, lines)) <= 79
        assert "…" not in "".join(lines)
    assert before[0].rstrip() == after[0].rstrip()
    assert "gaussian noise" in after[1]
    assert "0 new" in after[1]
    assert "100.0 %" in after[1]


def test_the_table_holds_means_and_spreads_of_the_runs(tmp_path: Path) -> None:
    plan = Plan((SOURCE, ROBUST), (2025, 2026, 2027), BATCH)
    jobs = begin(plan, tmp_path)
    wrongs = {2025: 10, 2026: 12, 2027: 13}
    for job in jobs:
        robust = job.row == ROBUST
        fake_run(job, wrongs[job.spec.seed], found=(4 if job.spec.seed == 2025 else 5) * robust)
    wide, narrow = command._table_text(plan, jobs), command._table_text(plan, jobs, 80)
    words = [[w for w in text.split() if "─" not in w] for text in (wide, narrow)]
    assert words[0] == words[1]
    assert max(map(len, narrow.splitlines())) <= 80
    assert "\x1b" not in wide
    cells = wide.splitlines()[-1].split()
    rounds = [[100 * (wrong - n) / BATCH for wrong in wrongs.values()] for n in range(ROUNDS)]
    expected = [f"{statistics.mean(r):.1f}±{statistics.stdev(r):.1f}" for r in rounds]
    assert cells[:2] == ["Ostinato", "robust"]
    assert cells[2:5] == expected
    assert cells[5:8] == [expected[1], "-8.0±0.0", "4–5"]
    assert cells[8] == "250"


def test_lines_survive_readers_that_leave_or_lack_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252"))
    command._say("─ 45±1")
    assert raw.getvalue().decode("cp1252").strip() == "? 45±1"
    source, sink = os.pipe()
    os.close(source)
    with os.fdopen(sink, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        command._say("nobody reads this")
        command._say("nor this")
    monkeypatch.setattr(sys, "stdout", None)
    command._say("there may be no output at all")


# Workers


def test_a_failure_comes_back_in_words_and_leaves_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unsendable(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} of {two}")

    def fail(*_: object, **__: object) -> None:
        raise Unsendable(3, 7)

    monkeypatch.setattr(runner, "run", fail)
    with pytest.raises(OstinatoError, match=r"Unsendable: 3 of 7.*failure\.txt"):
        workers.run_one(TINY.specs()[0][1], str(tmp_path))
    assert "in fail" in (tmp_path / "failure.txt").read_text()


def test_a_killed_worker_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    future: Future[None] = Future()
    future.set_exception(BrokenProcessPool("abrupt"))
    with pytest.raises(OstinatoError, match="again to go on"):
        workers._pending(begin(TINY, tmp_path)[:1], [future], 0.1)


def test_a_run_that_fails_ends_the_demo_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan((Row("Broken", "tent", None, {"lr": -1.0}),), (2025,), BATCH)
    monkeypatch.setattr(Plan, "make", classmethod(lambda cls, quick=False: plan))
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--out", str(tmp_path / "demo")])
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert "error: Broken, seed 2025:" in text
    assert "lr" in text
    assert "Traceback" not in text


# Whole demos


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_ctrl_c_leaves_nothing_behind_and_the_next_call_goes_on(
    driver: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / folder.HOME
    master, slave = pty.openpty()
    environ = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}
    environ.pop("FORCE_COLOR", None)
    demo = subprocess.Popen(
        driver, cwd=tmp_path, stdout=slave, stderr=slave, env=environ, start_new_session=True
    )
    os.close(slave)
    deadline = time.monotonic() + 200
    while not any(path.stat().st_size for path in home.glob("runs/*/*/records.jsonl")):
        assert demo.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
    deadline = time.monotonic() + 30
    screen = _drain(master)
    assert demo.wait(timeout=60) == 130
    while session(demo.pid):  # what tidies up after workers takes a moment
        assert time.monotonic() < deadline, "processes are left behind"
        time.sleep(0.05)
    assert "Traceback" not in screen
    assert screen.rstrip().endswith("Interrupted. To go on: ostinato demo")
    assert not re.search(r"\x1b\[[0-9;]*m", screen)  # NO_COLOR, on a terminal
    assert len(contents(home)) < len(TINY.rows)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # one worker
    monkeypatch.setattr(plan, "DOMAINS", DOMAINS[:2])
    monkeypatch.setattr(Plan, "make", classmethod(lambda cls, quick=False: TINY))
    capfd.readouterr()
    cli.main(["demo"])
    told = capfd.readouterr()
    assert "Going on" in told.err
    check_plain(told.out, told.err, home)
    for _, spec in TINY.specs():
        runner.run(spec, out=tmp_path / "reference", quiet=True)
    assert contents(home) == contents(tmp_path / "reference")


def check_plain(out: str, err: str, home: Path) -> None:
    """Without a terminal: plain lines that agree with the records, the report's path last."""
    for text in (out, err):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
        assert not any(line != line.rstrip() for line in text.splitlines())
    page = Path(out.splitlines()[-1].partition("Report: ")[2])
    assert page.parent == home.resolve()
    assert "<html" in page.read_text(encoding="utf-8")[:500]
    for row, spec in TINY.specs():
        job = Job(row, spec, home / "runs" / folder._name(row, spec, TINY), TINY.batches)
        records = job.folder().records()
        error = 100 - 100 * sum(r.correct for r in records) / sum(r.images for r in records)
        assert re.search(rf"^{row.title} +seed 2025  error {error:.1f} %$", err, re.M)
        assert re.search(rf"^ {row.title} .* {error:.1f} ", out, re.M)


def _drain(master: int) -> str:
    """Everything a terminal was sent, until its last writer is gone."""
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            part = b""
        if not part:
            os.close(master)
            return text.decode(errors="replace")
        text += part


@pytest.mark.slow
def test_the_quick_command_works_in_an_empty_folder(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "from ostinato.cli import main; main()", "demo", "--quick"]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / folder.HOME / "report-quick.html").is_file()
    assert len(contents(tmp_path / folder.HOME)) == len(Plan.make(quick=True).rows)


@pytest.mark.slow
def test_the_whole_demo_shows_what_it_is_there_for(tmp_path: Path) -> None:
    plan = Plan.make()
    page = command._show(plan, tmp_path, Console(file=io.StringIO()))
    assert page.is_file()
    runs = {
        row.title: [
            RunFolder.open(next(path.glob("*/summary.json")).parent)
            for path in sorted((tmp_path / "runs").glob(f"{row.title.lower().replace(' ', '-')}-*"))
        ]
        for row in plan.rows
    }
    assert all(len(found) == len(plan.seeds) for found in runs.values())
    mean = {t: statistics.mean(r.summary().mean for r in found) for t, found in runs.items()}
    robust = mean.pop("Ostinato robust")
    assert robust <= mean["Source"] - 5
    assert robust < min(mean.values())
    assert mean["Ostinato paper"] <= mean["Source"] + 0.1
    assert statistics.mean(r.summary().rf or 0.0 for r in runs["Ostinato robust"]) <= -1.0
    for run in runs["Ostinato robust"]:
        records = run.records()
        first = {r.decision.domain for r in records if r.decision and r.round == 0}
        new = [r.index for r in records if r.decision and r.decision.is_new and r.round > 0]
        everything = {r.decision.domain for r in records if r.decision}
        assert not new, f"{run.path.name}: new domains in later rounds"
        assert everything == first
