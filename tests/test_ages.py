"""How old what a kill took had become, counted where the test chooses all times."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ages: Any = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "_ages.py"))


def claimed(at: float, epoch: int, shard: int) -> Any:
    return (at, "claimed", {"epoch": epoch, "shard": shard})


def learned(at: float, number: int) -> Any:
    return (at, "learned", {"learned": number})


def saved(at: float, epoch: int, number: int) -> Any:
    return (at, "saved", {"epoch": epoch, "learned": number})


def began(at: float) -> Any:
    return (at, "began", {})


START = [claimed(0, 1, 0), began(0.1), learned(1, 1), saved(2, 1, 1)]


@pytest.mark.parametrize(
    ("events", "deaths", "lost"),
    [
        # A kill takes what came after the last state; its age counts to the kill, not to the start.
        ([learned(9, 2), learned(10, 3), claimed(90, 2, 0), began(95)], [(11, 0)], [2, 1]),
        # Killed again before it had loaded the stream: the first kill took it.
        (
            [learned(9, 2), claimed(50, 2, 0), claimed(90, 3, 0), began(95)],
            [(11, 0), (60, 0)],
            [2],
        ),
        # It went on to another shard before the first one had loaded it.
        (
            [learned(9, 2), claimed(50, 2, 0), claimed(200, 3, 1), began(250)],
            [(11, 0), (60, 0), (190, 1)],
            [2],
        ),
        # Kills of other shards, and of earlier holders, are not this one's.
        ([learned(9, 2), claimed(90, 2, 0), began(95)], [(9.5, 1), (11, 0)], [2]),
        # A move writes first, and takes nothing.
        ([learned(9, 2), saved(9.5, 1, 2), claimed(10, 2, 1), began(11)], [], []),
        # The shard that it moved to dies: from what it had learned since.
        (
            [
                *(saved(9.5, 1, 1), claimed(10, 2, 1), began(11), learned(20, 2)),
                *(claimed(60, 3, 1), began(70)),
            ],
            [(9.9, 1), (21.5, 1)],
            [1.5],
        ),
        # Nobody was seen to die: the claim is the latest that it can have been.
        ([learned(9, 2), claimed(13, 2, 0), began(95)], [], [4]),
        # Going back on request is not a loss.
        ([learned(9, 2), began(12), learned(13, 2), saved(14, 1, 2)], [], []),
    ],
)
def test_what_a_death_took_is_as_old_as_it_was_then(
    events: list[Any], deaths: list[Any], lost: list[float]
) -> None:
    found = ages["look_at"]([*START, *events], deaths, interval=5)
    assert found.ages == pytest.approx(lost)
    assert found.counts["updates lost"] == len(lost)
    assert all(found.counts[name] == 0 for name in ages["NEVER"])


def test_what_must_not_be_is_seen() -> None:
    late = [learned(9, 2), learned(13, 3), claimed(30, 2, 0), began(31)]
    found = ages["look_at"]([*START, *late], [(15, 0)], interval=5)
    assert found.counts["starts that lost what was too old"] == 1
    assert found.counts["starts that lost something"] == 1
    stale = [claimed(10, 2, 1), saved(11, 1, 2), claimed(12, 2, 0)]
    found = ages["look_at"]([*START, *stale], [], interval=5)
    assert found.counts["states under another epoch"] == 1
    assert found.counts["epochs out of order"] == 1


def test_streams_are_counted_together() -> None:
    total = ages["Found"]()
    for _ in range(2):
        total.add(ages["look_at"](START, [], interval=5))
    assert total.counts["states"] == 2
