from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    adjusted_mutual_info_score,
    normalized_mutual_info_score,
)
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from ostinato.errors import DataError
from ostinato.scoring._routing import (
    Change,
    adjusted_mutual_information,
    changes,
    contingency,
    exclusiveness,
    expected_information,
    normalized_mutual_information,
    purity,
    routing,
)
from ostinato.scoring.record import Record
from ostinato.scoring.summary import domains_over_time

labels = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 4), min_size=n, max_size=n),
        st.lists(st.integers(0, 6), min_size=n, max_size=n),
    )
)


@settings(max_examples=150, deadline=None)
@given(labels)
def test_information_agrees_with_scikit_learn(pair: tuple[list[int], list[int]]) -> None:
    true, found = pair
    assert normalized_mutual_information(true, found) == pytest.approx(
        normalized_mutual_info_score(true, found), abs=1e-7
    )
    table = contingency_matrix(true, found, sparse=True)
    expected = expected_mutual_information(table, len(true))
    own = contingency(true, found)
    assert expected_information(own.sum(1), own.sum(0)) == pytest.approx(expected, abs=1e-9)
    assert adjusted_mutual_information(true, found) == pytest.approx(
        adjusted_mutual_info_score(true, found), abs=1e-6
    )


def test_adjusted_information_on_a_stream_of_real_size() -> None:
    generator = np.random.default_rng(3)
    true = np.repeat(np.arange(15), 100).tolist() * 3
    found = [t // 2 if generator.random() < 0.9 else int(generator.integers(9)) for t in true]
    value = adjusted_mutual_information(true, found)
    assert value == pytest.approx(adjusted_mutual_info_score(true, found), abs=1e-9)
    shuffled = generator.permutation(found).tolist()
    assert abs(adjusted_mutual_information(true, shuffled)) < 0.02


def test_purity_follows_the_true_domain() -> None:
    true = ["a"] * 4 + ["b"] * 2
    assert purity(true, [0, 0, 0, 1, 1, 1]) == pytest.approx((3 / 4 + 1) / 2)
    assert exclusiveness(true, [0, 0, 0, 1, 1, 1]) == pytest.approx((1 + 2 / 3) / 2)
    assert purity(true, [0] * 6) == 1.0  # one domain for all is pure and not exclusive
    assert exclusiveness(true, [0] * 6) == pytest.approx(4 / 6)


def test_delay_counts_batches_until_the_main_domain() -> None:
    true = list("aaabbbbbccc")
    found = [0, 0, 0, 0, 2, 1, 1, 1, 1, 1, 1]
    assert changes(true, found) == [Change(3, "b", 2, True), Change(8, "c", 0, False)]
    assert changes(["a", "a"], [0, 1]) == []
    assert changes([], []) == []


def test_a_tie_goes_to_the_earlier_domain() -> None:
    assert changes(list("abb"), [0, 5, 4]) == [Change(1, "b", 0, True)]


def test_lists_of_different_length_are_refused() -> None:
    for function in (contingency, changes):
        with pytest.raises(DataError, match="cannot be matched"):
            function(["a"], [0, 1])


def routed(domains: str, found: list[int], **more: object) -> list[Record]:
    return [
        Record(
            run="r", index=i, domain=d, images=1, correct=1, counted=1, hits="1",
            decision={"domain": f, "is_new": False, "distance": 0.1, "threshold": 0.2, **more},
        )
        for i, (d, f) in enumerate(zip(domains, found, strict=True))
    ]  # fmt: skip


def test_routing_of_a_run() -> None:
    result = routing(routed("aaabbb", [0, 0, 0, 0, 1, 1]))
    assert result is not None
    assert (result.unit, result.found, result.true) == ("batch", 2, 2)
    assert (result.delay, result.noticed) == (1.0, 1.0)
    assert result.purity == pytest.approx((1 + 2 / 3) / 2)


def test_an_unnoticed_change_does_not_shorten_the_delay() -> None:
    result = routing(routed("aabbbaa", [0, 0, 0, 1, 1, 1, 1]))
    assert result is not None
    assert (result.delay, result.noticed) == (1.0, 0.5)


def test_mixed_batches_are_judged_per_image() -> None:
    record = Record(
        run="r", index=0, domain="mixed", images=3, correct=3, counted=3, hits="111",
        image_domains=("a", "b", "b"),
        decision={
            "domain": 4, "is_new": False, "distance": 0.0, "threshold": 1.0,
            "per_sample": (4, 7, 7),
        },
    )  # fmt: skip
    result = routing([record])
    assert result is not None
    assert (result.unit, result.ami, result.delay) == ("image", pytest.approx(1.0), None)
    assert domains_over_time([record]) == [2]


def test_a_method_without_domains_has_no_routing() -> None:
    record = Record(run="r", index=0, domain="a", images=1, correct=1, counted=1)
    assert routing([record]) is None
    assert domains_over_time([record]) == [0]


def test_unsettled_choices_do_not_count_as_domains() -> None:
    assert domains_over_time(routed("aab", [3, 4, 5], settled=False)) == [0, 0, 0]
