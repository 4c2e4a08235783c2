"""An attack on files, processes, inputs and threads: what gets through, what is left behind.

    python benchmarks/attack.py --mutations 500 --kills 20 --inputs 100 --minutes 0.2 --jobs 2

State files are damaged byte by byte, and changed and signed again; saves and runs are killed; the
command gets inputs that it has to refuse; eight threads use one method for minutes. The table at
the end should hold noughts alone but for its first column.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from attack_cli import cli_attack
from attack_count import Count, joined, show
from attack_kills import kill_attack
from attack_state import state_attack
from attack_threads import thread_attack

THREADED = ("ostinato", "dual_expert", "tent")
Task = tuple[Callable[..., list[Count]], Any, int]


def tasks(given: argparse.Namespace) -> Iterator[Task]:
    """The whole attack in about `jobs` pieces of each kind, with a seed for each; longest first."""
    for name in THREADED if given.minutes > 0 else ():
        yield thread_attack, (name, 60 * given.minutes), given.seed
    pieces = max(1, given.jobs)
    for number, share in enumerate(_shares(given.kills, pieces)):
        yield kill_attack, share, given.seed + number
    for number, share in enumerate(_shares(given.inputs, pieces)):
        start = sum(_shares(given.inputs, pieces)[:number])
        yield cli_attack, range(start, start + share), given.seed + number
    for number, share in enumerate(_shares(given.mutations, pieces)):
        yield state_attack, share, given.seed + number


def _shares(total: int, pieces: int) -> list[int]:
    """Whole numbers that add up to the total.

    >>> _shares(7, 3)
    [3, 2, 2]
    """
    return [total // pieces + (n < total % pieces) for n in range(pieces)]


def attack(task: Task) -> list[Count]:
    """One piece, in a folder of its own."""
    import torch

    torch.set_num_threads(1)
    work, what, seed = task
    with tempfile.TemporaryDirectory() as folder:
        if work is thread_attack:
            return work(*what, seed, Path(folder))
        return work(what, random.Random(seed), Path(folder))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("mutations", 500), ("kills", 20), ("inputs", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--minutes", type=float, default=0.0, help="of threads; 0 for none")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    every = [task for task in tasks(given) if task[1]]
    if given.jobs == 1:
        found = [attack(task) for task in every]
    else:
        with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
            found = list(pool.map(attack, every))
    rows = joined(row for part in found for row in part)
    print(show(rows))
    return int(not all(row.clean for row in rows))


if __name__ == "__main__":
    sys.exit(main())
