"""What the benchmarks on Ray share: a cluster of several nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ostinato.scale.cluster import NAMESPACE, _get_ray


@contextmanager
def nodes(count: int, cpus: float = 1.0) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster whose head computes nothing, and so many nodes that do."""
    ray = _get_ray()
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 200 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        others = [
            cluster.add_node(num_cpus=cpus, object_store_memory=200 << 20) for _ in range(count)
        ]
        ray.init(
            address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="error"
        )
        yield cluster, others
    finally:
        ray.shutdown()
        cluster.shutdown()
