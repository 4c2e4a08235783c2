"""Memory that nobody uses, back to the system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_STATM = Path("/proc/self/statm")
_SLACK = 10
"""The part of its memory at rest that a process may hold beside it: one in so many."""
_SELDOM = 8
"""Batches for each time that pages go back between them, in the long run; so many times at once."""


@dataclass
class _Held:
    """What is known of this process's memory.

    Attributes:
        rest: bytes when free pages last went back, or less if there has been less since.
        turns: how many times they may go back before batches have to go by again.

    >>> _Held().turns
    8.0
    """

    rest: int | None = None
    turns: float = float(_SELDOM)


_held = _Held()


@cache
def _trim() -> Callable[[int], int] | None:
    """The C library's own way, where it has one."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # not glibc
        return None
    return found


def give_back() -> bool:
    """Return free pages to the system; whether there were any, as far as that is known.

    Whole states are copied to be written and read, and images of many sizes come and go: what the
    allocator then holds on to lies scattered between what is in use, and adds up over days. Takes
    milliseconds, and pages that are wanted again cost more than that: it is called where states
    are saved and loaded, and between batches only as `hold_little` says.
    """
    trim = _trim()
    if trim is None:
        return False
    found = bool(trim(0))
    _held.rest = _resident()
    return found


def hold_little() -> bool:
    """Return free pages once there are many; whether it came to that. To be called after a batch.

    What an update frees is used again by the next one, so it may stay: up to a tenth of what the
    process had when pages last went back. Beyond that it is mostly what many updates left behind,
    each in places of its own, and would go on growing. Where every single batch takes that much,
    pages go back after one in eight, so that getting them again costs little. Takes microseconds
    where nothing is due.
    """
    now = _resident()
    if not now or _trim() is None:
        return False
    rest = _held.rest = now if _held.rest is None else min(_held.rest, now)
    _held.turns = min(_held.turns + 1 / _SELDOM, _SELDOM)
    if now - rest <= rest // _SLACK or _held.turns < 1:
        return False
    _held.turns -= 1
    give_back()
    return True


def _resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
