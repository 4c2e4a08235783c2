"""A stream's `reset`: a method starts afresh where another domain begins, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ostinato.errors import ConfigError
from ostinato.running.job import _check_spec, open_job, open_stream
from ostinato.running.runner import _AFRESH, resume, run
from ostinato.running.spec import Spec
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request

BASE: dict[str, Any] = {
    "method": "tent",
    "settings": {"lr": 0.05},
    "stream": "recurring",
    "batch_size": 4,
    "device": "cpu",
    "data": {"domains": ["fog", "contrast"], "limit": 8, "rounds": 2, "reset": "domain"},
}


def spec(**data: Any) -> Spec:
    return Spec.parse(BASE | {"data": BASE["data"] | data})


def test_every_domain_is_met_by_the_source_model(tmp_path: Path) -> None:
    (folder,) = run(spec(), out=tmp_path, quiet=True)
    records = folder.records()
    assert [_AFRESH in r.events for r in records] == [False, False, *(3 * [True, False])]
    # The second round shows the same images to a method that has forgotten the first.
    assert [r.loss for r in records[:4]] == [r.loss for r in records[4:]]
    method = open_job(spec()).adapt()
    stream = open_stream(spec())
    for index in (2, 3):  # contrast alone, from the start
        assert method.step(stream[index].images).loss == pytest.approx(records[index].loss)
    assert folder.spec["data"]["reset"] == "domain"


def test_without_it_a_method_goes_on(tmp_path: Path) -> None:
    (folder,) = run(spec(reset="never"), out=tmp_path, quiet=True)
    records = folder.records()
    assert not any(_AFRESH in r.events for r in records)
    assert records[0].loss != records[4].loss


def test_a_resumed_run_starts_afresh_at_the_same_batches(tmp_path: Path) -> None:
    (whole,) = run(spec(), out=tmp_path / "whole", quiet=True)
    stopped: list[int] = []

    def stop(*args: Any) -> None:
        stopped.append(1)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(spec(), out=tmp_path / "again", every=2, quiet=True, finish=stop)
    (place,) = (p for p in (tmp_path / "again").iterdir() if (p / "spec.json").is_file())
    lines = (place / "records.jsonl").read_text().splitlines(keepends=True)
    (place / "records.jsonl").write_text("".join(lines[:7]))  # back to the checkpoint at batch 6
    again = resume(place, quiet=True)
    assert stopped
    assert [r.content() for r in again.records()] == [r.content() for r in whole.records()]


def test_streams_say_where_to_reset() -> None:
    stream = open_stream(spec())
    assert [stream.resets(n) for n in range(8)] == [False, False, *(3 * [True, False])]
    assert stream.describe().endswith("reset at every domain")
    one = open_stream(spec(domains=["fog"]))
    assert not any(one.resets(n) for n in range(len(one)))  # the same domain again is no change
    assert stream.fingerprint() == open_stream(spec(reset="never")).fingerprint()


def test_annealing_over_the_whole_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        _check_spec(spec().replace(cosine=True))


def test_tables_show_it(tmp_path: Path) -> None:
    changes = {"batch_size": 4, "data": {"limit": 4, "reset": "domain"}}
    request = Request(methods=("source",), seeds=(1,), changes=changes, out=tmp_path)
    result = build_table("imagenet-c", request, Console(quiet=True))
    assert result.rows[0].facts["Reset"] == "every domain"
