"""Every figure against its runs: what goes in is what the data say and what is drawn."""

from __future__ import annotations

import re
import runpy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from ostinato.report._ablation import descriptor_ablation
from ostinato.report._by_round import error_by_round
from ostinato.report._domains import chosen, discriminator_timeline, pool_growth, stretches
from ostinato.report._over_time import error_over_time, running, so_far
from ostinato.report._per_domain import error_per_domain
from ostinato.report._reliability import cost_against_accuracy, reliability_diagram
from ostinato.report._runs import Variant, read_variants
from ostinato.report._spectra import Projection, descriptor_map, descriptors, ellipse
from ostinato.report.figure import Figure, Missing, Part
from ostinato.report.style import _spread, theme
from ostinato.report.timeline import visits
from ostinato.scoring.metrics import calibration_error, reliability
from ostinato.scoring.record import Record
from ostinato.scoring.summary import domains_over_time

make_run = runpy.run_path(str(Path(__file__).with_name("_report_runs.py")))["make_run"]
FDD = {"discriminator": {"descriptor": "low"}}


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[Variant]:
    root = tmp_path_factory.mktemp("runs")
    return read_variants(
        [
            make_run(root, "source", error=0.6),
            make_run(root, "tent", error=0.5),
            make_run(root, "dual_expert", preset="robust", settings=FDD, error=0.3, decide=True),
            make_run(
                root, "dual_expert", preset="robust", settings=FDD, error=0.3, decide=True, seed=2
            ),
        ]
    )


def only(parts: Sequence[Part]) -> Figure:
    (part,) = parts
    assert isinstance(part, Figure)
    return part


def column(figure: Figure, name: str, **where: object) -> list[object]:
    keys = {figure.data.columns.index(key.replace("_", " ")): v for key, v in where.items()}
    at = figure.data.columns.index(name)
    return [row[at] for row in figure.data.rows if all(row[k] == v for k, v in keys.items())]


def test_seeds_form_one_variant_and_names_are_those_of_the_tables(
    variants: list[Variant],
) -> None:
    assert [v.label for v in variants] == ["Source", "TENT (continual)", "Ostinato robust"]
    assert [len(v.runs) for v in variants] == [1, 1, 2]
    assert len({v.colour for v in variants}) == 3


def test_namesakes_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    paths = [
        make_run(tmp_path, "dual_expert", preset="robust", settings={"discriminator": {"kind": k}})
        for k in ("fdd", "oracle")
    ]
    labels = [v.label for v in read_variants(paths)]
    assert labels == ["Ostinato robust, kind fdd", "Ostinato robust, kind oracle"]


def test_error_over_time_holds_every_batch(variants: list[Variant]) -> None:
    figure = only(error_over_time(variants))
    for variant in variants:
        for run in variant.runs:
            wrong = [10.0 * r.hits.count("0") for r in run.records]
            assert column(figure, "error", run=variant.label, seed=run.seed) == wrong
    assert f"TENT (continual) (mean {variants[1].score:.1f} %)" in figure.alt


