"""How kernels cut their work, and in which numbers they take products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ostinato.ops.kernels import interpreted, product_kind

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Tiles(NamedTuple):
    """The piece of work that a program takes.

    Attributes:
        tokens: that it takes.
        features: of them at a time.
        warps: that it has.
        stages: steps whose loads are under way at once, on the way down to a rank.
        ahead: the same on the way up.
    """

    tokens: int
    features: int
    warps: int
    stages: int
    ahead: int


class Exactness(NamedTuple):
    """In which numbers products are taken.

    Attributes:
        kind: of both factors, as Triton has it.
        single: "ieee" or "tf32", for products in single precision.
    """

    kind: Any
    single: str

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 4 if self.kind is tl.float32 else 2

    @property
    def dtype(self) -> torch.dtype:
        """The kind as torch has it."""
        return next(kind for kind, other in _TYPES.items() if other is self.kind)


def exactness(tensor: Tensor) -> Exactness:
    """In which numbers products with this tensor are taken now."""
    if interpreted():  # which multiplies bfloat16 as if it were whole numbers
        return Exactness(tl.float32, "ieee")
    exact = torch.get_float32_matmul_precision() == "highest"
    return Exactness(_TYPES[product_kind(tensor)], "ieee" if exact else "tf32")


def padded(rank: int) -> int:
    """A length that products can have: a power of two, 16 at least."""
    return max(16, 1 << (rank - 1).bit_length())


def on_device(tensor: Tensor) -> Any:
    """Inside, a tensor's GPU is the current one, on which Triton launches."""
    return torch.cuda.device_of(tensor)
