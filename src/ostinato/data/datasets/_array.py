"""Data sets whose images lie in one array per domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def as_image(array: NDArray[Any]) -> Tensor:
    """A picture (H, W, 3) or (3, H, W) as a uint8 tensor (3, H, W) of its own memory.

    >>> as_image(np.zeros((32, 32, 3), np.uint8)).shape
    torch.Size([3, 32, 32])
    """
    picture = np.array(array)
    if picture.shape[0] != 3 and picture.shape[-1] == 3:
        picture = np.moveaxis(picture, -1, 0)
    return torch.from_numpy(np.ascontiguousarray(picture))