def test_the_drawn_line_is_the_data(variants: list[Variant]) -> None:
    figure = only(error_over_time(variants))
    tent = variants[1]
    shown = column(figure, "running error", run=tent.label)
    paths = re.findall(
        r'<path d="([^"]*)"[^>]*stroke: ' + re.escape(theme(tent.colour)), figure.svg
    )
    heights = [float(y) for _, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", paths[0])]
    assert len(heights) == len(shown)
    assert np.corrcoef(heights, np.array(shown, dtype=float))[0, 1] < -0.9999


def test_the_running_mean_stays_within_a_visit() -> None:
    rates = [0, 0, 0, 10, 10, 10, 4, 4]
    shape = tuple((0, name) for name in "aaabbbcc")
    records = [
        Record(
            run="x",
            index=i,
            domain=d,
            images=10,
            counted=10,
            correct=10 - w,
            hits="0" * w + "1" * (10 - w),
        )
        for i, ((_, d), w) in enumerate(zip(shape, rates, strict=True))
    ]
    assert running(records, visits(shape), "error") == [10.0 * w for w in rates]
    assert so_far(records, "error")[-1] == pytest.approx(10 * np.mean(rates))


def test_error_per_domain_agrees_with_the_summary(variants: list[Variant]) -> None:
    figure = only(error_per_domain(variants))
    ours = variants[2]
    for place, cell in enumerate(ours.first.summary.cells):
        mean = np.mean([run.summary.cells[place].value for run in ours.runs])
        found = column(figure, "error", run=ours.label, round=cell.round + 1, domain=cell.domain)
        assert found == [pytest.approx(mean, abs=1e-3)]
        assert f">{mean:.1f}</text>" in figure.svg
    assert "the source model" in figure.caption


def test_error_by_round_takes_runs_of_any_length_and_says_who_remembers(tmp_path: Path) -> None:
    for method, error, batches in (("source", 0.5, 3), ("tent", 0.99, 2), ("neo", 0.2, 4)):
        make_run(tmp_path, method, error=error, batches=batches)
    variants = read_variants([tmp_path])
    figure = only(error_by_round(variants))
    for variant in variants:
        wanted = [one.by_images for one in variant.first.summary.rounds]
        assert column(figure, "error", run=variant.label) == pytest.approx(wanted, abs=1e-3)
    tent = next(v for v in variants if v.first.spec["method"] == "tent")
    assert set(column(figure, "verdict", run=tent.label)) == {"collapses"}
    assert not error_by_round(read_variants([make_run(tmp_path / "short", rounds=2)]))


def test_without_a_source_run_rounds_are_compared_with_the_first(tmp_path: Path) -> None:
    figure = only(error_per_domain(read_variants([make_run(tmp_path, "tent")])))
    assert "when it first came" in figure.caption


def test_the_timeline_shows_every_decision(variants: list[Variant]) -> None:
    figure = only(discriminator_timeline(variants))
    decisions = [r.decision for r in variants[2].first.records]
    assert column(figure, "found domain") == [d.domain for d in decisions if d]
    assert column(figure, "distance") == [d.distance for d in decisions if d]
    assert column(figure, "new") == [int(d.is_new) for d in decisions if d]
    assert "threshold 0.16" in figure.svg


@given(st.lists(st.lists(st.integers(0, 3), min_size=10, max_size=10), min_size=1, max_size=12))
def test_stretches_cover_what_was_chosen(batches: list[list[int]]) -> None:
    records = [
        Record(
            run="x", index=i, domain="fog", images=10, counted=10, correct=0,
            decision={"domain": many[0], "is_new": False, "distance": 0, "threshold": 1,
                      "per_sample": many},
        )
        for i, many in enumerate(batches)
    ]  # fmt: skip
    area = sum(length * share for _, _, length, share in stretches(records))
    assert area == pytest.approx(len(batches))
    for name, start, length, share in stretches(records):
        assert all(dict(chosen(r))[name] == share for r in records[start : start + length])


def test_the_pool_grows_as_recorded(variants: list[Variant]) -> None:
    figure = only(pool_growth(variants))
    for run in variants[2].runs:
        assert column(figure, "domains found", seed=run.seed) == domains_over_time(run.records)


def test_without_decisions_their_figures_are_left_out(variants: list[Variant]) -> None:
    for draw in (discriminator_timeline, pool_growth, descriptor_map, descriptor_ablation):
        (part,) = draw(variants[:1])
        assert isinstance(part, Missing)
        assert part.note.endswith(".")


def test_the_plane_is_that_of_principal_components(variants: list[Variant]) -> None:
    figure = only(descriptor_map(variants))
    points = descriptors(variants[2].first)
    reference = PCA(2).fit(points)
    expected = np.abs(reference.transform(points))
    shown = np.array([[row[-2], row[-1]] for row in figure.data.rows], dtype=float)
    np.testing.assert_allclose(np.abs(shown), expected, atol=1e-3)
    np.testing.assert_allclose(
        Projection.fit(points).explained, reference.explained_variance_ratio_
    )
    truth = [r.domain for r in variants[2].first.records]
    assert column(figure, "true domain") == truth


def test_ellipses_are_weighted_covariances() -> None:
    draw = np.random.default_rng(0)
    points, weights = draw.normal(size=(40, 2)) @ [[2, 1], [0, 1]], draw.integers(1, 9, 40)
    found = ellipse(points, weights.astype(float), sigmas=3)
    np.testing.assert_allclose(found.centre, np.average(points, axis=0, weights=weights))
    sizes, axes = np.linalg.eigh(np.cov(points.T, ddof=0, fweights=weights))
    np.testing.assert_allclose(np.array(found.radii) ** 2, 9 * sizes[::-1])
    direction = np.array([np.cos(np.radians(found.angle)), np.sin(np.radians(found.angle))])
    assert abs(direction @ axes[:, 1]) == pytest.approx(1)


def test_descriptors_are_compared_where_nothing_else_differs(tmp_path: Path) -> None:
    paths = [
        make_run(tmp_path, "dual_expert", preset=preset, decide=True, error=error,
                 settings={"discriminator": {"descriptor": name}})
        for name, error, preset in (("low", 0.2, "robust"), ("high", 0.5, "robust"),
                                    ("full", 0.1, "paper"))
    ]  # fmt: skip
    variants = read_variants(paths)
    figure = only(descriptor_ablation(variants))
    assert column(figure, "descriptor") == ["high", "low"]
    assert column(figure, "accuracy", descriptor="low") == [
        pytest.approx(100 - variants[0].score, abs=1e-3)
    ]


def test_reliability_shows_the_bins(variants: list[Variant]) -> None:
    figure = only(reliability_diagram(variants))
    for variant in variants:
        bins = reliability([r for run in variant.runs for r in run.records])
        assert column(figure, "answers", run=variant.label) == [b.answers for b in bins]
        assert f"ECE {100 * (calibration_error(bins) or 0):.1f} %" in figure.svg


def test_cost_is_time_an_image_against_accuracy(variants: list[Variant]) -> None:
    figure = only(cost_against_accuracy(variants))
    assert column(figure, "ms per image") == [pytest.approx(5.0)] * 3
    assert column(figure, "accuracy") == [pytest.approx(100 - v.score, abs=1e-3) for v in variants]
    assert column(figure, "trained parameters") == [0, 0, 100]


def test_segmentation_is_measured_in_miou(tmp_path: Path) -> None:
    variants = read_variants([make_run(tmp_path, "source", pixels=True)])
    figure = only(error_per_domain(variants))
    cells = variants[0].first.summary.cells
    assert column(figure, "mIoU") == [pytest.approx(c.value, abs=1e-3) for c in cells]
    assert "mIoU" in only(error_over_time(variants)).title
    assert isinstance(reliability_diagram(variants)[0], Missing)


def test_runs_on_other_streams_get_figures_of_their_own(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, "source"), make_run(tmp_path, "source", domains=("a", "b", "c"))]
    names = [part.name for part in error_over_time(read_variants(paths))]
    assert names == ["error-over-time-1", "error-over-time-2"]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.floats(0.01, 20))
def test_labels_keep_their_order_and_distance(wanted: list[float], gap: float) -> None:
    places = _spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    steps = np.diff([places[i] for i in order])
    assert (steps >= gap * (1 - 1e-6) - 1e-9).all()
    assert np.mean(places) == pytest.approx(np.mean(wanted), abs=1e-6)
