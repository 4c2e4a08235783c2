"""Deciding for many streams at once: what each of them would decide alone."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.domains.table import _START, Table
from ostinato.domains.verdict import View

WIDTH = 7


def view(domains: int, seed: int, first: float = 50.0) -> View:
    """A view with so many domains beside the source; some of them seldom seen, some very wide."""
    chance = torch.Generator().manual_seed(seed)

    def drawn(*size: int) -> torch.Tensor:
        return torch.rand(*size, generator=chance, dtype=torch.double)

    count = domains + 1
    means = 6 * drawn(count, WIDTH)
    means[0] = 0
    mix = drawn(count) ** 4
    counts = 1 + 300 * drawn(count)
    counts[0] = first
    ids = (0, *(2 * number + 3 for number in range(domains)))
    return View(ids, means, 0.3 + 3 * drawn(count), counts, mix / mix.sum())


def images(count: int, seed: int) -> torch.Tensor:
    """Near domains, between them, and far from all."""
    chance = torch.Generator().manual_seed(1000 + seed)
    near = 8 * torch.rand(count, WIDTH, generator=chance, dtype=torch.double) - 1
    near[::5] *= 20
    return near


def check(table: Table, views: list[View], sizes: list[int], seed: int = 0) -> None:
    slots = table.slots(views)
    placed = images(sum(sizes), seed)
    found = table.decide(placed, [slot.number for slot in slots], sizes)
    parts = placed.split(sizes)
    verdicts = [one.decide(part) for one, part in zip(views, parts, strict=True)]
    owners = [owner for verdict in verdicts for owner in verdict.owners()]
    ids = [one.ids for one, size in zip(views, sizes, strict=True) for _ in range(size)]
    assert [own[best] for own, best in zip(ids, found.best, strict=True)] == owners
    assert found.far.tolist() == torch.cat([one.far for one in verdicts]).tolist()
    expected = torch.cat([one.distance for one in verdicts]).numpy()
    np.testing.assert_allclose(found.distance, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(0, 1000),
)
def test_all_streams_at_once_are_decided_of_as_each_alone(
    streams: list[tuple[int, int]], seed: int
) -> None:
    views = [view(domains, seed + at) for at, (domains, _) in enumerate(streams)]
    check(Table("cpu"), views, [size for _, size in streams], seed)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 4, 9], [1]])
def test_requests_of_one_size_and_of_several(sizes: list[int]) -> None:
    check(Table("cpu"), [view(at, at) for at in range(len(sizes))], sizes)


def test_a_source_without_images_is_decided_of_alike() -> None:
    check(Table("cpu"), [view(2, 0, first=0.5), view(0, 1, first=0.5)], [3, 3])


def test_views_stay_as_they_are_while_the_table_grows() -> None:
    table = Table("cpu")
    views = [view(3, at) for at in range(3)]
    slots = table.slots(views)
    placed, sizes = images(9, 0), [3, 3, 3]
    numbers = [slot.number for slot in slots]
    before = table.decide(placed, numbers, sizes)
    more = table.slots([view(40, at) for at in range(30)])
    assert (table.size, table.room) == (64, 64)
    after = table.decide(placed, numbers, sizes)
    assert before.best.tolist() == after.best.tolist()
    np.testing.assert_allclose(before.distance, after.distance, rtol=1e-9)
    assert len({slot.number for slot in [*slots, *more]}) == 33


def test_slots_that_nobody_holds_are_given_to_others() -> None:
    table = Table("cpu")
    for turn in range(5):
        slots = table.slots([view(2, at + turn) for at in range(_START)])
        del slots
        gc.collect()
    assert table.size == _START
