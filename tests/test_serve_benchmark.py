"""What benchmarks of a server are made of: callers, and the library beside it."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ostinato import adapt
from ostinato.data.embedded import STATISTICS, asset_path, embedded_model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
serving: Any = runpy.run_path(str(BENCHMARKS / "_serving.py"))


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


def test_the_library_is_timed_with_what_a_stream_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state without domains has less to compute than the streams that it is compared to."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    plain = runpy.run_path(str(BENCHMARKS / "_serve_plain.py"))["plain"]
    noise = torch.from_numpy(serving["images"](64)[1])
    adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS))
    for part in noise.split(16):
        adapted.predict(part)
        adapted.learn()
    adapted.save(tmp_path / "state.safetensors")
    exported = (tmp_path / "state.safetensors").read_bytes()
    server = SimpleNamespace(get=lambda _: (200, exported))
    given = SimpleNamespace(model="embedded", batch=16, images=8)
    bodies = [serving["as_npy"](part.numpy()) for part in noise[:32].split(8)]
    (_, learned), (_, begun) = plain(server, given, tmp_path, bodies)
    with adapted.frozen():
        expected = adapted.predict(torch.cat([noise[:8], noise[16:24]]))
    assert torch.allclose(learned(), expected, atol=1e-5)
    assert not torch.allclose(begun(), expected, atol=1e-2)
