"""Running a sharded server: a keeper, shards and the front, until it is told to stop.

Keeper and shards are named and detached: a front that dies leaves them as they are, and the next
one finds them. A front that is told to stop has every state written, and ends them.
"""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Callable
from math import ceil
from typing import Any

from ostinato.errors import ConfigError
from ostinato.scale._front import AT_ONCE, Front
from ostinato.scale._front_app import make_front_app
from ostinato.scale._keeper import Keeper
from ostinato.scale.cluster import NAMESPACE, connected, here, on_node
from ostinato.scale.resources import Resources
from ostinato.scale.shard import ShardActor
from ostinato.serve.running import check_closed, listen, until_told
from ostinato.serve.settings import Settings
from ostinato.serve.store import Store

_READERS = 16
"""Calls that the keeper answers side by side; it writes one at a time."""
_ENDING = 60.0
"""Seconds that shards get to write their states."""


def _service(settings: Settings) -> str:
    """What the actors of one server's folder are called, so that another front finds them."""
    place = f"{socket.gethostname()}:{settings.data.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def _start_keeper(ray: Any, settings: Settings) -> Any:
    """On this machine, whose disk it writes to."""
    return (
        ray.remote(Keeper)
        .options(
            name=f"keeper-{_service(settings)}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            max_concurrency=_READERS,
            scheduling_strategy=on_node(ray, here(ray)),
        )
        .remote(settings)
    )


def _start_shard(ray: Any, settings: Settings, number: int, given: Resources) -> Any:
    """On whatever machine Ray chooses, and again elsewhere where that one is lost."""
    return (
        ray.remote(ShardActor)
        .options(
            name=f"shard-{_service(settings)}-{number}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=AT_ONCE + 8,
            scheduling_strategy="SPREAD",
            **given.options(),
        )
        .remote(settings, number, f"keeper-{_service(settings)}", given.threads)
    )


def run_sharded(
    settings: Settings,
    *,
    shards: int = 2,
    address: str | None = None,
    resources: Resources | None = None,
    patience: float = 120.0,
    begun: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; every state is written before it ends.

    Args:
        settings: of the server.
        shards: actors that the streams are spread over.
        address: of a Ray cluster; one of this machine is started unless given.
        resources: of one shard.
        patience: seconds after which a shard that does not come back gives its streams to others.
        begun: told the address once all shards answer.
    """
    if settings.record:
        raise ConfigError("record keeps what was learned from on one machine's disk: leave it out.")
    if shards < 1:
        raise ConfigError(f"shards = {shards}: streams need one at least.")
    check_closed(settings)
    taken = listen(settings)
    given = (resources or Resources()).for_device(settings.device)
    with connected(address, cpus=ceil(shards * given.cpu)) as ray:
        given.check_room(ray, shards, "shards", may_grow=address is not None)
        keeper = _start_keeper(ray, settings)
        ray.get(keeper.spread.remote(shards))
        front = _front(ray, settings, shards, given, keeper, patience)
        store = Store(settings.data)
        try:
            _check_started(ray, front)
            _listen_on(front, store, settings, taken, begun)
        finally:
            store.close()
            _end(ray, front)


def _front(
    ray: Any, settings: Settings, shards: int, given: Resources, keeper: Any, patience: float
) -> Front:
    def make(number: int) -> Any:
        return _start_shard(ray, settings, number, given)

    gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
    actors = [make(number) for number in range(shards)]
    return Front(settings, actors, keeper, gone, patience, make)


def _check_started(ray: Any, front: Front) -> None:
    """What is wrong with the settings shows when a shard loads its model."""
    try:
        ray.get([seat.actor.ready.remote() for seat in front.seats])
    except ray.exceptions.RayActorError as error:
        said = [line for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"A shard does not start: {said[-1].strip()[:300]}") from None


def _end(ray: Any, front: Front) -> None:
    """Have every state written, and end what is named and detached."""
    stopped = [seat.actor.stop.remote() for seat in front.seats]
    ray.wait(stopped, num_returns=len(stopped), timeout=_ENDING)
    for seat in front.seats:
        ray.kill(seat.actor, no_restart=True)
    ray.wait([front.keeper.close.remote()], timeout=_ENDING)
    ray.kill(front.keeper, no_restart=True)


def _listen_on(
    front: Front,
    store: Store,
    settings: Settings,
    taken: socket.socket,
    begun: Callable[[str], None] | None,
) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{taken.getsockname()[1]}"

    async def opened() -> None:
        for name, options in settings.streams.items():
            await front.declare(name, options)
        lost = sum(seat.facts.get("lost", 0) for seat in front.seats)
        said = f", {lost} updates since the last snapshots lost" if lost else ""
        print(f"serving {settings.model} on {address}", file=sys.stderr)
        print(
            f"{len(front.places)} streams on {len(front.seats)} shards{said}; "
            f"data in {settings.data}",
            file=sys.stderr,
            flush=True,
        )
        if begun is not None:
            begun(address)

    until_told(make_front_app(front, store, opened), front, taken)
