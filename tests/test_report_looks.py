"""How pages look: contrast, colours and dashes, names inside the figure, hints at the pointer."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from ostinato import adapt
from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import STATISTICS, asset_path, embedded_images, embedded_model
from ostinato.report._distances import distance_to_source, usual_names
from ostinato.report._reliability import cost_against_accuracy, reliability_diagram
from ostinato.report._runs import read_variants
from ostinato.report._trust import mean_trust, source_share, trust_over_time
from ostinato.report.figure import Figure, Missing
from ostinato.report.page import page_style
from ostinato.report.style import PALETTE, End, canvas, label_ends, tip, to_svg

make_run = runpy.run_path(str(Path(__file__).with_name("_report_runs.py")))["make_run"]


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_of_text_can_be_read(theme: str) -> None:
    style = page_style()
    start = style.index("prefers-color-scheme: dark") if theme == "dark" else 0
    part = style[start : style.index("@media", start + 1)]
    values = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", part))
    names = ["ink", "link", "grey", *(f"c{n}" for n in range(len(PALETTE)))]
    low = {n: contrast(values[n], values["paper"]) for n in names}
    assert {n: round(v, 2) for n, v in low.items() if v < 4.5} == {}


def test_thirty_runs_have_thirty_looks(tmp_path: Path) -> None:
    for number in range(30):
        make_run(tmp_path, f"method-{number:02d}", rounds=1, batches=1)
    variants = read_variants([tmp_path])
    assert len({(v.colour, str(v.dash)) for v in variants}) == 30
    assert {v.marker for v in variants} == {"o", "s"}


def test_names_at_the_top_stay_in_the_figure() -> None:
    ends = [End(99.0 + n / 100, f"method {n}", "#000000") for n in range(9)]
    with canvas(600, 400) as figure:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 100])
        axes.set_ylim(0, 100)
        label_ends(axes, ends)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes.texts]
        svg = to_svg(figure, "x", "x")
    assert max(box.y1 for box in boxes) <= figure.bbox.height + 1
    assert all(f"method {n}" in svg for n in range(9))


def test_a_hint_becomes_a_title() -> None:
    with canvas(200, 200) as figure:
        axes = figure.subplots()
        tip(axes.scatter([1], [1]), 'a "b" & <c>')
        svg = to_svg(figure, "x", "x")
    assert '<g class="tip"' in svg
    assert '<title>a "b" &amp; &lt;c&gt;</title>' in svg


def test_points_of_cost_say_what_they_are(tmp_path: Path) -> None:
    (figure,) = cost_against_accuracy(read_variants([make_run(tmp_path, "source")]))
    assert isinstance(figure, Figure)
    assert re.search(r"<title>Source: [\d.]+ % accuracy, [\d.]+ ms an image</title>", figure.svg)


def test_one_dot_is_no_reliability_diagram(tmp_path: Path) -> None:
    path = make_run(tmp_path, "source", rounds=1, batches=1)
    run = read_variants([path])[0]
    records = tuple(r.replace(confidence=(0.93,) * r.images) for r in run.first.records)
    object.__setattr__(run.first, "records", records)
    (part,) = reliability_diagram([run])
    assert isinstance(part, Missing)
    assert "too few bins" in part.note


def test_trust_is_that_of_the_records(tmp_path: Path) -> None:
    variants = read_variants([make_run(tmp_path, "ostinato", preset="robust", decide=True)])
    (figure,) = trust_over_time(variants)
    assert isinstance(figure, Figure)
    records = variants[0].first.records
    assert len(figure.data.rows) == len(records)
    for row, record in zip(figure.data.rows, records, strict=True):
        assert row[4:] == (round(mean_trust(record), 4), round(source_share(record), 4))
        assert source_share(record) == pytest.approx(0.1)


def test_distances_are_those_of_the_run(tmp_path: Path) -> None:
    variants = read_variants([make_run(tmp_path, "ostinato", preset="robust", decide=True)])
    (figure,) = distance_to_source(variants)
    assert isinstance(figure, Figure)
    kept = variants[0].first.diagnostics["blocks"]
    for domain, _, _, block, before, after in figure.data.rows:
        assert kept[str(domain)]["before"][block - 1] == before
        assert after == pytest.approx(before / 2, abs=1e-4)
    assert usual_names(variants[0].first) == {0: "fog", 1: "snow"}


def test_the_method_says_how_near_its_maps_bring_a_domain() -> None:
    """Impulse noise on real images: after its maps a domain lies nearer to the source."""
    images = embedded_images("test")[0][:60]
    adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS), preset="forward-only")
    for part in corrupt(images, "impulse_noise", 5, range(60), constants="cifar").split(20):
        adapted(part)
    before = adapted.export_state()
    found = adapted.diagnose()["blocks"]
    after = adapted.export_state()
    assert all(torch.equal(before.tensors[k], after.tensors[k]) for k in before.tensors)
    trusted = [one for one in found.values() if one["trust"] > 0]
    assert trusted
    for one in trusted:
        assert len(one["before"]) == 6
        assert sum(one["after"]) < sum(one["before"])
