"""The soak: what it shows, that it notices faults, and that kills change nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.cli import main
from ostinato.data.embedded import embedded_model
from ostinato.errors import ConfigError, DataError, InputError, StateError
from ostinato.soak import _log as log
from ostinato.soak._page import render
from ostinato.soak._styles import refusable
from ostinato.soak._supervisor import _alone, done, kill_points, soak
from ostinato.soak._tenths import Piece, check_alike, faults, read_piece, tenths, verdicts
from ostinato.soak._traffic import Traffic, make_pool
from ostinato.soak._worker import Worker, build
from ostinato.soak._worker import main as worker_main
from ostinato.soak.command import NUMBERS, PAGE, write_page
from ostinato.soak.plan import KINDS, LOG, STATE, Plan, settle_plan

TINY = Plan(
    corruptions=("contrast",), severities=(5,), images=20, stretch=2, block=2, save=4,
    settings={"enough": 8, "micro": 10, "shared_rank": 4, "domain_rank": 2},
)  # fmt: skip
BLOCK = log.Block(
    start=0, end=5, kind="mixed", images=100, wrong=20, source_wrong=30, answers="a", memory=1000,
    mapped=300, allocated=500, idle=100, state=10, files=5, domains=2, updates=1, faults=(),
    seconds=0.1, life=0,
)  # fmt: skip


def piece(**changes: object) -> Piece:
    """Ten blocks, one a tenth, the last of them changed."""
    blocks = [replace(BLOCK, start=5 * n, end=5 * n + 5) for n in range(10)]
    blocks[-1] = replace(blocks[-1], **changes)
    return Piece("a", Plan(), tuple(blocks), 1, ())


def resting(**changes: object) -> Piece:
    """Ten blocks that end laps, the last of them changed."""
    blocks = [replace(BLOCK, start=200 * n, end=200 * n + 200) for n in range(10)]
    blocks[-1] = replace(blocks[-1], **changes)
    return Piece("a", Plan(), tuple(blocks), 1, ())


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    return Traffic(TINY, make_pool(TINY))


# Traffic.


def test_a_batch_follows_from_its_position_alone(traffic: Traffic) -> None:
    again = Traffic(TINY, make_pool(TINY))
    for position in (13, 5, 0):
        assert torch.equal(traffic[position].images, again[position].images)
    assert not torch.equal(traffic[0].images, traffic[1].images)


def test_every_kind_is_what_its_name_says(traffic: Traffic) -> None:
    assert [TINY.kind(at) for at in (0, 2, 4, 6, 8)] == [*KINDS, "returning"]
    pool, few = traffic.pool, [traffic[at].labels for at in (4, 5)]
    assert len({int(x) for labels in few if labels is not None for x in labels}) <= 2
    for image in traffic[2].images:
        assert bool((pool == image).all(dim=(2, 3, 4)).any())
    hostile = [Traffic(Plan(images=20), traffic.pool.numpy())[150 + n] for n in range(5)]
    assert hostile[0].labels is None
    assert [shown.refused is not None for shown in hostile] == [False, True, False, False, False]


def test_everything_refusable_is_refused() -> None:
    method = build(TINY, embedded_model())
    good = torch.rand(5, 3, 32, 32)
    for seed in range(40):
        with pytest.raises(InputError):
            method(refusable(good, np.random.default_rng(seed)))


# What follows from a log.


def test_verdicts_hold_for_a_good_run_and_fail_one_by_one() -> None:
    assert all(holds for holds, _ in verdicts([piece()]).values())
    bad = {
        "error": piece(wrong=31),
        "memory": piece(memory=1030),
        "domains": piece(domains=33),
        "open files": piece(files=20),
        "faults": piece(faults=("<b>broken</b>",)),
    }
    for name, one in bad.items():
        assert [key for key, (holds, _) in verdicts([one]).items() if not holds] == [name]
    assert "&lt;b&gt;broken" in render([bad["faults"]])
    assert "<b>broken" not in render([bad["faults"]])


def test_memory_is_told_at_rest_and_at_its_peaks() -> None:
    assert resting(memory=1030).growth == pytest.approx(0.03)
    between = resting(memory=1090, end=1999)  # not the end of a lap
    assert (between.growth, between.peak_growth) == (0, pytest.approx(0.09))
    assert verdicts([between])["memory"] == (False, "+9.0 % after the first tenth, +0.0 % at rest")
    short = piece(memory=1015)  # shorter than a lap
    assert short.growth == short.peak_growth == pytest.approx(0.015)


def test_pieces_are_joined_tenth_by_tenth() -> None:
    joined = tenths([piece(), piece(wrong=60)])
    assert [round(one.gap, 2) for one in joined] == [-10.0] * 9 + [10.0]
    assert {one.images for one in joined} == {200}


def test_domains_of_a_method_without_a_bound_are_not_bounded() -> None:
    plan = Plan(method="dual_expert", preset="paper")
    assert not verdicts([replace(piece(), plan=plan)])["domains"][0]
    assert verdicts([replace(piece(), plan=Plan(method="dual_expert"))])["domains"][0]


def test_pieces_that_are_no_whole_are_not_joined() -> None:
    one = piece()
    check_alike([one, replace(one, plan=Plan(seed=1)), replace(one, plan=Plan(seed=2))])
    with pytest.raises(ConfigError, match="other settings"):
        check_alike([one, replace(one, plan=Plan(method="tent", seed=1))])
    with pytest.raises(ConfigError, match="a and b have the same seed, 0"):
        check_alike([one, replace(one, plan=Plan(seed=1)), replace(one, name="b")])


def test_a_repeated_block_counts_once_and_has_to_agree() -> None:
    again, other = replace(BLOCK, life=1), replace(BLOCK, life=2, answers="b")
    assert log.settled([BLOCK, again]) == [BLOCK]
    assert log.differing([BLOCK, again]) == []
    assert log.differing([BLOCK, again, other]) == [0]
    assert faults([replace(piece(), differing=(0,))])


def test_a_cut_line_is_dropped_and_a_wrong_one_named(tmp_path: Path) -> None:
    path = tmp_path / LOG
    log.append(path, BLOCK)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    assert log.read(path) == [BLOCK]
    log.cut_off(path)
    assert path.read_bytes() == whole
    for wrong in (b"{}\n", b"[]\n", b'{"faults": 3}\n', whole.replace(b"100", b'"x"')):
        path.write_bytes(whole + wrong)
        with pytest.raises(DataError, match="line 2"):
            log.read(path)
    log.append(path := tmp_path / "gap", BLOCK)
    log.append(path, replace(BLOCK, start=10, end=15))
    with pytest.raises(DataError, match="missing"):
        log.read(path)


# Running.


def test_a_worker_that_starts_again_gives_the_same_answers(tmp_path: Path) -> None:
    settle_plan(tmp_path, TINY)
    first = Worker(tmp_path)
    for end in (2, 4, 6):
        first.block(end)
    second = Worker(tmp_path)  # as after a kill: from the save at 4
    assert (second.position, second.life) == (4, 1)
    for end in (6, 8):
        second.block(end)
    found = read_piece(tmp_path)
    assert (found.batches, found.differing, faults([found])) == (8, (), [])
    assert [b.start for b in log.read(tmp_path / LOG)] == [0, 2, 4, 4, 6]
    assert found.blocks[0].files > 0
    assert found.blocks[0].memory > 0


def test_a_reload_that_answers_otherwise_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_plan(tmp_path, TINY)
    worker = Worker(tmp_path)
    spoil = torch.nn.init.zeros_
    monkeypatch.setattr(
        type(worker.method), "load", lambda self, path: spoil(self.model.base.head.weight)
    )
    assert worker.reload() == ["batch 0: other answers after save and load"]
    assert worker.reload()[0] == "batch 0: unwrap gave other weights back"


class Forked:
    """A process like the soak's own that need not import everything again."""

    def __init__(self, folder: Path, end: int) -> None:
        self.returncode: int | None = None
        parent = os.getpid()
        self.process = multiprocessing.get_context("fork").Process(
            target=worker_main, args=(str(folder), str(end), str(parent))
        )
        self.process.start()

    def poll(self) -> int | None:
        self.returncode = self.process.exitcode
        return self.returncode

    def send_signal(self, sig: int) -> None:
        os.kill(self.process.pid or 0, sig)

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # pytest's own threads
def test_a_soak_with_a_kill_writes_its_page(tmp_path: Path) -> None:
    plan = settle_plan(tmp_path, TINY.replace(seed=1))  # whose kill comes early
    assert kill_points(plan, 32, 1) == [4]
    soak(tmp_path, plan, batches=32, kills=1, launch=Forked)
    assert done(tmp_path) == 32
    found = read_piece(tmp_path)
    assert (found.lives, found.differing, faults([found])) == (2, (), [])
    write_page((tmp_path,), tmp_path / "page")
    text = (tmp_path / "page" / PAGE).read_text()
    assert "default-src 'none'" in text
    assert "<script" not in text
    HTMLParser().feed(text)
    numbers = json.loads((tmp_path / "page" / NUMBERS).read_text())
    assert (numbers["batches"], len(numbers["tenths"])) == (32, 10)
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".tmp"]


