"""Two kinds in one domain, seen in directions of their own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.domains import _twofold as twofold
from ostinato.domains._splitting import split_off
from ostinato.domains.router import Router
from ostinato.ops.whitening import Content

WIDTH = 40


def kinds(seed: int, count: int, off: float, wide: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of two kinds in any order, along a line that is not the one in which both vary most."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, WIDTH, generator=draw)
    rows[:, 0] *= wide
    side = torch.rand(count, generator=draw) < 0.5
    rows[:, 1] += off * side
    return rows, side


def agreement(found: torch.Tensor, side: torch.Tensor) -> float:
    same = float((found == side).float().mean())
    return max(same, 1 - same)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_halves_are_found_across_the_direction_that_varies_most(seed):
    rows, side = kinds(seed, count=160, off=7.0, wide=9.0)
    even = twofold.evened(rows, twofold.MEASURED)
    found = twofold.halves(even[:, : twofold.SEARCHED], least=20)
    assert agreement(found, side) > 0.95
    assert twofold.gap(even, found) > 4.5


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_halves_of_one_kind_do_not_lie_apart(seed):
    rows, _ = kinds(seed, count=160, off=0.0, wide=9.0)
    even = twofold.evened(rows, twofold.MEASURED)
    found = twofold.halves(even[:, : twofold.SEARCHED], least=20)
    assert found is None or twofold.gap(even, found) < 3.8


@given(st.integers(0, 10_000), st.floats(0.1, 10.0))
@settings(max_examples=20, deadline=None)
def test_a_gap_does_not_depend_on_scale(seed, factor):
    rows, side = kinds(seed, count=120, off=5.0, wide=3.0)
    one, other = (twofold.gap(twofold.evened(r, 8).double(), side) for r in (rows, factor * rows))
    assert one == pytest.approx(other, rel=0.02)


def test_a_gap_is_fisher_s_distance_where_there_are_many_images():
    rows, side = kinds(3, count=20_000, off=4.0, wide=1.0)
    assert twofold.gap(rows[:, :6], side) == pytest.approx(4.0, rel=0.05)


def test_what_holds_for_a_while_only_is_no_gap():
    """Two looks of a drive differ along one line at first and along another one later."""
    draw = torch.Generator().manual_seed(0)
    rows, side = torch.randn(160, WIDTH, generator=draw), torch.arange(160) % 2 == 0
    rows[:80, 1] += 9.0 * side[:80]
    rows[80:, 2] += 9.0 * side[80:]
    lasting = rows.clone()
    lasting[80:, 1] += 9.0 * side[80:]
    gaps = [twofold.gap(twofold.evened(one, 8), side) for one in (rows, lasting)]
    assert gaps[0] < 3 < gaps[1]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_images_that_are_all_the_same_are_one_kind(value):
    rows = torch.full((100, WIDTH), value)
    even = twofold.evened(rows, twofold.MEASURED)
    found = twofold.halves(even[:, : twofold.SEARCHED], least=20)
    assert found is None or not twofold.gap(even, found) >= 4.75


def test_a_domain_of_mixed_traffic_is_split_across_its_widest_direction():
    rows, side = kinds(5, count=200, off=6.5, wide=8.0)
    found = split_off(rows, rows.mean(0), 20, 5.5, alone=0.1)
    assert found is not None
    mask = torch.zeros(200, dtype=torch.bool)
    mask[found] = True
    assert agreement(mask, side) > 0.9


def test_two_domains_that_differ_across_their_widest_direction_stay_two():
    draw = torch.Generator().manual_seed(1)
    clean = torch.randn(300, WIDTH, generator=draw)
    router = Router(Content.of(clean), enough=20)
    rows, side = kinds(7, count=900, off=20.0, wide=30.0)
    rows[:, 2] += 40.0
    owners: list[int] = []
    for at in range(0, len(rows), 30):
        owners += router.observe(rows[at : at + 30]).owners
    late = torch.tensor(owners[450:])
    of = [late[half].mode().values.item() for half in (side[450:], ~side[450:])]
    assert of[0] != of[1]
