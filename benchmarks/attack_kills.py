"""Kills during saves and runs: what is left has to be whole, and a run has to end the same."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attack_count import Count
from attack_state import same

from ostinato.errors import OstinatoError
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.running.results import RunFolder
from ostinato.running.runner import run
from ostinato.running.spec import Spec

TINY: dict[str, Any] = {
    "method": "tent", "stream": "recurring", "batch_size": 4, "device": "cpu",
    "data": {"domains": ["fog", "contrast"], "limit": 12, "rounds": 2},
}  # fmt: skip


def kill_attack(kills: int, draw: random.Random, place: Path) -> list[Count]:
    """Half of the kills hit saves, half hit a run."""
    saves, runs = Count("kills during save"), Count("kills during run")
    path = place / "killed.safetensors"
    states = [State({"a": torch.full((200_000,), float(n))}, {"n": n}) for n in range(2)]
    for _ in range(kills - kills // 2):
        save_state(path, states[0], {})
        _killed(lambda: [save_state(path, states[n % 2], {}) for n in range(10_000)], draw, 0.05)
        saves.tried += 1
        try:
            found, _ = load_state(path)
            saves.accepted += not same(found, states[int(found.values["n"])])
        except OstinatoError:
            saves.accepted += 1
        save_state(path, states[0], {})
        saves.leftovers += sum(p.suffix == ".tmp" for p in place.iterdir())
    spec = Spec.parse(TINY)
    (whole,) = run(spec, out=place / "whole", quiet=True)
    wanted = [record.content() for record in whole.records()]
    for number in range(kills // 2):
        out = place / f"run{number}"
        _killed(lambda: run(spec, out=out, every=2, quiet=True), draw, 1.5)  # noqa: B023
        runs.tried += 1
        try:
            (again,) = run(spec, out=out, every=2, quiet=True)
            runs.accepted += [r.content() for r in RunFolder.open(again.path).records()] != wanted
        except Exception:
            runs.tracebacks += 1
            traceback.print_exc()
        runs.leftovers += len(list(out.glob("**/*.tmp")))
    return [saves, runs]


def _killed(work: Callable[[], Any], draw: random.Random, most: float) -> None:
    child = os.fork()
    if child == 0:
        with contextlib.redirect_stderr(io.StringIO()):
            work()
        os._exit(0)
    time.sleep(draw.random() * most)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
