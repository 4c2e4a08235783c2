"""A shard: a server's whole fleet for a part of the streams, as a Ray actor.

Its constructor takes the shard's next epoch and loads the newest states, so that a start after a
kill, on whatever machine, is the same as any other.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from ostinato.errors import StateError
from ostinato.scale._calls import Call, Reply, answer
from ostinato.scale._keeper import Full
from ostinato.scale._remote import RemoteStore, ShardWriter
from ostinato.scale.fence import Fenced
from ostinato.serve.app import make_app
from ostinato.serve.fleet import Fleet, TooMany
from ostinato.serve.loading import Served, load_served
from ostinato.serve.settings import Settings, StreamOptions
from ostinato.serve.store import StorageError, StreamRow

_PATIENCE = 60.0
"""Seconds to wait for the keeper, for the learner, or until all is written."""
_READING = ("begin", "rows", "load")
"""What waits for a keeper that comes back; what is to be written waits in the writer."""
_STALE = 3
"""Exit status of a shard that found itself replaced."""


class Shard:
    """Some of a server's streams.

    Args:
        settings: of the server.
        number: of the shard.
        ask: how to reach the keeper.
        served: the model; loaded unless given.
        leave: called where a newer start of this shard has taken over; ends the process by default.
    """

    def __init__(
        self,
        settings: Settings,
        number: int,
        ask: Callable[..., Any],
        served: Served | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        began = time.monotonic()
        self.number = number
        served = served or load_served(settings)
        self.store = RemoteStore(ask, number)
        writer = ShardWriter(self.store, settings, leave or _leave, self._lost)
        self.fleet = Fleet(settings.replace(streams={}, log=None), served, self.store, writer)
        self.app = make_app(self.fleet)
        self.fleet.start()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="shard", daemon=True).start()
        self.seconds = time.monotonic() - began

    def ready(self) -> dict[str, Any]:
        """Who this is, once it answers."""
        return {
            "pid": os.getpid(),
            "epoch": self.store.epoch,
            "seconds": self.seconds,
            "lost": sum(stream.lost for stream in self.fleet.streams.values()),
        }

    def handle(self, call: Call) -> Reply:
        """Answer a request as the server of one process does."""
        return asyncio.run_coroutine_threadsafe(answer(self.app, call), self._loop).result()

    # Streams that come and go.

    def create(self, name: str, options: StreamOptions) -> None:
        """Make a stream, where there is none."""
        self.fleet.create(name, options.preset, frozen=options.frozen, exist_ok=True)

    def give(self, name: str) -> str | None:
        """Let a stream go: learn what waits, write its state, forget it here.

        Whoever asks sends no more requests of this stream. Returns the version that was written;
        None where there is no such stream.
        """
        stream = self.fleet.streams.get(name)
        if stream is None:
            return None
        until = time.monotonic() + _PATIENCE
        while stream.waiting and not stream.frozen and time.monotonic() < until:
            time.sleep(0.01)
        gone, written = False, None
        while not gone:
            gone, written = self.fleet.learner.ask(lambda: self._written(name)).result(_PATIENCE)
            if not gone and time.monotonic() > until:
                raise StateError(f"The state of {name!r} cannot be written: it stays here.")
            time.sleep(0.0 if gone else 0.1)
        if written is not None:
            written.result(_PATIENCE)
        self.fleet.writer.flush(_PATIENCE)
        return stream.version

    def _written(self, name: str) -> tuple[bool, Any]:
        """Between two updates: the last state, after which nothing here changes it.

        Returns whether the stream is let go, and what tells that its state is written. A state that
        could not be written a moment ago has to wait its turn, and the stream with it.
        """
        stream = self.fleet.streams[name]
        done = self.fleet.snapshot(stream) if stream.dirty else None
        if stream.dirty:
            return False, None
        stream.frozen = True
        stream.drop_waiting()
        del self.fleet.streams[name]
        return True, done

    def take(self, row: StreamRow, epoch: int) -> str:
        """Take a stream over, as its newest state has it."""
        self.store.claims[row.id] = epoch
        self.fleet.streams[row.name] = self.fleet.restore(row)
        return self.fleet.streams[row.name].version

    def _lost(self, number: int) -> None:
        """A stream turned out to be another shard's: what is here of it counts no more."""
        for name, stream in list(self.fleet.streams.items()):
            if stream.id == number:
                stream.frozen = True
                self.fleet.streams.pop(name, None)

    def stop(self) -> None:
        """Answer what waits, write every state that changed."""
        self.fleet.stop()


def _leave() -> None:
    """Whoever comes later has the streams: stop at once, so as to answer nothing any more."""
    os._exit(_STALE)


def _keeper_of(name: str) -> Callable[..., Any]:
    """How a shard reaches the keeper by name; its absence reads as a disk that is away."""
    import ray

    def ask(method: str, *values: Any) -> Any:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return ray.get(getattr(ray.get_actor(name), method).remote(*values))
            except Full as error:
                raise TooMany(str(error)) from None
            except Fenced:
                raise
            except (ray.exceptions.RayActorError, ValueError) as error:
                if method not in _READING or time.monotonic() > until:
                    raise StorageError(f"The keeper is away ({type(error).__name__}).") from None
                time.sleep(0.2)

    return ask


def _start_shard(settings: Settings, number: int, keeper: str, threads: int) -> Shard:
    """A shard in a process of its own."""
    torch.set_num_threads(threads)
    return Shard(settings.replace(threads=threads), number, _keeper_of(keeper))


class ShardActor:
    """What Ray starts, and starts again: the shard, and nothing of its own."""

    def __init__(self, settings: Settings, number: int, keeper: str, threads: int) -> None:
        self.shard = _start_shard(settings, number, keeper, threads)

    def ready(self) -> dict[str, Any]:
        """`Shard.ready`."""
        return self.shard.ready()

    def handle(self, call: Call) -> Reply:
        """`Shard.handle`."""
        return self.shard.handle(call)

    def create(self, name: str, options: StreamOptions) -> None:
        """`Shard.create`."""
        self.shard.create(name, options)

    def give(self, name: str) -> str | None:
        """`Shard.give`."""
        return self.shard.give(name)

    def take(self, row: StreamRow, epoch: int) -> str:
        """`Shard.take`."""
        return self.shard.take(row, epoch)

    def stop(self) -> None:
        """`Shard.stop`."""
        self.shard.stop()
