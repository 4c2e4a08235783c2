"""The same images without a server: the library's `predict`, or a plain forward on a GPU."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _serving import images

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


def plain(given: argparse.Namespace, folder: Path) -> Work:
    """What one batch is answered by, and how."""
    if given.model != "embedded":
        return "the plain forward", _forward(given, folder)
    from ostinato import adapt
    from ostinato.data.embedded import STATISTICS, asset_path, embedded_model

    adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS))
    batch = torch.from_numpy(images(given.batch)[1][: given.batch])

    def predict() -> Any:
        with adapted.frozen():
            return adapted.predict(batch)

    return "the library's predict", predict


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
