"""A sharded server under load whose shards are killed again and again: what callers see, who wrote.

    python benchmarks/ray_kills.py --streams 40 --shards 4 --every 20 --seconds 600

Afterwards everything is read from the index (`_ages.py`): whether any stream ever had two writers,
by the epochs under which it was written, and how old the oldest update was that a kill took. It
ends with status 1 where something was seen that must not be.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _ages import NEVER, Death, Found, look_at
from _serving import WEATHERS, Caller, Server, as_npy, images, quantile

from ostinato.serve.store import Store

KIND = "application/x-npy"
CLEAR = {200, 429, 503}
"""Answers, and refusals that name a time to come back."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every", type=float, default=20, help="seconds between two kills")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between snapshots")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds a request waits")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.2, help="of a caller between requests")
    parser.add_argument("--moves", type=int, default=10, help="streams that are moved on the way")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": "cpu",
        "snapshots": {"seconds": given.interval, "keep": 3},
        "batching": {"deadline_s": given.deadline},
        "limits": {"rate": 1e6},
        "settings": {"enough": 8, "micro": 8, "buffer": 16},
        "events": 1_000_000,
    }


def main() -> int:
    given = parse()
    chance = random.Random(given.seed)
    bodies = [as_npy(part) for part in images(80).reshape(len(WEATHERS) * 10, 8, 3, 32, 32)]
    names = [f"cam-{at}" for at in range(given.streams)]
    with tempfile.TemporaryDirectory() as place:
        flags = ("--engine", "ray", "--shards", str(given.shards))
        server = Server(Path(place), settings_of(given), flags=flags)
        print(f"ready after {server.start():.0f} s", flush=True)
        began, until = time.monotonic(), time.monotonic() + given.seconds
        callers = [
            Caller(server.port, names[at :: given.callers], bodies, until, kind=KIND,
                   start=0 if at % 2 else None, pause=given.pause, seed=at)
            for at in range(given.callers)
        ]  # fmt: skip
        for one in callers:
            one.start()
        try:
            trouble = Trouble(server)
            trouble.make(given, names, chance, until)
            for one in callers:
                one.join()
            seconds = time.monotonic() - began
            starts = server.get("/v1/shards")[1]
        finally:
            server.stop()
        clear = report(callers, trouble, starts, seconds)
        sound = look(Path(place) / "data", trouble, given.interval)
    return int(not (clear and sound))


@dataclass
class Trouble:
    """Kills a shard that is up now and then, moves streams, and notes when shards were gone.

    Attributes:
        kills: when, and which.
        gone: when a shard was seen to be away, or to have another process; a shard may die of
            something else than a kill, for want of memory for one.
        moves: what moving streams was answered.
    """

    server: Server
    kills: list[Death] = field(default_factory=list)
    gone: list[Death] = field(default_factory=list)
    moves: collections.Counter[int] = field(default_factory=collections.Counter)
    seen: dict[int, tuple[bool, int | None]] = field(default_factory=dict)

    def make(
        self, given: argparse.Namespace, names: list[str], chance: random.Random, until: float
    ) -> None:
        pause = given.seconds / max(1, given.moves)
        next_kill, next_move = time.monotonic() + given.every, time.monotonic() + pause / 2
        while time.monotonic() < until - given.every / 2:
            shards = self.look()
            if time.monotonic() >= next_kill:
                self.kill(chance, [one for one in shards if one["up"]])
                next_kill += given.every
            if time.monotonic() >= next_move:
                to = chance.randrange(given.shards)
                path = f"/v1/streams/{chance.choice(names)}/move?to={to}"
                self.moves[self.server.call("POST", path)[0]] += 1
                next_move += pause
            time.sleep(0.2)

    def look(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.server.get("/v1/shards")[1]
        for one in shards:
            now, before = (one["up"], one["pid"]), self.seen.get(one["shard"])
            if before is not None and before[0] and now != before:
                self.gone.append((time.time(), one["shard"]))
            self.seen[one["shard"]] = now
        return shards

    def kill(self, chance: random.Random, up: list[dict[str, Any]]) -> None:
        if not up:
            return
        chosen = chance.choice(up)
        with contextlib.suppress(ProcessLookupError):  # the front had not noticed yet
            os.kill(chosen["pid"], signal.SIGKILL)
            self.kills.append((time.time(), chosen["shard"]))


def report(
    callers: list[Caller], trouble: Trouble, starts: list[dict[str, Any]], seconds: float
) -> bool:
    """Whether every request was answered, or refused in a way that says when to come again."""
    notes = [note for one in callers for note in one.notes]
    by = collections.Counter(note.status for note in notes)
    waits = [note.seconds for note in notes if note.status == 200]
    often = [one["starts"] for one in starts]
    print(f"{len(trouble.kills)} kills in {seconds:.0f} s, starts of the shards: {often}; "
          f"moves by status: {dict(trouble.moves)}")  # fmt: skip
    print(f"{len(notes)} requests by status: {dict(by)}; broken connections: "
          f"{sum(one.broken for one in callers)}")  # fmt: skip
    print(f"answers after p50 {quantile(waits, 0.5):.2f} s, p99 {quantile(waits, 0.99):.2f} s, "
          f"slowest {max(waits):.1f} s", flush=True)  # fmt: skip
    return set(by) <= CLEAR and not any(one.broken for one in callers)


def look(folder: Path, trouble: Trouble, interval: float) -> bool:
    """The epochs of every write, and what every start had lost; whether all is as it must be."""
    store, total = Store(folder), Found()
    deaths = [*trouble.kills, *trouble.gone]
    for row in store.streams():
        events = store.events(row.id, most=10**9)
        total.counts["streams"] += 1
        total.counts["learned at least once"] += any(kind == "learned" for *_, kind, _ in events)
        total.add(look_at([(at, kind, body) for *_, at, kind, body in events], deaths, interval))
    store.close()
    print(f"from the index: {dict(total.counts)}")
    print(f"oldest update that a kill took: {max(total.ages, default=0.0):.1f} s, "
          f"interval {interval} s")  # fmt: skip
    return not any(total.counts[name] for name in NEVER)


if __name__ == "__main__":
    sys.exit(main())
