"""A sharded server in one process: actors that are plain objects, and can be killed."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ostinato.scale._calls import Call
from ostinato.scale._keeper import Keeper
from ostinato.scale.shard import Shard

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
npy, served, settings = small["npy"], small["served"], small["settings"]
batches, wait_for = small["batches"], small["wait_for"]
HOST = ((b"host", b"127.0.0.1"), (b"content-type", b"application/x-npy"))


class Gone(Exception):
    """What is raised where an actor's process is gone."""


class Method:
    """One method of an actor; its calls run in threads, as those of an actor do."""

    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    async def remote(self, *values: Any) -> Any:
        one = self.actor.one
        if one is None:
            raise Gone
        found = await asyncio.to_thread(getattr(one, self.name), *values)
        if one is not self.actor.one:
            raise Gone
        return found


class Actor:
    """Stands for a Ray actor."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.one = make, make()

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def kill(self) -> Any:
        """It is gone, as far as others can see; what it was is returned, and lives on."""
        before, self.one = self.one, None
        return before

    def restart(self) -> None:
        self.one = self.make()


def keeper(folder: Path, **more: Any) -> Keeper:
    return Keeper(settings(folder, **more))


def asking(one: Keeper) -> Callable[..., Any]:
    return lambda name, *values: getattr(one, name)(*values)


def shard(one: Keeper, number: int, leave: Callable[[], None] | None = None) -> Shard:
    return Shard(one.settings, number, asking(one), served(), leave)


def predict(name: str, images: Any, query: bytes = b"") -> Call:
    path = f"/v1/streams/{name}/predict"
    return Call("POST", path, query, HOST, npy(images), ("127.0.0.1", 1))


def get(path: str) -> Call:
    return Call("GET", path, b"", HOST, b"", ("127.0.0.1", 1))
