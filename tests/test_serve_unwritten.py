"""Nothing older than the seconds that may be lost is lost: by a clock that the test moves."""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.serve import _learning as learning
from ostinato.serve import _stream as stream
from ostinato.serve import _unwritten as unwritten
from ostinato.serve import fleet as fleets
from ostinato.serve import writer
from ostinato.serve._stream import Entry
from ostinato.serve._unwritten import EARLY, FEW, Promise, Unwritten
from ostinato.serve.fleet import Fleet
from ostinato.serve.store import SnapshotRow, Store
from ostinato.serve.writer import SnapshotJob, Writer

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
STEP = 0.05
"""Seconds by which time goes on at once."""


class Clock:
    """Time that stands still unless it is told to go on; then somebody watches every moment."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.watchers: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self.now

    time = perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + STEP)
            for watch in self.watchers:
                watch()


class SlowWriter(Writer):
    """The writer, whose disk takes as long as the test says; it works while the clock goes on."""

    def __init__(self, store: Store, clock: Clock, takes: Callable[[], float]) -> None:
        super().__init__(store, keep=3, events=100, answers=100)
        self.clock, self.takes, self.until = clock, takes, 0.0
        self.durable: dict[int, int] = {}
        self.trouble = None

    def go_on(self) -> None:
        if self._job is None:
            self._job = self._next()
            self.until = self.clock.now + self.takes()
        elif self.clock.now >= self.until:
            job, self._job = self._job, None
            self.finish(job)

    def finish(self, job: SnapshotJob) -> None:
        learned = job.header["stream"]["learned"]
        self.durable[job.stream] = max(learned, self.durable.get(job.stream, 0))
        row = SnapshotRow(1, "x", None, "x.1", learned, 0, 0, self.clock.now)
        assert job.finished is not None
        job.finished(row, job.began)
        job.done.set_result(row)


class Simulated:
    """A server without threads: streams that learn in turn, and how old what is lost could get."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        learns: Callable[[], float],
        writes: Callable[[], float],
        streams: int = 4,
        seconds: float = 4.0,
    ) -> None:
        self.clock = Clock()
        for module in (fleets, learning, stream, unwritten, writer):
            monkeypatch.setattr(module, "time", self.clock)
        given = small["settings"](folder, snapshots={"seconds": seconds, "updates": 10**6})
        store = Store(folder)
        store.take()
        self.writer = SlowWriter(store, self.clock, writes)
        self.fleet = Fleet(given, small["served"](), store, self.writer)
        self.times: dict[int, list[float]] = {}
        self.oldest = 0.0
        for number in range(streams):
            made = self.fleet.create(f"cam-{number}", None)
            self.times[made.id] = []
            monkeypatch.setattr(made.method, "take", self.taking(made.id, learns))
        self.clock.watchers += [self.writer.go_on, self.look]

    def taking(self, number: int, learns: Callable[[], float]) -> Any:
        def take(levels: Any) -> tuple[str, ...]:
            end = self.clock.now + learns()
            while self.clock.now < end:
                self.clock.sleep(min(0.7, end - self.clock.now))
                self.fleet._tick(self.fleet.learner._teaching)  # as between the blocks of a forward
            self.times[number].append(self.clock.now)
            return ()

        return take

    def look(self) -> None:
        """What a kill at this moment would lose."""
        for number, times in self.times.items():
            lost = times[self.writer.durable.get(number, 0) :]
            self.oldest = max(self.oldest, self.clock.now - min(lost, default=self.clock.now))

    def run(self, requests: int) -> Simulated:
        chance = random.Random(0)
        images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
        for _ in range(requests):
            chosen = chance.choice(list(self.fleet.streams.values()))
            chosen.offer(Entry(images, "x"))
            self.fleet.learner.wake(chosen)
            self.fleet.learner.go_on()
            self.clock.sleep(chance.choice((0.0, 0.0, 0.4)))
        self.clock.sleep(1.0)
        return self

    @property
    def learned(self) -> int:
        return sum(map(len, self.times.values()))