def test_kills_are_spread_over_the_batches() -> None:
    points = kill_points(TINY, 1000, 10)
    assert [point // 100 for point in points] == list(range(10))
    assert kill_points(TINY, 1000, 0) == []


# What is refused.


def test_another_plan_another_soak_and_no_soak_are_refused(tmp_path: Path) -> None:
    settle_plan(tmp_path, TINY)
    with pytest.raises(ConfigError, match="another seed"):
        settle_plan(tmp_path, TINY.replace(seed=1))
    with pytest.raises(ConfigError, match="holds no soak"):
        read_piece(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="prepared file"):
        settle_plan(tmp_path / "new", TINY.replace(method="vida", settings={}))
    with _alone(tmp_path), pytest.raises(StateError, match="Another soak"), _alone(tmp_path):
        pass
    assert not (tmp_path / STATE).exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--batches", "0"],
        ["--hours", "nan"],
        ["--batches", "2", "--jobs", "3"],
        ["--batches", "9", "--method", "tentt"],
        ["--join", "/nowhere"],
        ["--batches", "9", "--out", "/proc/x"],
        ["--batches", "9", "--seed", "-1"],
    ],
)
def test_the_command_refuses_in_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as end:
        main(["soak", *words, *out])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_short_soak_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["soak", "--batches", "800", "--jobs", "2", "--kills", "2", "--out", str(tmp_path)])
    pieces = [read_piece(tmp_path / name) for name in ("piece-00", "piece-01")]
    found = verdicts(pieces)
    for name in ("domains", "open files", "faults"):
        assert found[name][0], found
    assert [one.lives for one in pieces] == [1, 3]
    assert sum(one.gap * one.images for one in tenths(pieces)) < 0
