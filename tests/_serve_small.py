"""A server on the embedded model that founds, trusts and learns from few images."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi.testclient import TestClient
from torch import Tensor

from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import embedded_images
from ostinato.serve._unwritten import FEW
from ostinato.serve._wire import choose_parser
from ostinato.serve.app import make_app
from ostinato.serve.fleet import Fleet
from ostinato.serve.loading import Served, load_served
from ostinato.serve.running import listen
from ostinato.serve.settings import Settings

METHOD = {"enough": 8, "micro": 8, "shared_rank": 4, "domain_rank": 2, "buffer": 16}
HOME = "http://127.0.0.1"


@cache
def served(model: str = "embedded", statistics: Path | None = None) -> Served:
    return load_served(
        Settings.parse(
            {"model": model, "statistics": statistics, "device": "cpu", "settings": METHOD}
        )
    )


def settings(folder: Path, **more: Any) -> Settings:
    given = {"data": folder, "threads": 1, "device": "cpu", "settings": METHOD, "port": 0}
    return Settings.parse(given | more)


@contextmanager
def serving(folder: Path, **more: Any) -> Iterator[tuple[TestClient, Fleet]]:
    """A client of a server that runs inside it."""
    fleet = Fleet(
        settings(folder, **more), served(more.get("model", "embedded"), more.get("statistics"))
    )
    with TestClient(make_app(fleet), base_url=HOME, raise_server_exceptions=False) as client:
        yield client, fleet


@contextmanager
def listening(folder: Path, **more: Any) -> Iterator[tuple[str, Fleet]]:
    """The address of a server that listens."""
    chosen = settings(folder, **more)
    fleet, taken = Fleet(chosen, served()), listen(chosen)
    config = uvicorn.Config(
        make_app(fleet), log_config=None, timeout_graceful_shutdown=3, **choose_parser()
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    wait_for(lambda: fleet.ready and server.started)  # ready comes first, then it listens
    try:
        yield f"http://127.0.0.1:{taken.getsockname()[1]}", fleet
    finally:
        server.should_exit = fleet.leaving = True
        thread.join()
        taken.close()


def wait_for(done: Callable[[], Any]) -> None:
    while not done():
        time.sleep(0.005)


@cache
def noisy(count: int = 64, kind: str = "gaussian_noise") -> Tensor:
    images = embedded_images("tune")[0][:count]
    found = corrupt(images, kind, 5, list(range(count)), constants="cifar")
    return found if found.dtype == torch.uint8 else (found * 255).round().to(torch.uint8)


def batches(count: int, size: int = 8, kind: str = "gaussian_noise") -> list[Tensor]:
    return list(noisy(count * size, kind).split(size))


def npy(images: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, np.asarray(images))
    return data.getvalue()


def ask(client: TestClient, stream: str, images: Any, **query: Any) -> Any:
    return client.post(
        f"/v1/streams/{stream}/predict",
        params=query,
        content=npy(images),
        headers={"content-type": "application/x-npy"},
    )


def known(fleet: Fleet) -> None:
    """Let it know that updates and the disk are quick, as after some time: it then writes late."""
    for _ in range(FEW):
        fleet.promise.learned(0.0)
    fleet.promise.wrote(0.0)


def teach(
    client: TestClient, fleet: Fleet, stream: str, given: list[Tensor], start: int = 0
) -> None:
    """Ask, and wait until each request was learned from."""
    for number, images in enumerate(given, start):
        answer = ask(client, stream, images, sequence=number)
        assert answer.status_code == 200, answer.text
        wait_for(lambda: not fleet.streams[stream].waiting)
        fleet.learner.ask(lambda: None).result()  # it has finished what it had begun
