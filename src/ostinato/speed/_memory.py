"""How many bytes a step keeps and needs at its peak, on devices that count them and on a CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Kept:
    """How many bytes stay once the block is done: the model and what a method adds to it.

    >>> with Kept(torch.device("cpu")) as kept:
    ...     numbers = torch.zeros(1000)
    >>> kept.bytes
    4000
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0
        self._live = LiveTensors() if device.type != "cuda" else None

    def __enter__(self) -> Kept:
        if self._live is not None:
            self._live.__enter__()
        else:
            gc.collect()  # what was there before and goes meanwhile would count as given back
            self.bytes = -torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(self, *error: Any) -> None:
        gc.collect()
        if self._live is not None:
            self._live.__exit__(*error)
            self.bytes = self._live.now
        else:
            self.bytes += torch.cuda.memory_allocated(self.device)


def peak(step: Callable[[], Any], device: torch.device) -> int:
    """Bytes that one step needs at most beyond what stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return int(torch.cuda.max_memory_allocated(device) - before)
    with LiveTensors() as live:
        step()
    return int(live.peak)


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors made inside, and their peak, where the device does not.

    What an operator takes and gives back before it returns is not seen.

    >>> with LiveTensors() as live:
    ...     a = torch.zeros(1000)
    ...     b = a + 1
    ...     del a, b
    ...     c = torch.zeros(10)
    >>> live.peak, live.now
    (8000, 40)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count what is new among its results."""
        known = {_place(t) for t in torch.utils._pytree.tree_leaves((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and _place(tensor) not in known:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, count: int) -> None:
        self.now -= count


def _place(tensor: Any) -> int | None:
    return tensor.untyped_storage()._cdata if isinstance(tensor, Tensor) else None
