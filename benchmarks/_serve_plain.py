"""The same images without a server: the library's `predict`, or a plain forward on a GPU."""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _serving import Server

Work = tuple[str, Callable[[], Any]]
"""What one batch is answered by, and how."""


def pace(work: Callable[[], Any], given: argparse.Namespace) -> float:
    """Images a second."""
    cores = os.sched_getaffinity(0)
    if given.cores is not None:
        os.sched_setaffinity(0, sorted(cores)[: given.cores])
    for _ in range(3):
        work()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < given.turn:
        work()
        count += given.batch
    os.sched_setaffinity(0, cores)
    return count / (time.perf_counter() - began)


def plain(
    server: Server, given: argparse.Namespace, folder: Path, bodies: list[bytes]
) -> list[Work]:
    """What one batch is answered by, and how.

    The library answers images of all weathers, once with what the first stream has learned and once
    as it begins: experts that act take time, there as here.
    """
    if given.model != "embedded":
        return [("the plain forward", _forward(given, folder))]
    count = given.batch // given.images
    chosen = bodies[:: len(bodies) // count][:count]
    batch = torch.from_numpy(np.concatenate([np.load(io.BytesIO(body)) for body in chosen]))
    state = folder / "learned.safetensors"
    state.write_bytes(server.get("/v1/streams/cam-0/export")[1])
    return [
        ("the library's predict with a stream's state", _predict(batch, state)),
        ("the library's predict as it begins", _predict(batch)),
    ]


def _predict(batch: torch.Tensor, state: Path | None = None) -> Callable[[], Any]:
    from ostinato import adapt
    from ostinato.data.embedded import STATISTICS, asset_path, embedded_model

    adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS))
    if state is not None:
        adapted.load(state)

    def predict() -> Any:
        with adapted.frozen():
            return adapted.predict(batch)

    return predict


def _forward(given: argparse.Namespace, folder: Path) -> Callable[[], Any]:
    """The model alone, in the server's precision, on images that are on the device already."""
    from ostinato.serve.loading import load_served
    from ostinato.serve.settings import Settings

    model = load_served(Settings.from_yaml(folder / "serve.yaml")).model
    batch = torch.rand(given.batch, 3, 224, 224, device=model.device)
    kind, half = model.device.type, given.precision == "bf16"

    def forward() -> Any:
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=half):
            return model(batch).float().cpu()

    return forward
