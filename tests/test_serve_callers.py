"""The callers that load a server in benchmarks."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

serving: Any = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "_serving.py"))


def naps_of(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a caller sleeps between requests that are answered at once."""
    naps = list[float]()
    monkeypatch.setattr(time, "sleep", naps.append)
    note = serving["Note"]("cam-0", 0, 0, 200, 0.0)
    monkeypatch.setattr(serving["Caller"], "_ask", lambda *_: note)
    bodies = [b""] * len(serving["WEATHERS"])
    until = time.monotonic() + 1e6
    options = {"kind": "", "pause": 0.2, "turns": 1000, "seed": seed}
    serving["Caller"](1, ["cam-0"], bodies, until, **options).run()
    return naps


def test_callers_do_not_fall_into_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that one forward answered would share the next one too, and wait for all of it."""
    first, second = (naps_of(seed, monkeypatch) for seed in (0, 1))
    together = mean(abs(one - other) < 0.02 for one, other in zip(first, second, strict=True))
    assert together < 0.2
    assert mean(first) == pytest.approx(0.2, rel=0.1)
