"""Whether a domain's images have moved: how often chance says so, and what is done about it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from ostinato.domains.verdict import LEAST, elsewhere
from ostinato.methods.ostinato import maps as core
from ostinato.methods.ostinato._bank import Domain

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, clean_statistics = kit["build"], kit["shifted"], kit["clean_statistics"]
WIDTH, TRIALS = 300, 300


@pytest.fixture(scope="module")
def small():
    return clean_statistics()


def drawn(directions: int, count: int, seed: int) -> torch.Tensor:
    """Rows that vary in so many directions; all of them as much in total."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.zeros(count, WIDTH)
    rows[:, :directions] = torch.randn(count, directions, generator=draw)
    return rows * (WIDTH / directions) ** 0.5


@pytest.mark.parametrize("directions", [3, 15, 300])
@pytest.mark.parametrize(("count", "seldom"), [(LEAST, 0.08), (20, 0.04)])
def test_chance_seldom_moves_images_whatever_directions_they_vary_in(directions, count, seldom):
    alarms = 0
    for seed in range(TRIALS):
        earlier, latest = drawn(directions, 128 + count, seed).split([128, count])
        alarms += elsewhere(latest, earlier.mean(0), len(earlier))
    assert alarms < seldom * TRIALS


def test_images_that_moved_are_seen_the_sooner_the_more_directions_they_vary_in():
    seen = []
    for directions in (3, 300):
        found = 0
        for seed in range(TRIALS):
            earlier, latest = drawn(directions, 148, seed).split([128, 20])
            latest = latest + 10**0.5 * torch.eye(WIDTH)[0]
            found += elsewhere(latest, earlier.mean(0), len(earlier))
        seen.append(found / TRIALS)
    assert seen[0] < 0.2 < 0.9 < seen[1]


def test_few_images_say_nothing():
    far = 100 + drawn(20, LEAST, seed=0)
    assert elsewhere(far, torch.zeros(WIDTH))
    assert not elsewhere(far[:-1], torch.zeros(WIDTH))
    assert not elsewhere(far[:0], torch.zeros(WIDTH))


@pytest.fixture
def trusting(monkeypatch):
    monkeypatch.setattr(core, "TRUSTED", float("inf"))


@pytest.mark.parametrize("learn", [False, True])
def test_maps_of_images_that_moved_are_made_from_these_and_judged(
    small, trusting, monkeypatch, learn
):
    method = build(small, learn=learn)
    batches = shifted(13)
    for batch in batches[:12]:
        method(batch)
    ((number, domain),) = method.bank.domains.items()
    maps, share = domain.maps, domain.share
    assert (domain.branches is not None) is learn
    asked, plain = [], type(method)._passed

    def passed(self, batch, expert, share=None, shared=None):
        learned = expert is not None and bool(expert.branches)
        asked.append((expert is None, share, learned))
        return plain(self, batch, expert, share, shared)

    monkeypatch.setattr(type(method), "_passed", passed)
    domain.place = domain.place + 100.0  # as if its maps had been made from other images
    output = method.step(batches[12])
    assert f"images of domain {number} moved" in output.events
    judged = [(True, None, False), (False, share, False)]  # the source, and the share it has
    assert asked == [*judged, (False, share, True)] if learn else asked == judged
    assert domain.maps is not maps
    assert domain.made_at == domain.images
    assert not method._window(number)  # until others have come


def test_what_the_source_said_of_more_images_is_of_the_judged_ones_too(small, trusting):
    method = build(small, learn=False, buffer=128)
    images = torch.cat(shifted(9))
    assert len(images) > core._JUDGED
    source = method.source_logits(method._receive(images, None, None))
    given, asked = (Domain(due=8, images=len(images)) for _ in range(2))
    logits = [
        method._make_maps(one, images, None, some) for one, some in ((given, source), (asked, None))
    ]
    assert torch.allclose(*logits, atol=1e-5)
    assert given.share == asked.share
