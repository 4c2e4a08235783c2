"""Reaching a Ray cluster, or starting one of this machine alone."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ostinato.errors import ConfigError

_EXTRA = "The engine 'ray' needs one more package: pip install 'ostinato[ray]'."
NAMESPACE = "ostinato"
_ANSWERS = 10.0
"""Seconds in which the machine at an address has to take a connection."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    # What a cluster of this machine listens on: 127.0.0.1, on every system as on a Mac.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # rows and shards are what the machine is there for
    # A task without a GPU sees none; this is how Ray itself will do it from its next version on.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_ray() -> None:
    """Refuse before anything is loaded where the extra is not there."""
    if find_spec("ray") is None:
        raise ConfigError(_EXTRA)


def _get_ray(address: str | None = None) -> Any:
    """The package, told to be quiet before it is loaded.

    Args:
        address: of a cluster that is running; without one Ray keeps to the loopback address.
    """
    check_ray()
    for name, value in _QUIET.items():
        if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" or address is None:
            os.environ.setdefault(name, value)
    import ray

    return ray


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected for as long as this lasts; a connection that was there before stays.

    Args:
        address: of a cluster, as 'auto' or HOST:PORT; one of this machine is started unless given.
        cpus: of the cluster that is started; all cores unless given.
    """
    ray = _get_ray(address)
    if ray.is_initialized():
        yield ray
        return
    if address is not None:
        _check_answers(address)
    own: dict[str, Any] = {} if address else {"include_dashboard": False, "num_cpus": cpus}
    try:
        ray.init(
            address=address or "local",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **own,
        )
    except ConnectionError as error:
        if address == "auto":
            raise _no_cluster(address, error) from None
        raise ConfigError(
            f"Somebody listens at {address}, but this process could not join ({str(error)[:160]}): "
            "it is no Ray cluster, one of another version, or one whose token this user does not "
            "have."
        ) from None
    except Exception as error:  # Ray has no type of its own for this one
        if "timed out during startup" not in str(error):
            raise
        raise ConfigError(
            "Ray did not start within the 30 seconds it gives itself, so busy is this machine. Try "
            "again, or start it with 'ray start --head' and name its address."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try it for minutes."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{address!r} is no address of a Ray cluster: write auto or HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS).close()
    except OSError as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> ConfigError:
    """What to do where there is none."""
    return ConfigError(
        f"There is no Ray cluster at {address} ({str(error)[:160]}): start one with 'ray start "
        "--head', or leave the address out."
    )


def here(ray: Any) -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def on_node(ray: Any, node: str) -> Any:
    """A place for what has to run on one node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
