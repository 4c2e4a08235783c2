"""Kernels for a GPU: what experts and descriptors do to whole tensors, in one pass over each.

Every kernel has a readable twin in plain torch (`experts.routed.moved`, `experts.stack`,
`domains.texture`), which says what is meant, serves every other device, and is what tests compare
with. Nothing of Triton is imported before a tensor on a GPU asks for it. Where Triton is missing or
cannot compile, `ready` says no from then on, and `refused` says why.

Triton's interpreter (`TRITON_INTERPRET=1`) runs kernels on a CPU, slowly: that is for tests.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

_KINDS = (torch.float32, torch.bfloat16, torch.float16)
"""What kernels read; models in double precision go the plain way."""
_refused: list[str] = []


def ready(tensor: Tensor, matrices: Tensor | None = None) -> bool:
    """Whether kernels can take this tensor, and multiply it with matrices like these.

    >>> ready(torch.zeros(2, dtype=torch.double))
    False
    """
    if _refused or tensor.dtype not in _KINDS or not (tensor.is_cuda or interpreted()):
        return False
    if matrices is not None and matrices.dtype != product_kind(tensor):
        return False
    return _compiles(str(tensor.device))


def product_kind(tensor: Tensor) -> torch.dtype:
    """What numbers a product with this tensor is taken in."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


def refused() -> str | None:
    """Why kernels are not used on this machine's GPU, once that was found out."""
    return _refused[0] if _refused else None


def _refuse(why: str) -> None:
    """Use no kernels from now on."""
    _refused.append(why)


def interpreted() -> bool:
    """Whether Triton runs in its interpreter, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _compiles(device: str) -> bool:
    """Whether Triton is there and has what it needs; a C compiler, say. Tried once a device."""
    try:
        from ostinato.ops.kernels import maps

        maps.attempt(device)
    except Exception as error:  # whatever is wrong with a compiler, the plain way is open
        _refuse(f"{type(error).__name__}: {error}".splitlines()[0])
        return False
    return True


def run(
    kernel: Callable[_Given, _Found],
    plain: Callable[_Given, _Found],
    *args: _Given.args,
    **kwargs: _Given.kwargs,
) -> _Found:
    """The kernel's result.

    Where a kernel does not fit this GPU (too little memory near its processors, say), the plain
    way is gone, then and from then on.
    """
    from triton import TritonError

    try:
        return kernel(*args, **kwargs)
    except TritonError as error:
        _refuse(f"{type(error).__name__}: {error}".splitlines()[0])
        return plain(*args, **kwargs)
