"""A server that is killed again and again under load: what comes back, and what was lost.

    python benchmarks/serve_kills.py --kills 200

Every round loads a server with numbered requests, kills it (SIGKILL) at a random moment, reads
what is on disk as the next start will, and starts it again. At the end the disk is full for a
while (no file may grow), and then the folder is read-only: the server has to serve on, say so, and
recover.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from _serving import WEATHERS, Caller, Nursery, Server, as_npy, images

from ostinato.errors import StateError
from ostinato.ops.snapshot import load_state
from ostinato.serve.store import Store


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--interval", type=float, default=4.0, help="seconds that may be lost")
    parser.add_argument("--longest", type=float, default=8.0, help="seconds until a kill")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    given = parse()
    chance, began = random.Random(given.seed), time.monotonic()
    kept = images(80).reshape(len(WEATHERS), -1, 8, 3, 32, 32)
    bodies = [as_npy(part) for part in kept.reshape(-1, 8, 3, 32, 32)]
    names = [f"cam-{at}" for at in range(given.streams)]
    counted = ("kills", "torn", "old", "twice", "not ready", "lost", "errors", "oldest")
    totals: dict[str, Any] = dict.fromkeys(counted, 0)
    with tempfile.TemporaryDirectory() as place:
        settings = {
            "threads": 1,
            "device": "cpu",
            "snapshots": {"seconds": given.interval, "keep": 3},
            "limits": {"rate": 1e6},
            "settings": {"enough": 8, "micro": 8, "buffer": 16},
        }
        nursery = Nursery(Path(place) / "server.log")
        server, start, slowest = Server(Path(place), settings, nursery=nursery), 0, 0.0
        server.start()
        while totals["kills"] < given.kills and time.monotonic() - began < given.seconds:
            length = chance.uniform(0.1, given.longest)
            until = time.monotonic() + length + 30
            callers = [
                Caller(server.port, [name], bodies, until, kind="application/x-npy",
                       start=start, pause=0.02, seed=totals["kills"])
                for name in names
            ]  # fmt: skip
            for one in callers:
                one.start()
            time.sleep(length)
            died = time.time()
            server.kill()
            for one in callers:
                one.until = 0.0
            for one in callers:
                one.join()
            odd = [n for c in callers for n in c.notes if n.status not in (200, 429)]
            totals["errors"] += len(odd)
            for note in odd:
                print(f"{note.stream}, request {note.sequence}: {note.status} {note.said}")
                print((Path(place) / "server.log").read_text(errors="replace")[-2500:], flush=True)
            start += 100_000
            totals["kills"] += 1
            _look(Path(place) / "data", totals, died, given.interval)
            slowest = max(slowest, server.start())
            totals["not ready"] += not server.ready()
            totals["lost"] += sum(one["lost"] for one in server.get("/v1/streams")[1])
        print(f"{totals['kills']} kills in {time.monotonic() - began:.0f} s, "
              f"slowest start {slowest:.1f} s")  # fmt: skip
        print(f"starts that were not ready: {totals['not ready']}")
        print(
            f"states torn: {totals['torn']}; sequence numbers in a state twice: {totals['twice']}"
        )
        print(
            f"streams whose oldest unsaved update was too old: {totals['old']} "
            f"(the oldest of all {totals['oldest']:.1f} s, interval {given.interval} s)"
        )
        print(f"updates lost, as the server says: {totals['lost']}; "
              f"statuses other than 200 and 429: {totals['errors']}", flush=True)  # fmt: skip
        full, closed = _full_disk(server.pid), _read_only(Path(place) / "data")
        _without_disk(server, names, bodies, "disk full", full, 50_000_000)
        _without_disk(server, names, bodies, "read-only folder", closed, 100_000_000)
        server.stop()
        nursery.stop()


def _look(folder: Path, totals: dict[str, Any], died: float, interval: float) -> None:
    """Everything on disk: whole files, no number twice, and nothing older than it may be."""
    store = Store(folder)
    for row in store.streams():
        rows = store.snapshots(row.id)
        for snapshot in rows:
            try:
                _, header = load_state(store.place(row.id) / snapshot.file)
            except StateError:
                totals["torn"] += 1
                continue
            parts = header["stream"]["sequences"]
            numbers = sum(last - first + 1 for first, last in parts)
            # Every learned request had a number of its own, so there are as many as were learned.
            totals["twice"] += header["stream"]["learned"] > numbers
        learned = store.events(row.id, kind="learned", most=10**9)
        began = store.events(row.id, kind="began", most=1, latest=True)
        life = began[0][4]["version"].partition(".")[0]
        newest = rows[0].learned if rows else 0
        unsaved = [
            at
            for _, _, at, _, body in learned
            if body["version"].startswith(f"{life}.") and body["learned"] > newest
        ]
        age = died - min(unsaved) if unsaved else 0.0
        totals["oldest"] = max(totals["oldest"], age)
        totals["old"] += age > interval
    store.close()


@contextmanager
def _full_disk(pid: int) -> Iterator[None]:
    """No file may grow: as on a full disk."""
    usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, usual[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """Nothing may be made or written in the folder; what is open stays open."""
    places = [(path, path.stat().st_mode) for path in (folder, *folder.rglob("*"))]
    for path, mode in places:
        path.chmod(mode & 0o555)
    yield
    for path, mode in places:
        if path.exists():
            path.chmod(mode)


def _without_disk(
    server: Server,
    names: list[str],
    bodies: list[bytes],
    what: str,
    trouble: AbstractContextManager[None],
    start: int,
) -> None:
    """Load the server while nothing can be written, and again when it can."""
    with trouble:
        notes = _some(server, names, bodies, 6.0, start)
        said = server.get("/v1/server")[1]["storage"]
        alarm = b"ostinato_storage_ok 0.0" in server.get("/metrics")[1]
    after = _some(server, names, bodies, 8.0, start + 10_000_000)
    mended = server.get("/v1/server")[1]["storage"]
    wrong = sum(note.status not in (200, 429) for note in notes + after)
    print(f"{what}: {len(notes)} answers meanwhile, {wrong} errors, said {said!r}, "
          f"alarm {alarm}; afterwards {mended!r}")  # fmt: skip


def _some(
    server: Server, names: list[str], bodies: list[bytes], seconds: float, start: int
) -> list[Any]:
    caller = Caller(server.port, names, bodies, time.monotonic() + seconds,
                    kind="application/x-npy", start=start)  # fmt: skip
    caller.start()
    caller.join()
    return caller.notes


if __name__ == "__main__":
    main()
