"""Answers and learning side by side on a GPU: a stream of work each, answers first."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def make_lane(device: torch.device, *, urgency: int) -> Any:
    """Where one worker's kernels queue up; None on the CPU, where threads are that already.

    Args:
        device: of the model.
        urgency: kernels of a higher one go first; 0 is the lowest.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)  # what was made before is there for all lanes
    return torch.cuda.Stream(device, priority=-urgency)


def entered(lane: Any) -> AbstractContextManager[Any]:
    """Inside, this thread's kernels go down a lane."""
    return nullcontext() if lane is None else torch.cuda.stream(lane)


def settle(lane: Any) -> None:
    """Wait until everything sent down a lane is done, so that others may read it."""
    if lane is not None:
        lane.synchronize()
