"""Memory that nobody uses, back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

_ARENA_MAX = -8
"""What glibc's `mallopt` calls the number of places that threads allocate from."""


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
    milliseconds, so it is called where states are saved and loaded, and not between batches.
    """
    trim = _trim()
    return trim is not None and bool(trim(0))


def share_arenas(count: int = 1) -> bool:
    """Let all threads allocate from one place, or a few; whether the C library does so.

    Each thread has one of its own otherwise, and what one frees there no other uses. To be called
    by a process that owns itself, before its threads begin.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, count))
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
