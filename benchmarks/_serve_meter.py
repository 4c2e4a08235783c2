"""Where a server's time goes, from outside: its own figures and what the system counts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from _serving import Server

FIGURES = {
    "forward": "ostinato_forward_seconds_total",
    "images": "ostinato_forward_images_sum",
    "forwards": "ostinato_forward_images_count",
    "learning": "ostinato_learning_seconds_total",
}


@dataclass(frozen=True)
class Reading:
    """Totals at one moment: seconds, and counts of forwards and their images."""

    at: float
    forward: float
    images: float
    forwards: float
    learning: float
    http: float
    process: float


def read(server: Server) -> Reading:
    """The totals of a server now."""
    known = dict[str, float]()
    for line in server.get("/metrics")[1].decode().splitlines():
        name, _, value = line.partition(" ")
        if name in FIGURES.values():
            known[name] = float(value)
    found = {key: known.get(name, 0.0) for key, name in FIGURES.items()}
    process = Path(f"/proc/{server.pid}")
    first = process / "task" / str(server.pid) / "stat"  # the thread that the event loop runs in
    return Reading(time.monotonic(), http=_spent(first), process=_spent(process / "stat"), **found)


def _spent(stat: Path) -> float:
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def told(before: Reading, after: Reading) -> str:
    """What the time between two readings was spent on, and what bounds it.

    >>> told(Reading(0, 0, 0, 0, 0, 0, 0), Reading(10, 9.5, 640, 10, 1, 3, 12))[-16:]
    'the forwards do.'
    """
    took = after.at - before.at
    forward, http, learning, process = (
        (getattr(after, key) - getattr(before, key)) / took
        for key in ("forward", "http", "learning", "process")
    )
    count = max(after.forwards - before.forwards, 1)
    pace, size = (after.images - before.images) / took, (after.images - before.images) / count
    if forward > 0.9:
        bound = "the forwards do"
    elif http > 0.85:
        bound = "the thread of the event loop does"
    else:
        bound = "neither forwards nor the event loop: callers, or threads that wait for each other"
    return (
        f"{pace:.0f} images/s in forwards of {size:.0f}; a forward was under way {forward:.2f} of "
        f"the time, learning {learning:.2f}; CPU: event loop {http:.2f}, whole process "
        f"{process:.2f} cores. What bounds it: {bound}."
    )
