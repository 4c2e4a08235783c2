"""Copies of a method, and going with its model to another device or precision."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.models import VisionModel
from ostinato.ops.trainable import claim, is_claimed


class Moving:
    """Mixed into `Method`: copying, pickling, `.to(...)`, `.half()` and the like.

    >>> import copy
    >>> import ostinato
    >>> from ostinato.checks import small_batches, small_model
    >>> adapted = ostinato.adapt(small_model(), "tent")
    >>> other = copy.deepcopy(adapted)
    >>> bool((other(small_batches(1)[0]) == adapted(small_batches(1)[0])).all())
    True
    """

    name: ClassVar[str]
    model: VisionModel
    _lock: threading.RLock
    _detached: bool
    training: bool
    follows: ClassVar[bool] = False
    """Whether it can go with its model to another device or precision."""

    if TYPE_CHECKING:  # what `Persistent` brings

        def _refuse_detached(self) -> None: ...

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a model of its own, and nothing is around that one.
        return {k: v for k, v in self.__dict__.items() if k != "_lock"} | {"around": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        parent: Any = super()
        parent.__setstate__(state)
        self._lock = threading.RLock()  # a copy waits for nobody else
        if not self._detached and not is_claimed(self.model.base):  # by the method inside
            claim(self.model.base, self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the model first, then what stands beside it."""
        self._refuse_detached()  # the model is its owner's again
        probe = torch.empty(0, device=self.model.device, dtype=self.model.dtype)
        changed = fn(probe)
        if (changed.device, changed.dtype) != (probe.device, probe.dtype) and not self.follows:
            raise ConfigError(
                f"{self.name} keeps values beside the model, so it cannot move: unwrap the model, "
                "move it, and adapt it again (adapted.save and .load keep what was learned)."
            )
        parent: Any = super()
        parent._apply(fn, recurse)
        self.arrive()
        return self

    def train(self, mode: bool = True) -> Self:
        """Say nothing to the model: in training mode it would learn by rules of its own.

        Batch norms would take every batch into the source's statistics. Whoever holds what is
        adapted, such as a Lightning module, may switch modes as usual.
        """
        self.training = mode
        return self

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise ConfigError(
            "DataParallel copies a model to every GPU for each batch, and what is adapted has one "
            "state: leave it out, or let one process a GPU share the work (adapt(..., group=...))."
        )

    def arrive(self) -> None:
        """After the model went elsewhere: let what is beside it follow."""
