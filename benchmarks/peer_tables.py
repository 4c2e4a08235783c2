"""Every table of the peers on a real ViT-Tiny, within a time limit on one GPU.

    python benchmarks/lay_out.py IMAGES.tar data
    nvidia-cuda-mps-control -d                       # lets processes share a GPU, where there is it
    python benchmarks/peer_tables.py --root data --weights vit_tiny_patch16_224.safetensors \\
      --device cuda --jobs 12 8 5 3 --out runs/peers --seconds 560 --pack peers.tar.xz

What it makes: a search over five rates on tuning images, the main table at the authors' and at the
searched rates, the best ten over three seeds, kinds of traffic (the best six over three seeds), and
twenty rounds. Each is an `ostinato` command; three lanes of them run side by side, and `--jobs`
says how many rows at a time: of the search, then of tables, of traffic and of twenty rounds.

`--seconds` interrupts what still runs, which takes up to half a minute more. The same command goes
on from there; steps that are complete are left out. The search has `--search` seconds in all, then
rates are chosen among what it has run.

Commands run inside OUT, where `data` and `weights` are links to what is given: their names are part
of what a run is found by, and so are the same on every machine. `--pack FILE` puts complete runs,
results and logs into one archive, at the end and every two minutes; `--unpack FILE` takes them up
elsewhere first. Records are packed of the twenty rounds alone, which the report draws.

    python benchmarks/peer_tables.py --root data --weights vit_tiny_patch16_224.safetensors \\
      --device cuda --out runs/peers --unpack peers.tar.xz --finished --docs docs/results

`--finished` runs nothing and needs no GPU (the device is that of the runs): it writes every table
from the runs that are complete, rows in one order, all streams and seeds. `--docs DIR` copies them
to the names that they have in docs/results. `--list` prints the commands. `--tiny` tries all of it
on a CPU: few methods, two corruptions, four images.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from _peer_tables import LANES, NEEDS, SHOWN, Plan
from _peer_tables_files import complete_runs, pack, publish, read_known, set_up, unpack

GRACE = 12.0
"""Seconds that interrupted rows have to write their checkpoints."""
EVERY = 120.0
"""Seconds from one packing to the next."""
LEAST = 15.0
"""Seconds under which no step begins."""
TRIES = 2
"""Of a step that breaks."""


@dataclass
class Running:
    """A step on its way."""

    step: str
    process: subprocess.Popen[bytes]
    began: float
    until: float
    shows: bool
    asked: bool = False


class Driver:
    """Lanes of steps, what is known of each, and what runs."""

    def __init__(self, plan: Plan, given: argparse.Namespace) -> None:
        self.plan, self.given = plan, given
        self.began = time.monotonic()
        self.stop = self.began + given.seconds
        first, *rest = given.jobs
        self.jobs = {"search": first, **dict(zip(LANES, rest, strict=True))}
        self.waiting = {lane: list(steps) for lane, steps in LANES.items()}
        self.busy: dict[str, Running] = {}
        self.tries: dict[str, int] = {}
        self.known = read_known(plan.folder)

    def say(self, *words: object) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s]", *words, flush=True)

    def work(self) -> None:
        """Run steps until all are done or the time is over."""
        packed = time.monotonic()
        try:
            while (any(self.waiting.values()) or self.busy) and time.monotonic() < self.stop:
                for lane in LANES:
                    self.advance(lane)
                time.sleep(0.2)
                if time.monotonic() - packed > EVERY and self.given.pack:
                    pack(self.plan.folder, self.given.pack)
                    packed = time.monotonic()
        finally:
            for running in self.busy.values():
                ask_to_stop(running)
            for lane, running in list(self.busy.items()):
                self.end(lane, running, interrupt(running))

    def advance(self, lane: str) -> None:
        """End what has ended in a lane, and begin what comes next."""
        running, steps = self.busy.get(lane), self.waiting[lane]
        if running is not None:
            code = running.process.poll()
            if code is None and time.monotonic() > running.until:
                code = interrupt(running)
            if code is not None:
                self.end(lane, running, code)
        elif steps and (lane == "tables" or steps[0] not in NEEDS or self.is_searched()):
            self.begin(lane, steps.pop(0))

    def is_searched(self) -> bool:
        """Whether rates are chosen, or will not be."""
        here = self.busy.get("tables")
        return "search" not in self.waiting["tables"] and (here is None or here.step != "search")

    def begin(self, lane: str, step: str, shows: bool = False) -> None:
        """Start a step, unless it is complete, cannot begin, or too little time is left."""
        if step in NEEDS and not (self.plan.folder / NEEDS[step]).is_file():
            return self.say(step, "cannot begin without", NEEDS[step])
        until, key = self.stop, self.plan.key(step)
        before = self.known.get(step, {})
        if before.get("key") != key:
            before = {}
        if before.get("state") == "complete":
            return self.say(step, "is complete")
        if step == "search" and not shows:
            until = min(until, time.monotonic() + self.given.search - before.get("seconds", 0))
            shows = until - time.monotonic() < LEAST  # its time is spent: rates among what there is
            until = self.stop if shows else until
        if self.stop - time.monotonic() < LEAST:
            return self.say("too little time for", step)
        jobs = self.jobs[step if step == "search" else lane]
        more = ["--finished"] if shows else ["--jobs", str(jobs)]
        words = [*key["command"], *more]
        self.say("begins", step, *more)
        self.known[step] = {"seconds": 0.0, **before, "key": key, "state": "cut off"}
        with (self.plan.folder / "logs" / f"{step}.txt").open("ab") as log:
            log.write(f"ostinato {shlex.join(words)}\n".encode())
            process = start(words, self.plan.folder, log)
        self.busy[lane] = Running(step, process, time.monotonic(), until, shows)
        return None

    def end(self, lane: str, running: Running, code: int) -> None:
        """Keep what became of a step; what broke is tried again, what was cut off is shown."""
        del self.busy[lane]
        step, known = running.step, self.known[running.step]
        interrupted = code in (130, -signal.SIGINT, -signal.SIGKILL)
        if not running.shows:
            known["seconds"] += time.monotonic() - running.began
            known["state"] = "cut off" if interrupted else "failed" if code else "complete"
        (self.plan.folder / "steps.json").write_text(json.dumps(self.known, indent=1) + "\n")
        log = self.plan.folder / "logs" / f"{step}.txt"
        last = log.read_text(errors="replace")[-600:] if code and not interrupted else ""
        self.say(step, "shown" if running.shows else known["state"], last)
        if code == 0 or running.shows or time.monotonic() > self.stop:
            return
        self.tries[step] = self.tries.get(step, 0) + 1
        if not interrupted and self.tries[step] < TRIES:
            self.waiting[lane].insert(0, step)
        elif step in ("search", "main"):  # others wait for what it has
            self.begin(lane, step, shows=True)


def start(words: list[str], folder: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """An `ostinato` command inside a folder, with processes of its own that hear Ctrl-C."""
    paths = [
        str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p
    ]
    environment = {
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(paths),  # relative ones would be looked for in the folder
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ostinato", *words],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ask_to_stop(running: Running) -> None:
    """Ctrl-C for all of a step's processes."""
    if running.process.poll() is None and not running.asked:
        running.asked = True
        os.killpg(running.process.pid, signal.SIGINT)


