"""What one row of a sweep, or one shard of a server, asks of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from ostinato.config import Config
from ostinato.errors import ConfigError

GIB = 1 << 30


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

    def options(self) -> dict[str, Any]:
        """As Ray calls them."""
        found: dict[str, Any] = {"num_cpus": self.cpu, "num_gpus": self.gpu}
        if self.memory is not None:
            found["memory"] = int(self.memory * GIB)
        return found
