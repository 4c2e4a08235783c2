"""What a process's memory is made of, so that growth can be told from what is merely held."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip


class _Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


@dataclass(frozen=True)
class Memory:
    """Bytes of this process.

    Attributes:
        total: in memory, all told.
        files: of libraries and files that are mapped; code comes in when it first runs.
        used: that the C allocator has handed out: tensors, above all.
        idle: that it holds on to for later; 0 where it does not tell.

    What is left is Python's own objects and what libraries keep for themselves.

    >>> Memory(total=900, files=300, used=400, idle=100).used
    400
    """

    total: int
    files: int
    used: int
    idle: int


def memory() -> Memory:
    """The present one."""
    page = os.sysconf("SC_PAGE_SIZE")
    _, total, files = Path("/proc/self/statm").read_text().split()[:3]
    used, idle = _allocated()
    return Memory(int(total) * page, int(files) * page, used, idle)


def _allocated() -> tuple[int, int]:
    """What glibc's allocator says: bytes in use, bytes free but held."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # another C library
        return 0, 0
    ask.restype = _Allocated
    found = ask()
    return int(found.uordblks) + int(found.hblkhd), int(found.fordblks)