def interrupt(running: Running) -> int:
    """Stop a step; its exit status."""
    ask_to_stop(running)
    try:
        return running.process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(running.process.pid, signal.SIGKILL)
        return running.process.wait()


def shown(plan: Plan) -> list[tuple[str, list[str]]]:
    """The commands that show what is complete; of those that can begin by now."""
    return [
        (step, [*plan.words(step, shown=True), "--finished"])
        for step in SHOWN
        if step not in NEEDS or (plan.folder / NEEDS[step]).is_file()
    ]


def show(plan: Plan) -> bool:
    """Write every table from complete runs; whether none failed."""
    fine, done = True, list[str]()
    while todo := [(step, words) for step, words in shown(plan) if step not in done]:
        step, words = todo[0]  # a table may let the next one begin
        log = plan.folder / "logs" / f"{step}-finished.txt"
        with log.open("wb") as file:
            code = start(words, plan.folder, file).wait()
        fine &= code == 0
        print(f"{step}: {'shown' if code == 0 else log.read_text()[-600:]}", flush=True)
        done.append(step)
    return fine


def table(plan: Plan) -> str:
    """What is done, in Markdown."""
    known = read_known(plan.folder)
    lines = ["| step | state | seconds |", "|---|---|---:|"]
    for step in (step for steps in LANES.values() for step in steps):
        one = known.get(step, {"state": "not begun", "seconds": 0})
        lines.append(f"| {step} | {one['state']} | {one['seconds']:.0f} |")
    lines += ["", f"{len(complete_runs(plan.folder))} runs are complete in {plan.folder}."]
    for file in sorted((plan.folder / "results").glob("*/*-full.json")):
        rows = [row for row in json.loads(file.read_text())["rows"] if row["origin"] == "measured"]
        lines.append(f"{len(rows)} rows in {file.relative_to(plan.folder)}.")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder of imagenet-val")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then")
    parser.add_argument("--search", type=float, default=300, help="seconds of the search, in all")
    jobs = "rows side by side: of the search, of tables, of traffic, of twenty rounds"
    parser.add_argument("--jobs", type=int, nargs=4, default=(12, 8, 5, 3), help=jobs)
    parser.add_argument("--methods", nargs="*", default=[], help="these alone")
    parser.add_argument("--tiny", action="store_true", help="to try it on a CPU")
    parser.add_argument("--pack", type=Path, help="an archive to write: .tar.xz or .tar.gz")
    parser.add_argument("--unpack", type=Path, nargs="*", default=[], help="archives to begin with")
    parser.add_argument("--finished", action="store_true", help="run nothing, write the tables")
    parser.add_argument("--docs", type=Path, help="copy the tables there, under their names")
    parser.add_argument("--list", action="store_true", help="print the commands as docs show them")
    return parser.parse_args()


def main() -> int:
    """Run what is not done yet, or write the tables of what is."""
    given = parse()
    plan = Plan(given.out, given.device, given.tiny, tuple(given.methods))
    if given.list:
        for _, words in shown(plan):
            print(f"ostinato {shlex.join(words)}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `interrupt`, too
    set_up(given.out, given.root, given.weights)
    unpack(given.unpack, given.out)
    fine = True
    if given.finished:
        fine = show(plan)
    else:
        Driver(plan, given).work()
        fine = all(one["state"] != "failed" for one in read_known(given.out).values())
    if given.pack:
        pack(given.out, given.pack)
    if given.docs:
        print("wrote", *publish(given.out, given.docs))
    print(f"\n{table(plan)}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
