"""Free memory goes back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from ostinato.ops import allocator
from ostinato.ops.allocator import give_back
from ostinato.soak.memory import memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


@glibc
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
def test_what_lies_between_used_memory_goes_back():
    many = [torch.ones(16_000) for _ in range(2000)]  # 64 kB each: on the heap
    kept = many[::50]
    del many
    before = memory()
    give_back()
    after = memory()
    assert after.total < before.total - 50 * 2**20
    assert after.used == pytest.approx(before.used, rel=0.1)
    assert float(sum(one.sum() for one in kept)) == 16_000 * len(kept)


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator, "_trim", lambda: None)
    assert give_back() is False


def test_threads_share_arenas_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, what: int, value: int) -> int:
            asked.append((what, value))
            return 1

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: Library())
    assert allocator.share_arenas(3)
    assert asked == [(-8, 3)]
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())
    assert not allocator.share_arenas()
