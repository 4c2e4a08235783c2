"""Tables from runs: the cells equal what the records give, and rows that cannot run are told."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ostinato import cli
from ostinato.data import stand_ins as small
from ostinato.data.imagenet_plus import _ORDERS
from ostinato.data.kept import keep
from ostinato.errors import OstinatoError
from ostinato.registry import METHODS, TABLES
from ostinato.running.job import _check_spec, open_stream
from ostinato.running.results import RunFolder
from ostinato.tables import _plan as plan
from ostinato.tables._cells import measure
from ostinato.tables._plan import plan_table, spec_of
from ostinato.tables._table import Measure, Table, Variant
from ostinato.tables.assemble import build_table
from ostinato.tables.printed import printed
from ostinato.tables.request import Request
from ostinato.tables.tables import METHODS_FULL

NAMES = (
    *("imagenet-c", "cifar100-c", "imagenet-plus", "imagenet-plus-plus", "acdc", "parameters"),
    *("camvid", "ablation-experts", "ablation-fdd", "ablation-descriptor"),
    *("recurring-20", "traffic", "ablation-objective"),
)
QUIET = Console(quiet=True)
TINY = {"batch_size": 8, "data": {"limit": 8}}


def test_every_table_is_there() -> None:
    assert set(NAMES) == set(TABLES.names())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["full", "small"])
def test_every_row_of_every_table_has_a_valid_spec(name: str, scale: Any) -> None:
    table: Table = TABLES[name]
    methods = () if table.variants else ("source", "tent", "dual_expert:paper")
    changes = {"model": "test_vit", "weights": "random"} if scale == "full" else {}
    request = Request(scale=scale, methods=methods, changes=changes)
    made = plan_table(table, request)
    variants, skipped = made.variants, made.skipped
    assert skipped == ()
    for variant in variants:
        for part in table.parts:
            spec = spec_of(table, part, variant, request)
            _check_spec(spec)
            once = name in ("acdc", "camvid") and scale == "small"
            assert spec.seeds == ((2025,) if once else (2025, 2026, 2027))
            if name != "traffic":  # whose batches are what it varies
                assert spec.batch_size == (1 if name in ("acdc", "camvid") else 50)


def test_the_paper_s_own_setting_is_the_literature_s() -> None:
    for name in ("imagenet-c", "imagenet-plus", "imagenet-plus-plus"):
        full = TABLES[name].parts[0].full
        assert full["model"] == "vit_base_patch16_224.augreg_in21k_ft_in1k"
        assert full["normalize"] == "none"
    assert TABLES["cifar100-c"].parts[0].full["data"]["transform"] == "resize384-bilinear"
    acdc = TABLES["acdc"].parts[0].full
    assert (acdc["batch_size"], acdc["data"]["rounds"]) == (1, 3)
    request = Request(scale="full", changes={"model": "test_vit", "weights": "random"})
    rates = {}
    for name in ("imagenet-c", "cifar100-c", "imagenet-plus", "imagenet-plus-plus", "acdc"):
        variant = Variant("ours", "dual_expert", "paper", cosine=True)
        spec = spec_of(TABLES[name], TABLES[name].parts[0], variant, request)
        rates[name] = _check_spec(spec).lr
    assert list(rates.values()) == [1e-5, 1e-5, 5e-4, 5e-4, 3e-4]


def test_measured_cells_are_those_of_the_records(tmp_path: Path) -> None:
    request = Request(
        methods=("source", "tent"), seeds=(1, 2), changes=TINY, out=tmp_path, command="typed"
    )
    result = build_table("imagenet-c", request, QUIET)
    folders = [RunFolder.open(path) for path in sorted(tmp_path.iterdir())]
    assert len(folders) == 4
    source = [f for f in folders if f.spec["method"] == "source"]
    means = []
    for folder in source:
        wrong = [hit == "0" for record in folder.records() for hit in record.hits]
        means.append(100 * sum(wrong) / len(wrong))
    names = [str(h) for h in result.headings]
    row = result.rows[0]
    mean = row.values[names.index("Mean")]
    assert mean.value == pytest.approx(statistics.mean(means))
    assert mean.spread == pytest.approx(statistics.stdev(means))
    fog = row.values[names.index("Fog")]
    errors = [
        100 * sum(hit == "0" for r in f.records() if r.domain == "fog" for hit in r.hits) / 8
        for f in source
    ]
    assert fog.value == pytest.approx(statistics.mean(errors))
    assert row.values[names.index("Gain")].value == 0
    assert row.facts == {
        "Model": "embedded",
        "Weights": "vit_cifar10",
        "Input": "normalised",
        "Images": "120",
        "Seeds": "1, 2",
        "Help": "none",
        "Predicts": "before",
    }
    assert result.command == "typed"


def test_a_table_of_one_round_run_over_several_shows_rounds_and_rf(tmp_path: Path) -> None:
    changes = {"batch_size": 4, "stream": "recurring", "data": {"limit": 4, "rounds": 2}}
    request = Request(methods=("source",), seeds=(1,), changes=changes, out=tmp_path)
    result = build_table("imagenet-c", request, QUIET)
    names = [str(h) for h in result.headings]
    assert names[0] == "R1 Gaussian"
    assert names[15:19] == ["R1 Mean", "R2 Mean", "Mean", "Gain"]
    assert names[-1] == "RF"
    row = result.rows[0].values
    assert row[-1].value == 0  # a frozen model forgets nothing
    assert row[15].value == row[16].value == row[17].value
    ours = next(r for r in result.rows if r.origin == "printed" and r.label == "Ours")
    assert (str(ours.values[0]), str(ours.values[15]), str(ours.values[17])) == ("47.7", "", "40.2")


def test_printed_rows_stand_as_printed_with_their_notes(tmp_path: Path) -> None:
    request = Request(methods=("source",), seeds=(1,), changes=TINY, out=tmp_path)
    result = build_table("imagenet-c", request, QUIET)
    marked = [row for row in result.rows if row.origin == "printed"]
    assert [row.label for row in marked] == [row.method for row in printed("imagenet-c").rows]
    names = [str(h) for h in result.headings]
    pseudo = next(row for row in marked if row.label == "Pseudo-label")
    cell = pseudo.values[names.index("Mean")]
    assert (str(cell), cell.note) == ("61.2", "Its own cells give 66.8.")


def test_a_table_does_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(methods=("source",), seeds=(1,), changes=TINY, out=tmp_path)
    first = build_table("imagenet-c", request, QUIET)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = build_table("imagenet-c", request, QUIET)
    assert first == second
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_rows_that_cannot_run_are_left_out_of_the_usual_list_and_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "METHODS_FULL", ("source", "not_yet"))
    request = Request(seeds=(1,), changes=TINY, out=tmp_path)
    result = build_table("imagenet-c", request, QUIET)
    assert [row.label for row in result.rows if row.origin == "measured"] == ["Source"]
    assert "Left out: not_yet (not registered)." in result.notes
    with pytest.raises(OstinatoError, match="Did you mean 'tent'"):
        build_table("imagenet-c", Request(methods=("tnet",), out=tmp_path), QUIET)


def test_all_means_every_registered_method_once() -> None:
    rows = plan._candidates(TABLES["imagenet-c"], Request(methods=("all",)))
    assert {row.method for row in rows} >= set(METHODS.names())
    assert [r.method for r in rows[-3:]] == ["dual_expert", "ostinato", "ostinato"]
    assert len(rows) == len({(row.method, row.preset) for row in rows})
    assert METHODS_FULL[0] == "source"


def test_ablations_differ_in_what_they_ablate_and_refuse_methods() -> None:
    table = TABLES["ablation-fdd"]
    request = Request()
    settings = [
        spec_of(table, table.parts[0], v, request).settings
        for v in plan_table(table, request).variants
    ]
    assert [s.get("discriminator") for s in settings] == [
        {"kind": "oracle"},
        {"kind": "confidence-jump"},
        {"covariance": "none"},
        {"kind": "random"},
        {"update": "ema"},
        None,
    ]
    labels = [v.label for v in table.variants]
    assert labels == [row.method for row in printed("ablation-fdd").rows]
    with pytest.raises(OstinatoError, match="rows of its own"):
        plan_table(table, Request(methods=("tent",)))


def test_small_crs_streams_have_the_structure_of_the_paper_s() -> None:
    table = TABLES["imagenet-plus"]
    spec = spec_of(table, table.parts[0], Variant("s", "source"), Request())
    stream = open_stream(spec)
    assert stream.domains == _ORDERS["text"]
    assert stream.rounds == 3
    assert [len(s) for s in stream.segments[:4]] == [200, 75, 200, 200]
    other = TABLES["imagenet-plus-plus"]
    spec = spec_of(other, other.parts[0], Variant("s", "source"), Request())
    stream = open_stream(spec)
    thirds = [s for s in stream.segments if s.name == "imagenet-r"]
    seen = [set(s.where.tolist()) for s in thirds]
    assert len(seen) == 3
    assert set.union(*seen) == set(range(300))
    assert sum(map(len, seen)) == 300
    assert stream[0].classes is None
    assert stream[2].domain == "imagenet-a"
    assert stream[2].classes.tolist() == list(small._PART)


def test_stand_ins_look_different_and_two_have_a_part_of_the_classes() -> None:
    parts = {name: small.stand_in(name) for name in _ORDERS["text"]}
    assert [p.num_classes for p in parts.values()] == [10, 5, 5, 10]
    assert all(p.outputs == 10 for p in parts.values())
    images, labels, _ = small.embedded_images("test")
    kept = [i for i, y in enumerate(labels.tolist()) if y in small._PART]
    second = parts["imagenet-a"]
    assert second.classes is not None
    assert [int(second.classes[second.label(n)]) for n in range(50)] == [
        int(labels[i]) for i in kept[:50]
    ]
    sketch = parts["imagenet-sketch"].image(0)
    assert bool((sketch[0] == sketch[1]).all())  # no colour
    assert sketch.float().mean() > images[0].float().mean()


def test_measures_without_a_value_stay_empty(tmp_path: Path) -> None:
    request = Request(methods=("source",), seeds=(1,), changes=TINY, out=tmp_path)
    build_table("imagenet-c", request, QUIET)
    summary = RunFolder.open(next(tmp_path.iterdir())).summary()
    for kind in ("count", "rf", "purity", "delay", "diff", "gain"):
        assert measure(Measure(kind, kind), summary, None) is None
    assert measure(Measure("x", "score", domain="nowhere", round=0), summary, None) is None
    accuracy = measure(Measure("x", "accuracy"), summary, None)
    assert accuracy == pytest.approx(100 - summary.mean)


def test_segmentation_runs_through_the_same_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--set", "data.limit=2", "data.rounds=2"]
    place = ["--out", str(tmp_path / "runs"), "--save", str(tmp_path / "saved")]
    cli.main(["table", "acdc", "--methods", "source", "--seeds", "1", *changes, *place])
    shown = capsys.readouterr().out
    assert "mIoU" in shown
    folder = RunFolder.open(next((tmp_path / "runs").iterdir()))
    short = folder.summary()
    assert short.metric == "miou"
    assert 20 < short.mean <= 100
    assert {c.domain for c in short.cells} == {"fog", "night", "rain", "snow"}
    assert all(r.counted == 6 * 30 * 30 for r in folder.records())
    assert len(list((tmp_path / "saved").iterdir())) == 4


def test_parameters_count_what_is_added_and_trained() -> None:
    request = Request(methods=("source", "tent", "dual_expert:paper"))
    result = build_table("parameters", request, QUIET)
    none, tent, ours = (row.values for row in result.rows[:3])
    assert [v.value for v in none] == [0, 0, 0, 0]
    assert tent[0].value == 0
    # Six FFNs of width 128: a mixture of two experts with its router, shared and seven domains.
    shared, domain = (6 * (2 * 2 * 128 * r + 2 * 128) for r in (32, 16))
    assert ours[2].value == pytest.approx((shared + 7 * domain) / 1e6, rel=0.02)
    assert ours[3].value == pytest.approx((shared + domain) / 1e6, rel=0.02)


@pytest.mark.parametrize("memory", [0.0, 4e-5, 1.0])
def test_kept_streams_give_the_same_batches_whatever_fits(memory: float) -> None:
    table = TABLES["imagenet-plus-plus"]
    spec = spec_of(table, table.parts[0], Variant("s", "source"), Request())
    plain = open_stream(spec)
    kept = keep(open_stream(spec), memory)
    assert len(kept) == len(plain)
    for _ in range(2):
        for index, batch in enumerate(plain):
            other = kept[index]
            assert (other.index, other.round, other.domain) == (index, batch.round, batch.domain)
            assert other.keys == batch.keys
            assert bool((other.images == batch.images).all())
            assert bool((other.labels == batch.labels).all())


def test_a_batch_that_returns_is_made_once() -> None:
    table = TABLES["imagenet-plus"]
    spec = spec_of(table, table.parts[0], Variant("s", "source"), Request())
    kept = keep(open_stream(spec), 1.0)
    first = kept[0]
    again = kept[len(kept) // 3]
    assert again.round == 1
    assert again.images is first.images


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_small_table_runs(name: str, tmp_path: Path) -> None:
    result = build_table(name, Request(seeds=(2025,), out=tmp_path), QUIET)
    assert sum(row.origin == "measured" for row in result.rows) >= 3
