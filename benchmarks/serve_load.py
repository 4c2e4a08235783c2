"""Load on `ostinato serve`: throughput, latency, memory, and whether answers are the library's.

    python benchmarks/serve_load.py --streams 50 --seconds 1800 --cores 2

starts a server on so many cores, loads it from the others (or from the same, where there are no
others), stops it, and then checks in the library what it said: every kept answer against the state
that it names, made again from the event log, and the newest snapshots to the bit. A second, short
run at a part of that load tells what learning costs the answers.

    python benchmarks/serve_load.py --model vit_base_patch16_224 --weights random --device cuda \
        --precision bf16 --streams 1000 --speaking 100 --callers 100 --processes 8 --images 8 \
        --batch 256 --share 0.05 --seconds 40 --still 15 --compare 0 --turns 2 --turn 5 --checked 0

needs nothing but the library: weights are random, images and statistics are drawn from the
embedded ones. Figures are printed as they are found; `--compare 0`, `--turns 0`, `--still 0` and
`--checked 0` leave phases out. Nothing is made again there: the check is for the embedded model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import torch
from _serve_bodies import prepared
from _serve_check import check
from _serve_crowd import Crowd
from _serve_meter import read, told
from _serve_plain import Work, pace, plain
from _serving import Caller, Note, Server, paced, quantile

TOLD = 10.0
"""Seconds between two lines while the load goes on."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--speaking", type=int, help="streams that speak; all unless given")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--callers", type=int, default=16, help="connections")
    parser.add_argument("--processes", type=int, default=1, help="that the callers run in")
    parser.add_argument("--share", type=float, default=0.5, help="of learning, while busy")
    parser.add_argument("--images", type=int, default=8, help="of a request")
    parser.add_argument("--warm", type=int, default=0, help="requests of a stream learned before")
    parser.add_argument(
        "--taught", type=int, default=0, help="the same, before it is measured again"
    )
    parser.add_argument("--trusting", action="store_true", help="experts act, sure or not")
    parser.add_argument("--visit", type=int, default=20, help="requests under one weather in a row")
    parser.add_argument("--batch", type=int, default=64, help="images of a common forward")
    parser.add_argument("--cores", type=int, help="cores of the server; all unless given")
    parser.add_argument("--threads", type=int, default=1, help="of each of its workers")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--checked", type=int, default=3, help="streams that are made again")
    parser.add_argument("--compare", type=float, default=60, help="seconds of each learning phase")
    parser.add_argument("--turns", type=int, default=5, help="of server and library, for the ratio")
    parser.add_argument("--turn", type=float, default=10, help="seconds of each")
    parser.add_argument("--still", type=float, default=0, help="seconds of load without learning")
    parser.add_argument("--sent", choices=("npy", "jpeg"), default="npy", help="to larger models")
    parser.add_argument("--top", type=int, help="guesses asked for; all of the embedded model's")
    parser.add_argument("--clean", type=int, default=200, help="images that statistics are of")
    parser.add_argument("--pace", type=float, default=0.3, help="share of the load in that phase")
    given = parser.parse_args()
    if given.top is None:
        given.top = 0 if given.model == "embedded" else 5
    if given.model != "embedded":
        given.checked = 0
    return given


def load(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, seconds: float,
    *, pause: float = 0.0, callers: int | None = None, start: int | None = 0, told_of: float = 0.0,
) -> tuple[list[Note], list[float], int]:  # fmt: skip
    """Load the server; answers, memory every few seconds, broken connections.

    With `told_of`, a line is printed every so many seconds.
    """
    half = time.monotonic() + seconds / 2
    names = [f"cam-{at}" for at in range(given.speaking or given.streams)]
    count = min(callers or given.callers, len(names))
    options = {"kind": kind, "pause": pause, "start": start, "keep": 9, "visit": given.visit}
    options["top"] = given.top
    groups = [names[at::count] for at in range(count)]
    work = given.crowd.begin(server.port, groups, bodies, seconds, options)
    memory, last = list[float](), read(server)
    while not all(one.done() for one in work):
        memory.append(server.memory())
        time.sleep(min(2.0, seconds / 20))
        now = read(server) if told_of and time.monotonic() - last.at > told_of else last
        if now is not last:
            print(f"  {memory[-1]:.0f} MB; {told(last, now)}", flush=True)
            last = now
        if seconds > 120 and half and time.monotonic() > half:
            half = 0.0
            summary(server, "at half time")
    found = [one.result() for one in work]
    return [note for notes, _ in found for note in notes], memory, sum(n for _, n in found)


