"""What one row of a sweep, or one shard of a server, asks of the cluster."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from ostinato.config import Config
from ostinato.errors import ConfigError

_GIB = 1 << 30


class Resources(Config):
    """Cores, a share of a GPU, and memory that Ray keeps free for one task.

    >>> Resources.read(["cpu=2", "gpu=0.25"]).options()
    {'num_cpus': 2.0, 'num_gpus': 0.25}
    """

    cpu: float = Field(1.0, gt=0, description="cores")
    gpu: float = Field(0.0, ge=0, description="GPUs; 0.25 lets four tasks share one")
    memory: float | None = Field(None, gt=0, description="GiB")

    @classmethod
    def read(cls, words: Iterable[str]) -> Resources:
        """From the command line."""
        given: dict[str, float] = {}
        for word in words:
            name, _, value = word.partition("=")
            try:
                given[name] = float(value)
            except ValueError:
                raise ConfigError(f"{word!r}: write cpu=2, gpu=0.25 or memory=8.") from None
        return cls.parse(given)

    @property
    def threads(self) -> int:
        """Of a task's forwards."""
        return max(1, int(self.cpu))

    def for_device(self, device: str) -> Resources:
        """A task on a GPU that names no share of one takes it whole."""
        cuda = device.startswith("cuda")
        return self.replace(gpu=1.0) if cuda and self.gpu == 0 else self

    def places(self, machine: Mapping[str, float]) -> int:
        """How many of them one machine has room for, by what Ray says it has.

        >>> machine = {"CPU": 8.0, "GPU": 1.0}
        >>> Resources(gpu=0.25).places(machine), Resources(cpu=16).places(machine)
        (4, 0)
        """
        wanted = {"CPU": self.cpu, "GPU": self.gpu, "memory": (self.memory or 0) * _GIB}
        shares = [machine.get(name, 0.0) / amount for name, amount in wanted.items() if amount]
        return math.floor(min(shares) + 1e-9)

    def check_room(self, ray: Any, count: int, what: str, *, may_grow: bool) -> None:
        """Refuse what would wait for ever; of a cluster that may grow, say what is waited for.

        Args:
            ray: connected.
            count: how many are to run at the same time.
            what: one of them, in a word.
            may_grow: whether machines may join later.
        """
        machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
        room = sum(self.places(one) for one in machines)
        if room >= count:
            return
        cores, gpus, memory = (
            max(one.get(name, 0.0) for one in machines) for name in ("CPU", "GPU", "memory")
        )
        text = (
            f"There is room for {room} of {count} {what}, at {self._said()} each: no machine of "
            f"the cluster has more than {cores:g} cores, {gpus:g} GPUs and {memory / _GIB:.1f} GiB."
        )
        if not may_grow:
            raise ConfigError(f"{text} Ask for less with --resources.")
        print(f"{text} Waiting for more machines.", file=sys.stderr, flush=True)

    def _said(self) -> str:
        memory = "" if self.memory is None else f", {self.memory:g} GiB"
        return f"{self.cpu:g} cores, {self.gpu:g} GPUs{memory}"

    def options(self) -> dict[str, Any]:
        """As Ray calls them."""
        found: dict[str, Any] = {"num_cpus": self.cpu, "num_gpus": self.gpu}
        if self.memory is not None:
            found["memory"] = int(self.memory * _GIB)
        return found
