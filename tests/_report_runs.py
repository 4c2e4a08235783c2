"""Synthetic runs for the report's tests: known answers, decisions and descriptors on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.running.provenance import Provenance
from ostinato.running.results import RunFolder
from ostinato.running.samples import write_diagnostics
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise

ORIGIN = Provenance(
    versions={"ostinato": "0"}, weights="w" * 16, data="d" * 16, date="2026-01-01T00:00:00+00:00"
)


def make_run(
    root: Path,
    method: str = "source",
    *,
    preset: str | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 1,
    domains: Sequence[str] = ("fog", "snow"),
    rounds: int = 3,
    batches: int = 3,
    error: float = 0.4,
    decide: bool = False,
    described: bool = True,
    pixels: bool = False,
    complete: bool = True,
    **more: Any,
) -> Path:
    """Write a run and return its folder."""
    spec = {
        "method": method, "preset": preset, "settings": settings or {}, "seeds": [seed],
        "model": "embedded", "normalize": "model", "stream": "recurring", "batch_size": 10,
        "data": {"domains": list(domains), "seed": seed}, **more,
    }  # fmt: skip
    draw = np.random.default_rng(seed * 1000 + len(method) + len(str(settings)) + len(str(preset)))
    name = f"{method}-{preset}-{seed}-{len(list(root.glob('*')))}"
    folder = RunFolder.create(root / name, spec, ORIGIN)
    with folder:
        places = [
            (n, d) for n in range(rounds) for d in range(len(domains)) for _ in range(batches)
        ]
        for index, (number, domain) in enumerate(places):
            row = _pixels(draw) if pixels else _images(draw, error)
            if decide:
                row |= _decision(index, number, domain, draw, described, pixels)
            folder.append(
                Record(run=folder.hash, index=index, round=number, domain=domains[domain],
                       seconds=0.05, trained=100 * decide, **row)
            )  # fmt: skip
        if decide:
            write_diagnostics(folder, {"blocks": _blocks(draw, len(domains))})
        if complete:
            folder.complete(summarise(folder.records()))
    return folder.path


def _images(draw: np.random.Generator, error: float) -> dict[str, Any]:
    hits = "".join("0" if wrong else "1" for wrong in draw.random(10) < error)
    return {
        "images": 10, "counted": 10, "correct": hits.count("1"), "hits": hits,
        "confidence": tuple(round(float(c), 5) for c in draw.uniform(0.3, 1, 10)),
    }  # fmt: skip


def _pixels(draw: np.random.Generator) -> dict[str, Any]:
    counts = tuple(tuple(int(n) for n in draw.integers(1, 50, 4)) for _ in range(2))
    right = sum(c[0] + c[3] for c in counts)
    return {
        "images": 2, "counted": sum(map(sum, counts)), "correct": right, "classes": 2,
        "confusion": counts,
    }  # fmt: skip


def _decision(
    index: int, number: int, domain: int, draw: np.random.Generator, described: bool, pixels: bool
) -> dict[str, Any]:
    new = number == 0 and bool(draw.random() < 0.3 or index == 0)
    found = {
        "domain": domain, "is_new": new, "threshold": 0.16,
        "distance": None if index == 0 else round(float(draw.random()), 4),
        "distances": tuple((d, 0.1) for d in range(domain)),
    }  # fmt: skip
    trust = [0.0, *draw.choice([0.1, 0.2, 0.3], 9)]
    centre = np.full(6, 4.0 * domain) + draw.normal(0, (1, 0.6, 0.3, 0.2, 0.1, 0.1))
    return {
        "decision": found,
        "descriptor": tuple(centre.round(3)) if described else (),
        "trust": () if pixels else tuple(float(value) for value in trust),
    }


def _blocks(draw: np.random.Generator, domains: int) -> dict[str, Any]:
    """Distances of four blocks, halved by the experts."""
    found = {}
    for number in range(domains):
        before = draw.uniform(0.5, 2, 4).round(4)
        found[str(number)] = {
            "images": 90, "trust": 0.2, "before": before.tolist(), "after": (before / 2).tolist(),
        }  # fmt: skip
    return found