def main() -> None:
    given = parse()
    given.crowd = Crowd(given.processes)
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place), time.monotonic()
        settings, bodies, kind = prepared(given, folder)
        server = Server(folder, settings, given.cores)
        print(f"prepared after {time.monotonic() - began:.1f} s", flush=True)
        print(f"ready after {server.start():.1f} s", flush=True)
        declare(server, given)
        warm_up(server, given, bodies, kind)
        every = TOLD if given.seconds <= 300 else 60.0
        notes, memory, broken = load(server, given, bodies, kind, given.seconds, told_of=every)
        rate = report(notes, memory, broken, given)
        summary(server, "at the end")
        work = plain(server, given, folder, bodies) if given.turns else []
        ratio(server, given, bodies, kind, work)
        taught(server, given, bodies, kind, work)
        still(server, given, bodies, kind)
        costs(server, given, bodies, kind, rate)
        end(server, given, folder)
        given.crowd.stop()
        if given.checked:
            check(folder, given, bodies, notes)


def declare(server: Server, given: argparse.Namespace) -> None:
    """Make all streams, those that stay silent too."""
    began = time.monotonic()
    for at in range(given.streams):
        status, said = server.call("POST", "/v1/streams", {"name": f"cam-{at}"})
        assert status == 201, said
    took = time.monotonic() - began
    print(f"{given.streams} streams after {took:.1f} s, {server.memory():.0f} MB", flush=True)


def end(server: Server, given: argparse.Namespace, folder: Path) -> None:
    """Stop the server; where nothing is checked afterwards, no state has to be written."""
    (server.stop if given.checked else server.kill)()
    _, *said = (folder / "server.log").read_text(errors="replace").split("Traceback")
    print(f"tracebacks in the server's log: {len(said)}", *(one[-900:] for one in said[-1:]))


def frozen(server: Server, given: argparse.Namespace, what: str) -> None:
    """Freeze or unfreeze the streams that speak."""
    for at in range(given.speaking or given.streams):
        server.call("POST", f"/v1/streams/cam-{at}/{what}", {})


def still(server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str) -> None:
    """The same load while nobody learns: what is left to the answers then."""
    if given.still <= 0:
        return
    frozen(server, given, "freeze")
    print(f"without learning, for {given.still:.0f} s:", flush=True)
    notes, memory, broken = load(
        server, given, bodies, kind, given.still, start=30_000_000, told_of=given.still / 3
    )
    report(notes, memory, broken, given)
    frozen(server, given, "unfreeze")


def warm_up(server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str) -> None:
    """Let every stream learn from so many requests first: it meets its domains."""
    teach(server, given, bodies, kind, given.warm)


def teach(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, requests: int
) -> None:
    """Let every stream that speaks learn from so many requests."""
    names, step = [f"cam-{at}" for at in range(given.speaking or given.streams)], 20
    for first in range(0, requests, step):
        count, until = min(step, requests - first), time.monotonic() + 1e6
        callers = [
            Caller(server.port, [name], bodies, until, kind=kind, visit=given.visit, turns=count,
                   top=given.top, start=40_000_000 + first, seed=first)
            for name in names
        ]  # fmt: skip
        for at in range(0, len(callers), given.callers):
            for one in callers[at : at + given.callers]:
                one.start()
            for one in callers[at : at + given.callers]:
                one.join()
                for note in [n for n in one.notes if n.status != 200]:
                    print(f"{note.stream}, request {note.sequence}: {note.status} {note.said}")
        while any(one["waiting"] for one in server.get("/v1/streams")[1]):
            time.sleep(0.5)
    if requests:
        summary(server, f"after {requests} requests of each stream")


