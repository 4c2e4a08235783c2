"""What the Ray engine costs a table on this machine, beside two processes.

    python benchmarks/ray_overhead.py --methods source tent cotta ostinato:robust --seeds 2025 2026

Both run at the same time, so that whatever else the machine does slows both alike; each has its own
folder. Printed are the seconds until each ended and the CPU seconds of all its processes, which
include the start of Ray.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = "import sys; from ostinato.cli import main; main(sys.argv[1:])"
TICKS = os.sysconf("SC_CLK_TCK")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="imagenet-c")
    parser.add_argument("--methods", nargs="*", default=("source", "tent", "cotta"))
    parser.add_argument("--seeds", nargs="*", default=("2025", "2026"))
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--in-turn", action="store_true", help="one after the other instead")
    return parser.parse_args()


@dataclass
class Side:
    """One of the two, and the CPU time of every process that it has started."""

    name: str
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    spent: dict[int, float] = field(default_factory=dict)

    def look(self, parents: dict[int, int], times: dict[int, float]) -> None:
        if self.process.poll() is not None and self.ended is None:
            self.ended = time.monotonic()
        mine = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        self.spent |= {pid: times[pid] for pid in mine if pid in times}


def processes() -> tuple[dict[int, int], dict[int, float]]:
    """The parent and the CPU seconds of every process."""
    parents, times = {}, {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                words = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(place.name)] = int(words[1])
            times[int(place.name)] = (int(words[11]) + int(words[12])) / TICKS
    return parents, times


def start(name: str, flags: list[str], given: argparse.Namespace, place: Path) -> Side:
    words = ["table", given.table, "--methods", *given.methods, "--seeds", *given.seeds]
    words += ["--set", f"data.limit={given.limit}", "device=cpu", "--out", str(place / name)]
    log = (place / f"{name}.log").open("wb")
    command = [sys.executable, "-c", COMMAND, *words, *flags]
    return Side(name, subprocess.Popen(command, stdout=log, stderr=log))


def finish(sides: list[Side]) -> None:
    while any(side.ended is None for side in sides):
        found = processes()
        for side in sides:
            side.look(*found)
        time.sleep(0.2)


def main() -> None:
    given = parse()
    kinds = (("jobs", ["--jobs", "2"]), ("ray", ["--engine", "ray"]))
    with tempfile.TemporaryDirectory() as place:
        sides: list[Side] = []
        for name, flags in kinds:
            sides.append(start(name, flags, given, Path(place)))
            if given.in_turn:
                finish(sides[-1:])
        finish(sides)
        for side in sides:
            if side.process.returncode:
                raise SystemExit((Path(place) / f"{side.name}.log").read_text()[-2000:])
    seconds = {side.name: (side.ended or 0) - side.began for side in sides}
    spent = {side.name: sum(side.spent.values()) for side in sides}
    for name in ("jobs", "ray"):
        print(f"{name}: {seconds[name]:.0f} s, {spent[name]:.0f} CPU s")
    print(f"ray / jobs: {seconds['ray'] / seconds['jobs']:.2f} of the time, "
          f"{spent['ray'] / spent['jobs']:.2f} of the CPU time; load {os.getloadavg()[0]:.0f} on "
          f"{os.cpu_count()} cores")  # fmt: skip


if __name__ == "__main__":
    main()
