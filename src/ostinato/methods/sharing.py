"""Several processes that answer one stream: what a method says of it, and what is checked before.

Every process keeps the whole state and is given the whole batch; `ops.processes` says how.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.methods.contract import Resources
from ostinato.models import VisionModel, fingerprint
from ostinato.ops.processes import ALONE, Processes
from ostinato.ops.snapshot import Scalars
from ostinato.registry import METHODS

if TYPE_CHECKING:
    from ostinato.methods.base import Method


class Sharing:
    """Mixed into `Method`: which processes share its work, and that they stay alike."""

    wide: ClassVar[bool] = False
    """Whether several processes may share its work: what it takes from a forward are logits, or
    what it gathers itself."""
    processes: Processes = ALONE
    """Those that this one answers its stream with; `adapt(group=...)` sets them."""
    counters: Scalars
    _frozen: int

    def standing(self) -> str:
        """What has to be the same on all processes before a batch."""
        return f"{self.counters['steps']} {self._frozen}"


def check_sharing(
    processes: Processes,
    kind: type[Method],
    config: Any,
    model: VisionModel,
    resources: Resources,
) -> Resources:
    """Refuse what several processes cannot do together; gives all the first one's resources.

    Statistics that every process collects for itself may differ in their last digits.
    """
    if processes.alone:
        return resources
    if not kind.wide:
        able = ", ".join(name for name in METHODS.names() if METHODS[name].wide)
        raise ConfigError(
            f"{kind.name} cannot share its work between processes. These can: {able}."
        )
    processes.check_same(
        method=kind.name,
        settings=config.model_dump_json(),
        model=f"{fingerprint(model.base)} {model.normalize}",
        precision=str(model.dtype),
        statistics=_shapes(resources.statistics),
        preparation=_shapes(resources.prepared),
    )
    return processes.from_first(resources)


def _shapes(value: Any) -> str:
    """What a value that holds tensors holds: a short text, the same where they fit each other."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)}{value.dtype}"
    if isinstance(value, dict):
        return str([(name, _shapes(value[name])) for name in sorted(value)])
    if isinstance(value, tuple | list):
        return str([_shapes(one) for one in value])
    if is_dataclass(value) and not isinstance(value, type):
        return str([_shapes(getattr(value, field.name)) for field in fields(value)])
    return str(value)


def share_work(adapted: Method, processes: Processes) -> None:
    """Let a method work with the other processes; where it cannot, it is taken out again."""
    if not processes.alone and adapted._norms is not None:
        adapted.detach()
        raise ConfigError(
            f"{adapted.name} lets this model's batch norms see a batch's own statistics, and every "
            "process forwards a part of it: choose a model without batch norm, or one process."
        )
    adapted.processes = processes
