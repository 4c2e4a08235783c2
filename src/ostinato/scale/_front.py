"""The front of a sharded server: it knows where every stream is, and sends requests there.

Requests wait while their shard comes back or their stream moves, up to their deadline; then they
are refused and told when to come again. A request that was on its way when its shard died is sent
again only where that cannot do it twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import ConfigError, StateError
from ostinato.scale._calls import Call, Reply
from ostinato.scale._placing import choose_shard
from ostinato.serve.batching import Away, Busy
from ostinato.serve.fleet import NoStream
from ostinato.serve.settings import Settings, StreamOptions

AT_ONCE = 56
"""Requests that a shard works on at the same time; the rest of its threads are for the front."""
_AGAIN = 0.2
"""Seconds between two looks at a shard that is away."""
_PULSE = 1.0
"""Seconds between two looks at shards that answer, and that such a look waits."""
_LONG = 60.0
"""Seconds that requests wait which name no deadline and need no forward."""


@dataclass(eq=False)
class _Seat:
    """A shard as the front sees it."""

    number: int
    actor: Any
    up: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    since: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    lost: bool = False
    task: asyncio.Task[None] | None = None


class Front:
    """Forwards requests to shards.

    Args:
        settings: of the server.
        actors: the shards.
        keeper: who keeps the index.
        gone: what is raised where a shard's process is gone.
        patience: seconds after which a shard that does not come back gives its streams to others.
        make: starts a shard by its number, or finds it; for one that will not come back by itself.
    """

    def __init__(
        self,
        settings: Settings,
        actors: list[Any],
        keeper: Any,
        gone: type[Exception] | tuple[type[Exception], ...],
        patience: float = 120.0,
        make: Callable[[int], Any] | None = None,
    ) -> None:
        self.settings, self.keeper, self.gone, self.patience = settings, keeper, gone, patience
        self.seats = [_Seat(number, actor) for number, actor in enumerate(actors)]
        self.make = make
        self.places: dict[str, int] = {}
        self.moving: dict[str, asyncio.Event] = {}
        self.flying: dict[str, int] = {}
        self.ready = self.leaving = False
        self.counts: dict[tuple[str, int], int] = {}

    async def start(self) -> None:
        """Wait until every shard answers."""
        self.places = {row.name: shard for row, shard in await self.keeper.owned.remote()}
        await asyncio.gather(*(self._join(seat) for seat in self.seats))
        self.ready = True
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def declare(self, name: str, options: StreamOptions) -> None:
        """Make a stream that the settings name, where there is none."""
        if name not in self.places:
            seat = self.place(name)
            await seat.actor.create.remote(name, options)
            self.places[name] = seat.number

    # Requests.

    def place(self, name: str) -> _Seat:
        """The shard of a stream; of one that there is not, where it would begin."""
        known = self.places.get(name)
        if known is None:
            known = choose_shard(name, [s.number for s in self.seats if not s.lost])
        return self.seats[known]

    def until(self, call: Call) -> float:
        """When a caller stops waiting."""
        if not call.path.endswith("/predict"):
            return time.monotonic() + _LONG
        patience, given = self.settings.batching.deadline_s, call.values.get("deadline_ms", "")
        if given.isdecimal():
            patience = min(patience, int(given) / 1000)
        return time.monotonic() + patience

    async def forward(self, name: str, call: Call) -> Reply:
        """Have a stream's shard answer."""
        until = self.until(call)
        while True:
            await self._wait(self.moving.get(name), until, f"Stream {name!r} is being moved.")
            seat = self.place(name)
            if not seat.up.is_set():  # look again now and then: the stream may go elsewhere
                await self._wait(seat.up, min(until, time.monotonic() + _AGAIN), "")
                if time.monotonic() > until:
                    raise Away(f"Shard {seat.number} is coming back. Come back later.", 2.0)
                continue
            self.flying[name] = self.flying.get(name, 0) + 1
            try:
                left = until - time.monotonic()
                reply = await self.ask(seat, call.within(left) if call.timed else call, until)
            except self.gone:
                if not call.repeatable:
                    raise Away(
                        "The shard was lost while it worked on this request, which may have been "
                        "done or not; requests with a sequence number are sent again.",
                        1.0,
                    ) from None
                continue
            finally:
                self.flying[name] -= 1
                if not self.flying[name]:
                    del self.flying[name]
            if reply.status < 400:
                self._learn(name, seat, call)
            return reply

    def _learn(self, name: str, seat: _Seat, call: Call) -> None:
        if call.method == "DELETE" and call.path == f"/v1/streams/{name}":
            self.places.pop(name, None)
        else:
            self.places.setdefault(name, seat.number)

    async def ask(self, seat: _Seat, call: Call, until: float) -> Reply:
        """Send a call to a shard; `gone` where it dies over it."""
        try:
            await asyncio.wait_for(seat.room.acquire(), max(0.001, until - time.monotonic()))
        except TimeoutError:
            raise Busy("Too many requests are waiting.", 1.0) from None
        try:
            reply: Reply = await seat.actor.handle.remote(call)
            return reply
        except self.gone:
            self.down(seat)
            raise
        finally:
            seat.room.release()

    async def _wait(self, event: asyncio.Event | None, until: float, why: str) -> None:
        """Wait for an event; a refusal that says why where it does not come, if there is a why."""
        if event is None or event.is_set():
            return
        try:
            await asyncio.wait_for(event.wait(), max(0.001, until - time.monotonic()))
        except TimeoutError:
            if why:
                raise Away(f"{why} Come back later.", 2.0) from None

    # Shards that go and come back.

    def down(self, seat: _Seat) -> None:
        """A shard does not answer: hold its requests, and look until it does."""
        if seat.task is None or seat.task.done():
            seat.up.clear()
            seat.since = time.monotonic()
            seat.task = asyncio.get_running_loop().create_task(self._join(seat))

    async def _watch(self) -> None:
        """Notice a shard that is gone before a request does."""
        while not self.leaving:
            await asyncio.sleep(_PULSE)
            for seat in self.seats:
                if seat.up.is_set():
                    try:
                        await asyncio.wait_for(_of(seat.actor.ready.remote()), _PULSE)
                    except self.gone:
                        self.down(seat)
                    except TimeoutError:  # slow is not gone
                        continue

    async def _join(self, seat: _Seat) -> None:
        while not self.leaving:
            looking = asyncio.ensure_future(_of(seat.actor.ready.remote()))
            while not looking.done():
                await asyncio.wait([looking], timeout=_AGAIN)
                await self._consider(seat)
            try:
                seat.facts = looking.result()
            except self.gone:
                await asyncio.sleep(_AGAIN)
                await self._consider(seat)
                if self.make is not None:
                    seat.actor = await asyncio.to_thread(self.make, seat.number)
                continue
            seat.starts, seat.lost = seat.starts + 1, False
            seat.up.set()
            return

    async def _consider(self, seat: _Seat) -> None:
        """Whether a shard that is away has been so for too long."""
        if time.monotonic() - seat.since > self.patience and self.ready and not seat.lost:
            seat.lost = True
            await self.rescue(seat)

    async def rescue(self, seat: _Seat) -> None:
        """Give the streams of a shard that is lost to the others, as they were last written."""
        for name in [one for one, at in self.places.items() if at == seat.number]:
            others = [one for one in self.seats if one.up.is_set() and one is not seat]
            if not others or seat.up.is_set():
                return
            await self._move(name, min(others, key=self._load), drain=False)

    def _load(self, seat: _Seat) -> int:
        return sum(at == seat.number for at in self.places.values())

    # Streams that move.

    async def move(self, name: str, to: int) -> None:
        """Move a stream: hold its requests, drain, write, load, go on."""
        if not 0 <= to < len(self.seats):
            raise ConfigError(f"There is no shard {to}: there are {len(self.seats)}, from 0 on.")
        if name not in self.places:
            raise NoStream(f"There is no stream {name!r}.")
        if name in self.moving:
            raise StateError(f"Stream {name!r} is being moved already.")
        if not self.seats[to].up.is_set():
            raise Away(f"Shard {to} is coming back.", 2.0)
        if self.places[name] != to:
            await self._move(name, self.seats[to], drain=True)

    async def _move(self, name: str, to: _Seat, *, drain: bool) -> None:
        held = self.moving[name] = asyncio.Event()
        try:
            source = self.seats[self.places[name]]
            if drain and source.up.is_set():
                while self.flying.get(name):
                    await asyncio.sleep(0.005)
                try:
                    await source.actor.give.remote(name)
                except self.gone:  # then its newest state is what there is
                    self.down(source)
            found = await self.keeper.assign.remote(name, to.number)
            if found is None:
                self.places.pop(name, None)
                return
            self.places[name] = to.number
            try:
                await to.actor.take.remote(*found)
            except self.gone:  # it takes the stream when it starts
                self.down(to)
        finally:
            del self.moving[name]
            held.set()

    # All of them.

    async def everywhere(self, call: Call, *, wait: bool = True) -> list[tuple[_Seat, Reply]]:
        """What every shard says; with `wait`, those that are away are waited for."""
        until = self.until(call)
        asked = [seat for seat in self.seats if not seat.lost and (wait or seat.up.is_set())]

        async def one(seat: _Seat) -> tuple[_Seat, Reply] | None:
            while True:
                await self._wait(seat.up, until, f"Shard {seat.number} is coming back.")
                try:
                    return seat, await self.ask(seat, call, until)
                except self.gone:
                    if not wait:
                        return None

        found = await asyncio.gather(*(one(seat) for seat in asked))
        return [each for each in found if each is not None]


async def _of(reference: Any) -> Any:
    return await reference
