"""Whether a domain's images have moved: how often chance says so, and what is done about it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from ostinato.domains.verdict import LEAST, elsewhere
from ostinato.experts.routed import Expert
from ostinato.methods.ostinato import maps as core

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
def test_maps_follow_images_that_moved_without_being_judged_anew(
    small, trusting, monkeypatch, learn
):
    method = build(small, learn=learn)
    batches = shifted(13)
    for batch in batches[:12]:
        method(batch)
    ((number, domain),) = method.bank.domains.items()
    maps, share, due, unsure = domain.maps, domain.share, domain.due, domain.unsure
    asked, plain = [], type(method)._passed

    def passed(self, batch, expert, share=None, shared=None):
        asked.append((expert is None, share))
        return plain(self, batch, expert, share, shared)

    monkeypatch.setattr(type(method), "_passed", passed)
    domain.place = domain.place + 100.0  # as if its maps had been made from other images
    output = method.step(batches[12])
    assert f"images of domain {number} moved" in output.events
    assert asked == [(False, share)]  # one pass, and no question to the source
    assert domain.maps is not maps
    assert (domain.share, domain.due, domain.unsure) == (share, due, unsure)
    assert domain.made_at == domain.images
    assert not method._window(number)  # until others have come


def test_what_was_learned_acts_while_maps_follow(small, trusting):
    method = build(small)
    for batch in shifted(14):
        method(batch)
    (domain,) = method.bank.domains.values()
    assert domain.branches is not None
    images = torch.cat(shifted(2, seed=3))
    given = method._receive(images, None, None)
    learned = domain.branches.branches()
    expected, maps = method._passed(given, Expert((), learned), domain.share)
    bare, _ = method._passed(given, Expert(), domain.share)
    found = method._follow(domain, images, None)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, bare, atol=1e-4)
    for one, same in zip(domain.maps, maps, strict=True):
        assert torch.allclose(one.shift, same.shift, atol=1e-6)
