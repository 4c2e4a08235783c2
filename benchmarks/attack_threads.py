"""Threads that do everything to one method at once, for minutes."""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from attack_count import Count

from ostinato.checks import small_batches
from ostinato.checks._building import builder, run, same, taken_back
from ostinato.errors import InputError
from ostinato.methods.base import Method
from ostinato.registry import METHODS

THREADS = 8


def thread_attack(name: str, seconds: float, seed: int, place: Path) -> list[Count]:
    """Eight threads on one method; afterwards a reset, a run and an unwrap have to be exact."""
    count = Count(f"calls by {THREADS} threads, {name}")
    build = builder(name, METHODS[name], {})
    method, end = build(), time.monotonic() + seconds
    lock = threading.Lock()

    def work(number: int) -> None:
        draw = random.Random(1000 * seed + number)
        ways = actions(method, place / f"{name}-{number}.safetensors", draw)
        while time.monotonic() < end:
            try:
                draw.choice(ways)()
                bad = False
            except Exception:
                bad = True
                traceback.print_exc()
            with lock:
                count.tried += 1
                count.tracebacks += bad

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    method.reset()
    batches = small_batches(4)
    count.changed += not same(run(method, batches), run(build(), batches))
    problem = taken_back(method)
    if problem:
        print(f"{name}: {problem}", file=sys.stderr)
        count.leftovers += 1
    return [count]


def actions(method: Method, path: Path, draw: random.Random) -> list[Callable[[], object]]:
    """What a thread may do; each of them has to work whatever the others do."""
    batches = small_batches(12, size=4)

    def refuse() -> None:
        try:
            method(torch.full((2, 3, 32, 32), float("nan")))
        except InputError:
            return
        raise AssertionError("NaN was accepted")

    def keep() -> None:
        method.save(path)
        method.load(path)

    def frozen() -> None:
        with method.frozen():
            method.predict(draw.choice(batches))

    usual: list[Callable[[], object]] = [
        lambda: method(draw.choice(batches)),
        lambda: method.predict(draw.choice(batches), source=draw.random() < 0.2),
        method.learn,
        method.summary,
        refuse,
        frozen,
    ]
    return [*(3 * usual), keep, method.reset]
