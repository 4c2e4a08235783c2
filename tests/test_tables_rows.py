"""Rows side by side give what rows in turn give; a search runs the same factors for everyone."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ostinato.data.shared import share
from ostinato.errors import ConfigError
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS, TABLES
from ostinato.running.job import _check_spec, open_stream
from ostinato.running.results import RunFolder
from ostinato.running.runner import Interrupted, finished, run
from ostinato.running.spec import Spec
from ostinato.scoring.summary import Summary
from ostinato.tables import _together as together
from ostinato.tables import assemble
from ostinato.tables._plan import at_factor, plan_table, spec_of
from ostinato.tables._rows import run_rows
from ostinato.tables._table import Variant
from ostinato.tables._together import Workers, run_together
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request, spec_key
from ostinato.tables.search import read_factors, search, write_factors

QUIET = Console(quiet=True)
WRAPPERS = ("reservoir", "cola")  # whose rates are another method's
TINY = {
    "batch_size": 4,
    "stream": "recurring",
    "data": {"limit": 8, "rounds": 2, "domains": ["fog", "contrast"]},
}


def rows_of(folder: Path) -> dict[str, list[dict[str, object]]]:
    """What every run below a folder recorded, but for time and memory."""
    found = [RunFolder.open(path.parent) for path in sorted(folder.glob("*/spec.json"))]
    return {f.hash: [r.content() for r in f.records()] for f in found}


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Two processes for all tests of this file: to start them takes longer than what they do."""
    with Workers(2) as two:
        yield two


