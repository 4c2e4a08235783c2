"""Running a sharded server: a keeper, shards and the front, until it is told to stop.

Keeper and shards are named and detached: a front that dies leaves them as they are, and the next
one finds them. A front that is told to stop has every state written, and ends them.
"""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from ostinato.errors import ConfigError
from ostinato.scale.cluster import NAMESPACE, connected, here, on_node
from ostinato.scale.front import AT_ONCE, Front
from ostinato.scale.front_app import make_front_app
from ostinato.scale.keeper import Keeper
from ostinato.scale.resources import Resources
from ostinato.scale.shard import ShardActor
from ostinato.serve.running import check_closed, listen
from ostinato.serve.settings import Settings
from ostinato.serve.store import Store

READERS = 16
"""Calls that the keeper answers side by side; it writes one at a time."""
ENDING = 60.0
"""Seconds that shards get to write their states."""


def service(settings: Settings) -> str:
    """What the actors of one server's folder are called, so that another front finds them."""
    place = f"{socket.gethostname()}:{settings.data.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def start_keeper(ray: Any, settings: Settings) -> Any:
    """On this machine, whose disk it writes to."""
    return (
        ray.remote(Keeper)
        .options(
            name=f"keeper-{service(settings)}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            max_concurrency=READERS,
            scheduling_strategy=on_node(ray, here(ray)),
        )
        .remote(settings)
    )


def start_shards(ray: Any, settings: Settings, count: int, given: Resources) -> list[Any]:
    """On whatever machines Ray chooses, and again elsewhere where one is lost."""
    keeper, name = f"keeper-{service(settings)}", f"shard-{service(settings)}"
    kind = ray.remote(ShardActor)
    return [
        kind.options(
            name=f"{name}-{number}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=AT_ONCE + 8,
            scheduling_strategy="SPREAD",
            **given.options(),
        ).remote(settings, number, keeper, given.threads)
        for number in range(count)
    ]


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
    with connected(address, cpus=max(1.0, shards * given.cpu)) as ray:
        keeper = start_keeper(ray, settings)
        ray.get(keeper.spread.remote(shards))
        actors = start_shards(ray, settings, shards, given)
        gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
        front = Front(settings, actors, keeper, gone, patience)
        store = Store(settings.data)
        try:
            _listen_on(front, store, settings, taken, begun)
        finally:
            stopped = [actor.stop.remote() for actor in actors]
            ray.wait(stopped, num_returns=len(stopped), timeout=ENDING)
            for actor in actors:
                ray.kill(actor, no_restart=True)
            store.close()
            ray.wait([keeper.close.remote()], timeout=ENDING)
            ray.kill(keeper, no_restart=True)


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

    config = uvicorn.Config(
        make_front_app(front, store, opened),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32 * 1024,
    )
    _Server(config, front).run(sockets=[taken])


class _Server(uvicorn.Server):
    """Lets live pages end by themselves when it is told to stop."""

    def __init__(self, config: uvicorn.Config, front: Front) -> None:
        super().__init__(config)
        self.front = front

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.front.leaving = True
        super().handle_exit(sig, frame)
