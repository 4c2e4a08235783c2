"""Shards that are killed at any moment, by a clock that the test moves: what each kill takes."""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.scale import _keeper as keepers
from ostinato.scale import fence
from ostinato.scale._keeper import Keeper
from ostinato.scale._remote import RemoteStore, ShardWriter
from ostinato.serve import (
    _learning as learning,
)
from ostinato.serve import (
    _stream as stream,
)
from ostinato.serve import (
    _unwritten as unwritten,
)
from ostinato.serve import fleet as fleets
from ostinato.serve import (
    snapshots,
    writer,
)
from ostinato.serve._stream import Entry
from ostinato.serve._unwritten import Promise
from ostinato.serve.fleet import Fleet

HERE = Path(__file__).parent
one: Any = runpy.run_path(str(HERE / "test_serve_unwritten.py"))
Clock, mostly, small = one["Clock"], one["mostly"], one["small"]
ages: Any = runpy.run_path(str(HERE.parent / "benchmarks" / "_ages.py"))
SECONDS = 6.0
"""That may be lost."""
SHARDS, STREAMS = 3, 9


class Disk:
    """The keeper's, which all shards wait for: one state at a time, each taking its time."""

    def __init__(self, clock: Any, takes: Callable[[], float]) -> None:
        self.clock, self.takes, self.free = clock, takes, 0.0

    def turn(self) -> float:
        """When what is sent now will be on disk."""
        self.free = max(self.free, self.clock.now) + self.takes()
        return self.free


class SteppedWriter(ShardWriter):
    """A shard's writer that works while the clock goes on; what is on its way dies with it."""

    def __init__(self, store: RemoteStore, settings: Any, disk: Disk) -> None:
        self.stale = False
        super().__init__(store, settings, self._replaced, lambda number: None)
        self.disk, self.until = disk, 0.0

    def _replaced(self) -> None:
        self.stale = True

    def go_on(self) -> None:
        connection: Any = None
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if rows:
            self.write_rows(connection, rows)
        if self._job is None:
            self._job = self._next()
            self.until = self.disk.turn() if self._job is not None else 0.0
        elif self.disk.clock.now >= self.until:
            job, self._job = self._job, None
            self.write_job(connection, job)


class Stepped:
    """A shard without threads: what `Shard` makes, and loads when it starts."""

    def __init__(self, kept: Keeper, number: int, disk: Disk, learns: Callable[[], float]) -> None:
        self.number, self.learns, self.disk = number, learns, disk
        self.store = RemoteStore(lambda name, *values: getattr(kept, name)(*values), number)
        self.writer = SteppedWriter(self.store, kept.settings, disk)
        self.fleet = Fleet(kept.settings, small["served"](), self.store, self.writer)
        self.fleet.ready = True
        for row in self.store.streams():
            self._add(self.fleet.restore(row))

    def create(self, name: str) -> None:
        self._add(self.fleet.create(name, None))

    def _add(self, made: Any) -> None:
        self.fleet.streams[made.name] = made
        made.method.take = self._take

    def _take(self, levels: Any) -> tuple[str, ...]:
        self.disk.clock.sleep(self.learns())
        return ()

    def learn(self, chance: random.Random) -> None:
        chosen = chance.choice(list(self.fleet.streams.values()))
        chosen.offer(Entry(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "x"))
        self.fleet.learner.wake(chosen)
        self.fleet.learner.go_on()


class Killed(BaseException):
    """The process is gone, whatever it was doing."""


class Cluster:
    """A keeper and shards, of which one is killed now and then."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        learns: tuple[float, float],
        writes: tuple[float, float],
    ) -> None:
        self.clock, self.chance = Clock(), random.Random(0)
        parts = (fence, keepers, fleets, learning, snapshots, stream, unwritten, writer)
        for module in parts:
            monkeypatch.setattr(module, "time", self.clock)
        self.kept = Keeper(small["settings"](folder, snapshots={"seconds": SECONDS, "keep": 2}))
        self.learns, self.disk = mostly(*learns), Disk(self.clock, mostly(*writes))
        self.shards: dict[int, Stepped] = {}
        self.zombies: list[Stepped] = []
        self.deaths: list[tuple[float, int]] = []
        self.back: dict[int, float] = {}
        self.working: Stepped | None = None
        self.next_kill = self.clock.now + 20
        for number in range(SHARDS):
            self.start(number)
            for at in range(STREAMS // SHARDS):
                self.shards[number].create(f"cam-{number}-{at}")
        self.clock.watchers.append(self.moment)

    def start(self, number: int) -> None:
        self.shards[number] = Stepped(self.kept, number, self.disk, self.learns)

    def moment(self) -> None:
        for shard in (*self.shards.values(), *self.zombies):
            shard.writer.go_on()
        if self.clock.now >= self.next_kill and self.shards:
            self.next_kill = self.clock.now + 20
            self.kill(self.chance.choice(list(self.shards)))

    def kill(self, number: int) -> None:
        gone = self.shards.pop(number)
        self.deaths.append((self.clock.now, number))
        self.back[number] = self.clock.now + self.chance.choice((3.0, 30.0))
        if self.working is gone:
            raise Killed

    def run(self, seconds: float) -> Cluster:
        until = self.clock.now + seconds
        while self.clock.now < until:
            for number in [n for n, at in self.back.items() if at <= self.clock.now]:
                del self.back[number]
                self.start(number)
            try:
                for shard in list(self.shards.values()):
                    self.working = shard
                    shard.learn(self.chance)
            except Killed:
                continue
            finally:
                self.working = None
            self.clock.sleep(self.chance.choice((0.05, 0.05, 0.4)))
        return self

    def found(self) -> Any:
        total = ages["Found"]()
        for row in self.kept.store.streams():
            events = self.kept.store.events(row.id, most=10**6)
            given = [(at, kind, body) for *_, at, kind, body in events]
            total.add(ages["look_at"](given, self.deaths, SECONDS))
        return total


WAYS = {
    "quick": ((0.05, 0.3), (0.02, 0.05)),
    "maps take long": ((0.1, 1.0), (0.02, 0.1)),
    "slow disk": ((0.05, 0.1), (0.15, 0.3)),
}
"""Usual and rare seconds of an update, and of writing a state."""


@pytest.mark.parametrize("way", WAYS)
def test_a_kill_takes_nothing_older_than_may_be_lost(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, *WAYS[way]).run(130)
    found = cluster.found()
    assert len(cluster.deaths) >= 5
    assert found.counts["updates lost"] > 0
    assert all(found.counts[name] == 0 for name in ages["NEVER"]), (found.counts, max(found.ages))
    cluster.kept.close()


def test_with_one_fixed_share_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Promise, "early", lambda self, streams: 0.9 * self.seconds)
    monkeypatch.setattr(Promise, "lags", lambda self, streams, oldest: False)
    found = Cluster(tmp_path, monkeypatch, (0.05, 0.1), (0.6, 0.9)).run(200).found()
    assert found.counts["starts that lost what was too old"] > 0


def test_a_shard_that_lives_on_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, *WAYS["quick"]).run(15)
    stale = cluster.shards[0]
    cluster.zombies.append(stale)
    cluster.deaths.append((cluster.clock.now, 0))
    cluster.start(0)
    before = cluster.found().counts["states under another epoch"]
    for _ in range(10):
        stale.learn(cluster.chance)
    for made in stale.fleet.streams.values():
        stale.fleet.snapshot(made)
    cluster.run(15)
    assert stale.writer.stale
    assert cluster.kept.refused > 0
    assert cluster.found().counts["states under another epoch"] == before == 0