def taught(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, work: list[Work]
) -> None:
    """The same load and the same turns once more, with streams that have met domains."""
    if not given.taught:
        return
    teach(server, given, bodies, kind, given.taught)
    for seconds in (given.seconds / 2, given.seconds):  # first whatever is made once
        start = int(50_000_000 + 1_000_000 * seconds)
        found = load(server, given, bodies, kind, seconds, start=start, told_of=TOLD / 2)
    report(*found, given)
    ratio(server, given, bodies, kind, work, start=60_000_000)


def report(notes: list[Note], memory: list[float], broken: int, given: argparse.Namespace) -> float:
    good = [note for note in notes if note.status == 200]
    others = Counter((n.status, n.said) for n in notes if n.status not in (200, 429))
    rate = paced(notes, given.images, min(given.callers, given.speaking or given.streams))
    waits = [note.seconds for note in good]
    half = memory[len(memory) // 2 :]
    print(
        f"{len(good)} answers ({rate:.0f} images/s), {sum(n.status == 429 for n in notes)} × 429, "
        f"other statuses: {dict(others) or 'none'}, broken connections: {broken}"
    )
    print(
        f"latency p50 {1e3 * quantile(waits, 0.5):.1f} ms, "
        f"p99 {1e3 * quantile(waits, 0.99):.1f} ms; "
        f"answers without a version: {sum(not note.version for note in good)}"
    )
    middle = (max(half) + min(half)) / 2
    print(
        f"memory in the second half {min(half):.0f} to {max(half):.0f} MB "
        f"(± {100 * (max(half) - middle) / middle:.1f} %), at first {memory[0]:.0f} MB",
        flush=True,
    )
    return rate


def summary(server: Server, when: str) -> None:
    streams = server.get("/v1/streams")[1]
    learned, skipped = (sum(one[key] for one in streams) for key in ("learned", "skipped"))
    domains = sum(one["domains"] for one in streams)
    print(
        f"{when}: requests learned from {learned}, not for lack of time {skipped}; "
        f"domains {domains}, memory {server.memory():.0f} MB",
        flush=True,
    )


def costs(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, rate: float
) -> None:
    """p50 with learning and without, in turns, at a part of the load."""
    if given.compare <= 0:
        return
    callers = min(4, given.callers)
    pause = callers * given.images / max(given.pace * rate, 1e-6)
    found: dict[str, list[float]] = {"freeze": [], "unfreeze": []}
    start = 10_000_000
    for what in ("freeze", "unfreeze") * 2:
        frozen(server, given, what)
        start += 1_000_000
        notes, _, _ = load(
            server, given, bodies, kind, given.compare / 2,
            pause=pause, callers=callers, start=start,
        )  # fmt: skip
        found[what] += [note.seconds for note in notes if note.status == 200]
    off, on = (quantile(found[key], 0.5) for key in ("freeze", "unfreeze"))
    print(
        f"p50 at {100 * given.pace:.0f} % of that load: {1e3 * off:.1f} ms without learning, "
        f"{1e3 * on:.1f} ms with it: × {on / off:.2f}",
        flush=True,
    )


def ratio(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, work: list[Work],
    start: int = 20_000_000,
) -> None:  # fmt: skip
    """Images a second, served and by the library, in turns: others may use the machine too."""
    if not work:
        return
    served, alone = list[float](), dict[str, list[float]]()
    for turn in range(given.turns):
        first = start + 1_000_000 * turn
        notes, _, _ = load(server, given, bodies, kind, given.turn, start=first)
        served.append(
            paced(notes, given.images, min(given.callers, given.speaking or given.streams))
        )
        server.pause(True)  # what it still learns would take the library's time
        for what, way in work:
            alone.setdefault(what, []).append(pace(way, given))
        server.pause(False)
        others = ", ".join(f"{what} {paces[-1]:.0f}" for what, paces in alone.items())
        print(f"  served {served[-1]:.0f}, {others} images/s", flush=True)
    for what, paces in alone.items():
        shares = sorted(mine / its for mine, its in zip(served, paces, strict=True))
        print(
            f"{what}, {given.batch} images, {given.precision}, {given.threads} threads: "
            f"{median(paces):.0f} images/s; "
            f"served: {median(served):.0f}; share of it in {given.turns} turns "
            f"{median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
