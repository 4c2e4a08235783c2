from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DataError
from ostinato.scoring.forgetting import (
    Score,
    cells,
    gain,
    repeat_forget,
    round_means,
    total_mean,
)
from ostinato.scoring.record import Record
from ostinato.scoring.summary import Summary, summarise


def batch(index: int, domain: str, hits: str, number: int = 0, **more: object) -> Record:
    values = {"confidence": (0.5,) * len(hits), **more}
    return Record(
        run="r",
        index=index,
        round=number,
        domain=domain,
        images=len(hits),
        correct=hits.count("1"),
        counted=len(hits),
        hits=hits,
        **values,  # type: ignore[arg-type]
    )


STREAM = [
    batch(0, "fog", "1100"),
    batch(1, "fog", "10"),
    batch(2, "snow", "0000000000"),
    batch(3, "fog", "111111", 1),
    batch(4, "snow", "1111100000", 1),
]


def test_cells_and_means_by_hand() -> None:
    table = cells(STREAM)
    assert table[0, "fog"] == Score(50.0, 6)
    assert table[0, "snow"] == Score(100.0, 10)
    assert list(table) == [(0, "fog"), (0, "snow"), (1, "fog"), (1, "snow")]
    means = round_means(table)
    assert means[0] == pytest.approx((100 * 13 / 16, 75.0))
    assert means[1] == pytest.approx((100 * 5 / 16, 25.0))
    assert total_mean(table) == pytest.approx((100 * 18 / 32, 50.0))
    assert repeat_forget(table) == pytest.approx((-50.0, -50.0))


def test_accuracy_mirrors_error() -> None:
    error, accuracy = cells(STREAM), cells(STREAM, "accuracy")
    assert all(error[k].value + accuracy[k].value == pytest.approx(100) for k in error)
    assert repeat_forget(accuracy, "accuracy") == pytest.approx(repeat_forget(error))
    assert gain(60.0, 50.0, "accuracy") == gain(40.0, 50.0) == 10.0


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 999)), min_size=1, max_size=9))
def test_the_weighted_mean_is_the_pooled_one(values: list[tuple[float, int]]) -> None:
    table = {(0, str(i)): Score(v, n) for i, (v, n) in enumerate(values)}
    expected = np.average([v for v, _ in values], weights=[n for _, n in values])
    assert total_mean(table).by_images == pytest.approx(expected)
    assert repeat_forget(table) is None


def test_forgetting_compares_domains_that_came_back() -> None:
    table = {
        (0, "fog"): Score(40.0, 5),
        (0, "snow"): Score(90.0, 5),
        (1, "fog"): Score(50.0, 5),
    }
    assert repeat_forget(table) == pytest.approx((10.0, 10.0))
    assert repeat_forget({(0, "a"): Score(1.0, 1), (1, "b"): Score(2.0, 1)}) is None


def test_mixed_batches_count_per_image() -> None:
    record = batch(0, "mixed", "1010", image_domains=("fog", "fog", "snow", "snow"))
    assert cells([record]) == {(0, "fog"): Score(50.0, 2), (0, "snow"): Score(50.0, 2)}


def seg(index: int, confusion: list[list[int]], domain: str = "night") -> Record:
    flat = tuple(int(v) for v in np.ravel(confusion))
    return Record(
        run="r", index=index, domain=domain, images=1, classes=2, confusion=(flat,),
        correct=int(np.trace(confusion)), counted=sum(flat),
    )  # fmt: skip


def test_mean_iou_sums_before_it_divides() -> None:
    table = cells([seg(0, [[1, 0], [0, 0]]), seg(1, [[0, 1], [0, 2]])], "miou")
    assert table[0, "night"] == Score(pytest.approx(100 * (1 / 2 + 2 / 3) / 2), 2)
    assert cells([seg(0, [[0, 0], [0, 0]], "dark")], "miou") == {}


def test_the_wrong_metric_says_which_is_right() -> None:
    with pytest.raises(DataError, match="metric='miou'"):
        cells([seg(0, [[1, 0], [0, 0]])])
    with pytest.raises(DataError, match="metric='error'"):
        cells(STREAM, "miou")
    with pytest.raises(DataError, match="Did you mean 'error'"):
        cells(STREAM, "eror")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no finished batch"):
        total_mean({})
    with pytest.raises(DataError, match="which of its images were right"):
        cells([STREAM[0].replace(hits="")])


def test_a_summary_says_what_the_functions_say() -> None:
    summary = summarise(STREAM)
    table = cells(STREAM)
    assert summary.mean == total_mean(table).by_images
    assert summary.rf == pytest.approx(-50.0)
    assert [c.value for c in summary.cells] == [s.value for s in table.values()]
    assert summary.images == 32
    assert summary.calibration_error == pytest.approx(100 * abs(14 / 32 - 0.5))
    assert summary.routing is None
    assert summary.domains_found is None
    assert Summary.parse(summary.model_dump(mode="json")) == summary
    with pytest.raises(DataError, match="no record"):
        summarise([])


def test_a_summary_of_pixels_uses_their_metric() -> None:
    summary = summarise([seg(0, [[1, 1], [0, 2]])])
    assert summary.metric == "miou"
    assert summary.mean == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)