def test_rows_side_by_side_record_what_rows_in_turn_record(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All streams and seeds are handed out at once: no row waits for another stream's slowest."""
    begun: list[int] = []

    def started(jobs: int) -> AbstractContextManager[Workers]:
        begun.append(jobs)
        return nullcontext(workers)

    monkeypatch.setattr(assemble, "Workers", started)

    def request(jobs: int) -> Request:
        changes = {**TINY, "data": {"limit": 4, "domains": ["fog", "contrast"]}}
        methods = ("source", "tent", "dual_expert:robust")
        only = {"tent": {"data": {"limit": 2}}}  # which makes it another stream
        out = tmp_path / str(jobs)
        return Request(
            methods=methods, seeds=(1, 2), changes=changes, only=only, out=out, jobs=jobs
        )

    alone = build_table("imagenet-c", request(1), QUIET)
    said = Console(record=True, file=io.StringIO(), width=400)  # no line is cut in two
    together = build_table("imagenet-c", request(2), said)
    assert begun == [2]  # one job needs no other process
    assert rows_of(tmp_path / "1") == rows_of(tmp_path / "2")
    assert len(rows_of(tmp_path / "2")) == 6
    assert [(r.label, r.values[0]) for r in alone.rows] == [
        (r.label, r.values[0]) for r in together.rows
    ]
    assert not list((tmp_path / "2").glob(".batches*"))
    lines = said.export_text().splitlines()
    assert sum("of 6)" in line for line in lines) == 6
    assert any(line.startswith("tent:imagenet-c (recurring, batch 4, seed 2)") for line in lines)


def test_shared_batches_are_the_stream_s_own_and_what_does_not_fit_is_made(tmp_path: Path) -> None:
    table = TABLES["imagenet-c"]
    request = Request(changes=TINY)
    spec = spec_of(table, table.parts[0], Variant("s", "source"), request)
    stream = open_stream(spec.replace(seeds=(1,)))

    def here(work, tasks):  # type: ignore[no-untyped-def]
        return [work(*task) for task in tasks]

    size = stream[0].images.nbytes / 2**30
    shared = share(stream, tmp_path, 3.5 * size, 1, here)
    written = sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    assert written == 3 * (stream[0].images.nbytes + 4 * 2)  # of 4 different batches, 3 fit
    for index in range(len(stream)):
        mine, true = shared[index], stream[index]
        assert torch.equal(mine.images, true.images)
        assert torch.equal(mine.labels, true.labels)
        assert mine.labels.dtype == true.labels.dtype
        assert (mine.index, mine.round, mine.domain, mine.keys) == (
            *(true.index, true.round, true.domain, true.keys),
        )


def test_a_row_that_fails_comes_back_as_its_error(tmp_path: Path) -> None:
    table = TABLES["imagenet-c"]
    request = Request(changes={**TINY, "seeds": (1,)})
    good = spec_of(table, table.parts[0], Variant("s", "source"), request)
    bad = good.replace(model="vit_tiny_patch16_224", weights="random")
    found = run_rows({"good": good, "bad": bad}, out=tmp_path, console=QUIET)
    assert isinstance(found["bad"], ConfigError)
    assert "does not take 32×32 images" in str(found["bad"])
    with pytest.raises(ConfigError, match="at least one process"):
        Workers(0)


def test_rows_that_are_done_are_shown_without_making_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request(jobs: int) -> Request:
        methods = ("source", "tent")
        return Request(methods=methods, seeds=(1,), changes=TINY, out=tmp_path, jobs=jobs)

    first = build_table("imagenet-c", request(1), QUIET)

    def refuse(*_: object) -> None:
        raise AssertionError("a batch was made")

    monkeypatch.setattr("ostinato.tables._together.share", refuse)
    monkeypatch.setattr("ostinato.data.streams.Stream.__getitem__", refuse)
    assert build_table("imagenet-c", request(2), QUIET).rows == first.rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_run_of_another_machine_is_looked_for_but_not_begun(tmp_path: Path) -> None:
    spec = Spec.parse({"method": "source", "seeds": (1,), "device": "cuda", **TINY})
    assert finished(spec, tmp_path) is None
    with pytest.raises(ConfigError, match="no GPU here"):
        run(spec, out=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # the demo's processes and a single run are stopped likewise in every test run
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for groups")
def test_ctrl_c_stops_all_rows_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = ["table", "imagenet-c", "--methods", "tent", "cotta", "--seeds", "1", "--jobs", "2"]
    words += ["--set", "data.limit=100", "batch_size=1", "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-c", "from ostinato.cli import main; main()", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(tmp_path.glob("runs/tent*/records.jsonl")):
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"The same command goes on" in told
    assert not list((tmp_path / "runs").glob(".batches*"))


def test_every_method_says_what_learning_faster_means() -> None:
    for name in METHODS.names():
        kind = METHODS[name]
        config = resolve_config(kind, None, {})
        settings = kind.scaled(config, 3.0)
        assert (settings == {}) == (kind.info.trains == "nothing"), name
        faster = resolve_config(kind, None, settings)
        again = kind.scaled(faster, 1.0)
        assert again == (settings if name in WRAPPERS else pytest.approx(settings)), name
        for rate in kind.rates if name not in WRAPPERS else ():
            assert getattr(faster, rate) == pytest.approx(3 * getattr(config, rate)), name


def test_a_factor_scales_the_rate_that_the_table_itself_sets() -> None:
    table = TABLES["imagenet-plus"]
    request = Request(scale="full", changes={"model": "test_vit", "weights": "random"})
    paper = at_factor(Variant("ours", "dual_expert", "paper", cosine=True), 3.0)
    assert paper.label == "ours, rate × 3"
    assert _check_spec(spec_of(table, table.parts[0], paper, request)).lr == pytest.approx(1.5e-3)


def test_a_search_tries_all_factors_and_chooses_the_lowest_error(tmp_path: Path) -> None:
    methods = ("source", "tent", "reservoir")
    request = Request(methods=methods, seeds=(1,), changes=TINY, out=tmp_path)
    result, chosen = search("imagenet-c", request, (0.1, 1.0, 1e5), QUIET)
    assert [str(h) for h in result.headings] == ["× 0.1", "× 1", "× 100000", "Best", "Holds"]
    source, tent, reservoir = result.rows
    assert [str(v) for v in source.values[:3:2]] == ["", ""]  # nothing learned: run once
    assert str(source.values[3]) == "—"
    assert set(chosen) == {"tent:imagenet-c", "reservoir:imagenet-c"}
    for row, label in ((tent, "tent:imagenet-c"), (reservoir, "reservoir:imagenet-c")):
        errors = [v.value for v in row.values[:3]]
        assert errors[(0.1, 1.0, 1e5).index(chosen[label])] == min(errors)
        assert errors[2] > min(errors)  # a rate far too high is seen to be
        assert 0 < row.values[4].value <= 100
    assert str(source.values[4]) == ""
    with pytest.raises(ConfigError, match="variants of one method"):
        search("ablation-fdd", request)
    with pytest.raises(ConfigError, match="two or more"):
        search("imagenet-c", request, (1.0, 1.0))


def test_a_search_may_leave_out_the_methods_own_rate(tmp_path: Path) -> None:
    request = Request(methods=("source", "tent"), seeds=(1,), changes=TINY, out=tmp_path)
    result, chosen = search("imagenet-c", request, (0.3, 0.1), QUIET)
    assert [str(h) for h in result.headings] == ["× 0.1", "× 0.3", "× 1", "Best", "Holds"]
    source, tent = ([v.value for v in row.values[:3]] for row in result.rows)
    assert source[:2] == [None, None]
    assert source[2] is not None  # what the others are held against
    assert tent[2] is None
    assert None not in tent[:2]
    assert result.rows[1].facts["Images"] == result.rows[0].facts["Images"]
    assert chosen["tent:imagenet-c"] in (0.1, 0.3)


def test_a_table_takes_the_factors_of_a_search_for_second_rows(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    write_factors(path, {"tent:imagenet-c": 3.0, "cotta:imagenet-c": 1.0}, "typed")
    factors = read_factors(path)
    assert json.loads(path.read_text())["command"] == "typed"
    request = Request(methods=("source", "tent", "cotta"), factors=factors)
    labels = [v.label for v in plan_table(TABLES["imagenet-c"], request).variants]
    tent, cotta = (METHODS[name].info.title for name in ("tent", "cotta"))
    assert labels == ["Source", tent, f"{tent}, rate × 3", cotta]
    with pytest.raises(ConfigError, match="ostinato search"):
        read_factors(tmp_path / "none.json")
    path.write_text("[]")
    with pytest.raises(ConfigError, match="no file of factors"):
        read_factors(path)


def test_a_row_that_fails_side_by_side_comes_back_as_its_error(
    workers: Workers, tmp_path: Path
) -> None:
    table = TABLES["imagenet-c"]
    request = Request(changes={**TINY, "seeds": (1,)}, out=tmp_path)
    good = spec_of(table, table.parts[0], Variant("s", "source"), request)
    bad = good.replace(model="vit_tiny_patch16_224", weights="random")
    found = run_together([good, bad, good], request, workers, QUIET)
    assert isinstance(found[spec_key(bad)], ConfigError)
    assert isinstance(found[spec_key(good)], Summary)
    assert len(rows_of(tmp_path)) == 1  # equal specs are one run


def test_a_row_that_a_process_was_handed_is_not_begun_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = multiprocessing.get_context("spawn").Event()
    stopped.set()
    monkeypatch.setattr(together, "_told_to_stop", stopped)
    spec = Spec.parse({"method": "source", "seeds": (1,), **TINY})
    usual = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(Interrupted):
            together._elsewhere(spec, tmp_path, False, open_stream(spec))
    finally:
        signal.signal(signal.SIGINT, usual)
    assert not list(tmp_path.iterdir())
