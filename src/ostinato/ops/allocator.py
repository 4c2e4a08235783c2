"""Memory that nobody uses, back to the system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

_ARENA_MAX = -8
"""What glibc's `mallopt` calls the number of places that threads allocate from."""
_STATM = Path("/proc/self/statm")
_SLACK = 8
"""The part of its memory at rest that a process may hold beside it: one in so many."""
_rest: int | None = None
"""Bytes that the process had when free pages last went back, or less if it has had less since."""


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
    global _rest
    trim = _trim()
    if trim is None:
        return False
    found = bool(trim(0))
    _rest = resident()
    return found


def hold_little() -> bool:
    """Return free pages once there are many; whether it came to that.

    What an update frees is used again by the next one, so it may stay: up to an eighth of what the
    process had when pages last went back. Beyond that it is not one update's, but what many left
    behind in places of their own, and would go on growing. Takes microseconds where nothing is due.
    """
    global _rest
    now = resident()
    if not now or _trim() is None:
        return False
    _rest = now if _rest is None else min(_rest, now)
    if now - _rest <= _rest // _SLACK:
        return False
    give_back()
    return True


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def share_arenas(count: int = 2) -> bool:
    """Let all threads allocate from a few places; whether the C library does so.

    Each thread has one of its own otherwise, and what one frees there no other uses. To be called
    by a process that owns itself, before its threads begin.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, count))
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
