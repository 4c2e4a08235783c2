"""A sharded server under load whose shards are killed again and again: what callers see, who wrote.

    python benchmarks/ray_kills.py --streams 40 --shards 4 --every 20 --seconds 600

Afterwards everything is read from the index: whether any stream ever had two writers (by the
epochs under which it was written), and how old the oldest update was that a kill took.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from _serving import WEATHERS, Caller, Server, as_npy, images, quantile

from ostinato.serve.store import Store

KIND = "application/x-npy"


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


def main() -> None:
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
            kills, moves = trouble(server, given, names, chance, until)
            for one in callers:
                one.join()
            seconds = time.monotonic() - began
            starts = server.get("/v1/shards")[1]
        finally:
            server.stop()
        report(callers, kills, moves, starts, seconds)
        look(Path(place) / "data", kills, given.interval)


def trouble(
    server: Server, given: argparse.Namespace, names: list[str], chance: random.Random, until: float
) -> tuple[list[tuple[float, int]], collections.Counter[int]]:
    """Kill a shard that is up now and then, and move streams; when, which, and what moves got."""
    kills: list[tuple[float, int]] = []
    moves: collections.Counter[int] = collections.Counter()
    pause = given.seconds / max(1, given.moves)
    next_kill, next_move = time.monotonic() + given.every, time.monotonic() + pause / 2
    while time.monotonic() < until - given.every / 2:
        if time.monotonic() >= next_kill:
            up = [one for one in server.get("/v1/shards")[1] if one["up"]]
            if up:
                chosen = chance.choice(up)
                with contextlib.suppress(ProcessLookupError):  # the front had not noticed yet
                    os.kill(chosen["pid"], signal.SIGKILL)
                    kills.append((time.time(), chosen["shard"]))
            next_kill += given.every
        if time.monotonic() >= next_move:
            to = chance.randrange(given.shards)
            moves[server.call("POST", f"/v1/streams/{chance.choice(names)}/move?to={to}")[0]] += 1
            next_move += pause
        time.sleep(0.1)
    return kills, moves


def report(
    callers: list[Caller],
    kills: list[tuple[float, int]],
    moves: collections.Counter[int],
    starts: list[dict[str, Any]],
    seconds: float,
) -> None:
    notes = [note for one in callers for note in one.notes]
    by = collections.Counter(note.status for note in notes)
    waits = [note.seconds for note in notes if note.status == 200]
    print(f"{len(kills)} kills in {seconds:.0f} s, starts of the shards: "
          f"{[one['starts'] for one in starts]}; moves by status: {dict(moves)}")  # fmt: skip
    print(f"{len(notes)} requests by status: {dict(by)}; broken connections: "
          f"{sum(one.broken for one in callers)}")  # fmt: skip
    print(f"answers after p50 {quantile(waits, 0.5):.2f} s, p99 {quantile(waits, 0.99):.2f} s, "
          f"slowest {max(waits):.1f} s", flush=True)  # fmt: skip


def look(folder: Path, kills: list[tuple[float, int]], interval: float) -> None:
    """The epochs of every write, and what every start had lost."""
    store = Store(folder)
    total = collections.Counter[str]()
    oldest = 0.0
    for row in store.streams():
        events = store.events(row.id, most=10**9)
        held, owner, since, died, waiting = 0, -1, 0.0, 0.0, False
        pending: dict[int, float] = {}
        for _, _, at, kind, body in events:
            if kind == "claimed":
                total["claims"] += 1
                total["epochs out of order"] += body["epoch"] <= held
                if not waiting:  # else nobody had loaded it yet when it went on to another one
                    # Its shard died by the first kill of it since it had the stream.
                    mine = [t for t, who in kills if who == owner and since < t < at]
                    died, waiting = min(mine, default=at), True
                held, owner, since = body["epoch"], body["shard"], at
            elif kind == "saved":
                total["states"] += 1
                total["states under another epoch"] += body["epoch"] != held
                pending = {n: when for n, when in pending.items() if n > body["learned"]}
            elif kind == "learned":
                total["updates"] += 1
                pending[body["learned"]] = at
            elif kind == "began":
                ages = [died - when for when in pending.values() if when <= died]
                oldest = max([oldest, *ages])
                # An update may wait one interval until it is due, and then for the disk.
                total["too old"] += any(age > 1.5 * interval + 1 for age in ages)
                total["updates lost"] += len(pending)
                pending, waiting = {}, False
        learned = [body["learned"] for *_, kind, body in events if kind == "learned"]
        total["streams"] += 1
        total["learned at least once"] += bool(learned)
    store.close()
    for name in ("epochs out of order", "states under another epoch", "too old"):
        total[name] += 0
    print(f"from the index: {dict(total)}")
    print(f"oldest update that a kill took: {oldest:.1f} s, interval {interval} s")


if __name__ == "__main__":
    main()
