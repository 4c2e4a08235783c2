"""The CamVid table: its settings, its stand-in, and per-class IoU."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ostinato.data.corruptions import DRIVING
from ostinato.data.datasets.camvid import CamVid
from ostinato.errors import DataError
from ostinato.registry import TABLES
from ostinato.running.job import open_stream
from ostinato.running.spec import Spec
from ostinato.scoring.classes import class_names, class_scores
from ostinato.scoring.metrics import class_iou, mean_iou
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise
from ostinato.tables._cells import class_block
from ostinato.tables._render import TableResult, to_json, to_markdown
from ostinato.tables.printed import printed
from ostinato.tables.tables import _METHODS_ACDC

COUNTS = hnp.arrays(np.int64, st.integers(1, 5).map(lambda n: (n, n)), elements=st.integers(0, 9))


@given(COUNTS)
@settings(max_examples=60, deadline=None)
def test_class_iou_is_overlap_over_union_counted_pixel_by_pixel(counts):
    truth, answer = np.repeat(np.argwhere(counts >= 0), counts.ravel(), axis=0).T
    for place, value in enumerate(class_iou(counts)):
        union = np.sum((truth == place) | (answer == place))
        if union:
            both = np.sum((truth == place) & (answer == place))
            assert value == pytest.approx(both / union)
        else:
            assert np.isnan(value)
    known = class_iou(counts)[~np.isnan(class_iou(counts))]
    expected = known.mean() if len(known) else np.nan
    assert float(mean_iou(counts)) == pytest.approx(expected, nan_ok=True)


def test_the_table_repeats_four_weathers_with_the_usual_rows_but_one():
    table = TABLES["camvid"]
    assert set(_METHODS_ACDC) - set(table.methods) == {"adma"}
    assert not printed("camvid").rows
    shown = [(c.domain, c.round) for c in table.columns if c.kind == "score"]
    assert shown == [(name, number) for number in range(3) for name in DRIVING]
    assert table.parts[0].full["clean"] == "camvid:train"
    for part in (table.parts[0].full, table.parts[0].small):
        assert part["batch_size"] == 1
        assert part["data"]["severity"] == (2 if part is table.parts[0].full else 3)
        assert part["data"]["rounds"] == 3


def test_the_stand_in_shows_the_same_pictures_in_every_weather_and_round():
    spec = Spec.parse({**TABLES["camvid"].parts[0].small, "method": "source"})
    stream = open_stream(spec.replace(data={**spec.data, "limit": 2}))
    assert stream.domains == DRIVING
    assert stream.rounds == 3
    keys = [stream[index].keys for index in range(len(stream))]
    assert keys == keys[:2] * 12
    assert (stream[0].images != stream[2].images).any()
    assert (stream[0].images == stream[8].images).all()
    assert json.loads(stream.artifacts()["classes.json"]) == list(stream.class_names)


def test_class_scores_sum_all_domains_of_a_round(tmp_path):
    row = {"run": "a", "images": 1, "counted": 4, "classes": 2}
    records = [
        Record(index=0, domain="fog", correct=3, confusion=((2, 1, 0, 1),), **row),
        Record(index=1, domain="rain", correct=4, confusion=((4, 0, 0, 0),), **row),
        Record(index=2, domain="fog", round=1, correct=4, confusion=((4, 0, 0, 0),), **row),
    ]
    found = class_scores(records)
    assert found == pytest.approx({(0, 0): 100 * 6 / 7, (0, 1): 50.0, (1, 0): 100.0})
    assert class_names(tmp_path, 2) == ("class 0", "class 1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "classes.json").write_text(json.dumps(CamVid.class_names))
    assert class_names(tmp_path, 11) == CamVid.class_names
    with pytest.raises(DataError, match="names 11 classes, the run has 2"):
        class_names(tmp_path, 2)
    (tmp_path / "data" / "classes.json").write_text("5")
    with pytest.raises(DataError, match="no list of names"):
        class_names(tmp_path, 2)


def test_a_summary_and_a_table_name_each_class():
    row = {"run": "a", "images": 1, "classes": 3, "index": 0}

    def record(counts: tuple[int, ...]) -> Record:
        right = counts[0] + counts[4] + counts[8]
        return Record(domain="fog", confusion=(counts,), correct=right, counted=sum(counts), **row)

    runs = [
        summarise([record(counts)], names=("sky", "road", "car"))
        for counts in ((2, 1, 0, 0, 1, 0, 0, 0, 0), (3, 0, 0, 0, 1, 0, 0, 0, 0))
    ]
    assert [c.name for c in runs[0].classes] == ["sky", "road", "car"]
    assert [c.value for c in runs[0].classes] == [pytest.approx(200 / 3), 50.0, None]
    block = class_block({"Source": runs})
    sky, road, car = block.rows[0].values
    assert (sky.value, road.value, car.value) == (pytest.approx(250 / 3), 75.0, None)
    assert sky.spread == pytest.approx(100 / 3 / 2**0.5)
    result = TableResult(name="camvid", title="T", scale="small", command="c",
                         headings=(), rows=(), per_class=block)  # fmt: skip
    assert "| Method | sky | road | car |" in to_markdown(result)
    assert "| Source | 83.3 ± 23.6 | 75.0 ± 35.4 |  |" in to_markdown(result)
    assert TableResult.parse(json.loads(to_json(result))) == result
    unnamed = summarise([record((2, 0, 0, 0) * 2 + (1,))])
    assert [c.name for c in unnamed.classes] == ["class 0", "class 1", "class 2"]
    images = {**row, "classes": 0, "hits": "1", "correct": 1, "counted": 1}
    assert class_block({"Source": [summarise([Record(domain="fog", **images)])]}) is None


def test_whole_images_have_no_iou():
    record = Record(run="a", index=0, domain="fog", images=1, correct=1, counted=1, hits="1")
    with pytest.raises(DataError, match="no IoU"):
        class_scores([record])
