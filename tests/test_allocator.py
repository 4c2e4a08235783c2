"""Free memory goes back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ostinato
from ostinato.checks import small_batches, small_model
from ostinato.checks._building import builder
from ostinato.methods import answering
from ostinato.methods import ostinato as learner
from ostinato.ops import allocator
from ostinato.ops.allocator import _Held, _resident, give_back, hold_little
from ostinato.registry import METHODS
from ostinato.soak._memory import memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")


def scattered(share: float) -> list[Tensor]:
    """Pieces of 64 kB, all that is left of as many bytes as a share of the process."""
    many = [torch.ones(16_000) for _ in range(int(share * _resident() / 64_000))]
    return many[::50]


@glibc
@proc
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


@glibc
@proc
def test_batches_hold_little_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_held", _Held())
    adapted, batch = ostinato.adapt(small_model(), "tent"), small_batches(1)[0]
    adapted(batch)
    give_back()
    rest, kept = _resident(), list[Tensor]()
    for _ in range(6):
        kept += scattered(1 / 6)
        adapted(batch)
        used = sum(one.nbytes for one in kept)
        assert _resident() < 1.12 * rest + used  # a tenth, and what the batch itself may leave


@pytest.mark.parametrize("way", ["step", "learn"])
def test_whatever_learns_holds_little(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted, asked = builder("ostinato", METHODS["ostinato"], {})(), list[int]()
    for module in (answering, learner):
        monkeypatch.setattr(module, "hold_little", lambda: asked.append(1))
    batch = small_batches(1)[0]
    adapted.predict(batch)
    assert not asked
    adapted.learn() if way == "learn" else adapted.step(batch)
    assert len(asked) == 1


@glibc
@proc
def test_what_one_update_frees_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_held", _Held())
    give_back()
    kept = scattered(1 / 16)
    before = _resident()
    assert not hold_little()
    assert _resident() == pytest.approx(before, rel=0.01)
    kept += scattered(1 / 5)
    assert hold_little()
    assert _resident() < 1.1 * before


def of_sizes(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    """A process that has these sizes one after the other, as they are asked for."""
    known = iter(sizes)
    monkeypatch.setattr(allocator, "_held", _Held())
    monkeypatch.setattr(allocator, "_resident", lambda: next(known))
    monkeypatch.setattr(allocator, "_trim", lambda: lambda _: 1)


def test_rest_is_the_least_since_pages_went_back(monkeypatch: pytest.MonkeyPatch) -> None:
    of_sizes(monkeypatch, 1000, 1100, 800, 879, 880, 881, 850, 935, 936, 936)
    # 881 is more than a tenth above 800; what is left then, 850, is at rest from there on.
    assert [hold_little() for _ in range(8)] == [False] * 5 + [True] + [False, True]


def test_batches_that_all_take_much_are_let_be_for_the_most_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_sizes(monkeypatch, 100, *(150, 100) * 1000)
    hold_little()
    found = []
    for _ in range(200):
        found.append(hold_little())
        if not found[-1]:
            allocator._resident()  # as small again before the next batch
    assert all(found[:8])
    assert sum(found[40:]) == 160 / 8


def test_a_system_that_does_not_tell_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(allocator, "_STATM", tmp_path / "none")
    assert _resident() == 0
    assert not hold_little()
