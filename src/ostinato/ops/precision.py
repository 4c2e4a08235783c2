"""How exact matrix products are, for a stretch of work and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Under "tf32", let fp32 matrix products use a GPU's TF32 units; otherwise change nothing.

    The switch is torch's own and belongs to the whole process, so it is put back at once.

    >>> with products("tf32"):
    ...     torch.get_float32_matmul_precision()
    'high'
    >>> torch.get_float32_matmul_precision()
    'highest'
    """
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