def mostly(usual: float, rare: float, seed: int = 1) -> Callable[[], float]:
    chance = random.Random(seed)
    return lambda: rare if chance.random() < 0.1 else usual


WAYS = {
    "quick": (mostly(0.05, 0.3), mostly(0.05, 0.1)),
    "maps take long": (mostly(0.1, 1.5), mostly(0.05, 0.2)),
    "longer than may be lost": (mostly(1.0, 6.0), mostly(0.05, 0.2)),
    "slow disk": (mostly(0.05, 0.1), mostly(0.4, 0.8)),
    "slower disk": (mostly(0.05, 0.1), mostly(1.2, 1.9)),
    "both": (mostly(0.5, 2.0), mostly(0.3, 0.6)),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_update_stays_unwritten_for_longer_than_may_be_lost(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Simulated(tmp_path, monkeypatch, *WAYS[way]).run(200)
    assert 0 < found.oldest <= 4.0
    assert found.learned == 200  # and all the same it learns


def test_with_one_fixed_share_they_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("early", "latest"):
        monkeypatch.setattr(Promise, name, lambda self, streams: EARLY * self.seconds)
    monkeypatch.setattr(Promise, "lags", lambda self, streams, oldest: False)
    for at, way in enumerate(("longer than may be lost", "slower disk", "both")):
        assert Simulated(tmp_path / str(at), monkeypatch, *WAYS[way]).run(200).oldest > 4.0


def test_few_copies_of_states_wait_where_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them may be due at once: those that learned in the same second."""
    found = Simulated(tmp_path, monkeypatch, *WAYS["quick"], streams=24, seconds=60.0).run(60)
    most = [0]
    found.clock.watchers.append(lambda: most.append(found.writer.waiting))
    found.run(900)
    assert found.clock.now > 2 * 60.0
    assert 0 < max(most) <= fleets._COPIES
    assert 0 < found.oldest <= 60.0


def test_states_are_not_written_more_often_than_they_have_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Simulated(tmp_path, monkeypatch, *WAYS["quick"])
    count, finish = [0], found.writer.finish

    def counted(job: SnapshotJob) -> None:
        count[0] += 1
        finish(job)

    monkeypatch.setattr(found.writer, "finish", counted)
    began = found.clock.now
    found.run(200)
    turns = (found.clock.now - began) / (EARLY * 4.0)
    assert count[0] <= 4 * (turns + 1) + FEW  # one a stream and half interval, more at the start


def test_what_was_handed_over_counts_until_it_is_written() -> None:
    clock = Clock()
    here = Unwritten(clock.monotonic)
    here.changed()
    clock.now += 1
    first = here.hand()
    clock.now += 1
    here.changed()
    second = here.hand()  # in place of the first, which then is never written
    assert (here.count, here.age(), second.since) == (0, 2.0, first.since)
    here.failed(second)
    assert (here.count, here.age(), here.waits()) == (2, 2.0, 2.0)
    third = here.hand()
    clock.now += 1
    here.changed()
    here.written(third)
    assert (here.count, here.age()) == (1, 0.0)
    here.written(first)  # known already
    assert here
    here.clear()
    assert not here
    assert here.hand().count == 0
    assert not here


def test_the_oldest_is_written_first_and_a_newer_state_keeps_the_place(tmp_path: Path) -> None:
    line = SlowWriter(Store(tmp_path), Clock(), lambda: 0.0)
    jobs = [SnapshotJob(number, None, {}, since=since) for number, since in ((1, 5.0), (2, 3.0))]  # type: ignore[arg-type]
    for job in jobs:
        line.snapshot(job)
    newer = SnapshotJob(2, None, {}, since=9.0)  # type: ignore[arg-type]
    line.snapshot(newer)
    assert jobs[1].done.cancelled()
    assert [line._next(), line._next(), line._next()] == [newer, jobs[0], None]
