"""Tables whose rows differ in their images, and tables of what is finished alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from ostinato.errors import ConfigError
from ostinato.registry import TABLES
from ostinato.tables._plan import plan_table
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request, parse_only
from ostinato.tables.search import search

QUIET = Console(quiet=True)
TINY = {"batch_size": 8, "data": {"limit": 8, "domains": ["fog", "snow"]}}


def test_one_method_may_have_fewer_images(tmp_path: Path) -> None:
    request = Request(
        methods=("source", "tent", "neo"),
        seeds=(1,),
        changes=TINY,
        only={"neo": {"data": {"limit": 4}}},
        out=tmp_path,
    )
    result = build_table("imagenet-c", request, QUIET)
    rows = {row.label: row for row in result.rows if row.origin == "measured"}
    assert {name: row.facts["Images"] for name, row in rows.items()} == {
        "Source": "16",
        "TENT (continual)": "16",
        "NEO": "8",
    }
    gain = [h.name for h in result.headings].index("Gain")
    assert rows["TENT (continual)"].values[gain].value is not None
    # A gain over the source on other images would be none.
    assert rows["NEO"].values[gain].value is None


def test_one_stream_may_have_fewer_images(tmp_path: Path) -> None:
    only = parse_only(["Batch 1:data.limit=2", "Recurring:data.rounds=2"])
    changes = {"data": {"limit": 4, "domains": ["fog", "snow"]}}
    request = Request(methods=("source",), seeds=(1,), changes=changes, only=only, out=tmp_path)
    (row, *_) = build_table("traffic", request, QUIET).rows
    assert row.facts["Images"] == "16 / 8 / 8 / 8 / 8 / 8 / 8 / 8 / 4 / 72"


def test_one_method_may_have_fewer_images_of_one_stream() -> None:
    only = parse_only(["Batch 1:data.limit=2", "tent:data.limit=3", "Batch 1/tent:data.limit=1"])
    methods = ("source", "tent")
    request = Request(methods=methods, changes={"data": {"limit": 4}}, only=only)
    source, tent = plan_table(TABLES["traffic"], request).rows
    limits = {
        name: (source.specs[name].data["limit"], tent.specs[name].data["limit"])
        for name in ("Mixed", "Batch 1")
    }
    assert limits == {"Mixed": (4, 3), "Batch 1": (2, 1)}


def test_some_streams_of_a_table_may_be_run_and_shown(tmp_path: Path) -> None:
    changes = {"data": {"limit": 4, "domains": ["fog", "snow"]}}
    request = Request(
        methods=("source",),
        parts=("Mixed", "Batch 10"),
        seeds=(1,),
        changes=changes,
        out=tmp_path,
    )
    result = build_table("traffic", request, QUIET)
    assert [str(h) for h in result.headings] == ["Mixed", "Batch 10"]
    assert [cell.value is None for cell in result.rows[0].values] == [False, False]
    assert len(list(tmp_path.glob("*/summary.json"))) == 2
    with pytest.raises(ConfigError, match="Did you mean 'Mixed'"):
        build_table("traffic", Request(parts=("Mxed",)), QUIET)


def test_the_row_at_the_searched_rate_may_stand_alone() -> None:
    def labels(**asked: bool) -> list[str]:
        factors = {"tent:imagenet-c": 10.0, "sar:imagenet-c": 1.0}
        request = Request(methods=("source", "tent", "sar"), factors=factors, **asked)
        return [row.label for row in plan_table(TABLES["imagenet-c"], request).rows]

    usual = "TENT (continual)"
    assert labels() == ["Source", usual, f"{usual}, rate × 10", "SAR"]
    assert labels(searched=True) == ["Source", f"{usual}, rate × 10", "SAR"]
    with pytest.raises(ConfigError, match="pass its factors"):
        Request(searched=True)


def test_settings_of_nobody_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'tent'"):
        plan_table(TABLES["imagenet-c"], Request(only={"tnet": {}}))
    with pytest.raises(ConfigError, match="Did you mean 'tent'"):
        plan_table(TABLES["traffic"], Request(only={"Batch 1/tnet": {}}))
    for word in ("data.limit=3", "foa:data.limit", ":limit=3"):
        with pytest.raises(ConfigError, match="NAME:KEY=VALUE"):
            parse_only([word])
    assert parse_only(["ostinato:robust:lr=1"]) == {"ostinato:robust": {"lr": 1}}


def test_what_is_finished_is_shown_and_nothing_is_run(tmp_path: Path) -> None:
    def request(*methods: str, seeds: tuple[int, ...] = (1,), finished: bool = True) -> Request:
        return Request(methods=methods, seeds=seeds, changes=TINY, out=tmp_path, finished=finished)

    with pytest.raises(ConfigError, match="is finished"):
        build_table("imagenet-c", request("source"), QUIET)
    build_table("imagenet-c", request("source", finished=False), QUIET)
    before = sorted(tmp_path.iterdir())
    result = build_table("imagenet-c", request("source", "tent"), QUIET)
    assert [row.label for row in result.rows if row.origin == "measured"] == ["Source"]
    assert any("TENT (continual) (not finished)" in note for note in result.notes)
    with pytest.raises(ConfigError, match="is finished"):  # one seed of two is no mean over two
        build_table("imagenet-c", request("source", seeds=(1, 2)), QUIET)
    result, chosen = search("imagenet-c", request("source", "tent"), console=QUIET)
    assert ([row.label for row in result.rows], chosen) == (["Source"], {})
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(ConfigError, match="leave one out"):
        Request(finished=True, again=True)


def test_streams_that_are_not_finished_stay_empty(tmp_path: Path) -> None:
    changes = {"data": {"limit": 4, "domains": ["fog", "snow"]}}
    request = Request(methods=("source",), seeds=(1,), changes=changes, out=tmp_path)
    build_table("recurring-20", request, QUIET)
    asked = Request(
        methods=("source",),
        seeds=(1,),
        changes=changes,
        only={"Recurring": {"data": {"rounds": 20}}},
        out=tmp_path,
        finished=True,
    )
    (row, *_) = build_table("traffic", asked, QUIET).rows
    assert row.facts["Images"] == "160 / – / – / – / – / – / – / – / – / –"
    assert [cell.value is None for cell in row.values] == [False] + 9 * [True]
