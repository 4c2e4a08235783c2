"""Which operators the time of each way goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ostinato.speed._ways import Setting, Way

STEPS, ROWS = 3, 30


def profiler(path: Path, title: str) -> Callable[[Sequence[Way], Setting], None]:
    """What appends to a file, for every way, its operators by time on the device and the host."""

    def write(ways: Sequence[Way], setting: Setting) -> None:
        device = next(setting.make_model().parameters()).device
        for way in ways:
            text = _operators(way, setting, device)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"== {title}: {way.name}, {STEPS} batches\n{text}\n")

    return write


def _operators(way: Way, setting: Setting, device: torch.device) -> str:
    """The operators of a few batches, the costliest first."""
    activities = [ProfilerActivity.CPU]
    keys = ["self_cpu_time_total"]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        keys.insert(0, "self_cuda_time_total")
    batches = [setting.batch() for _ in range(STEPS)]
    for batch in batches:
        if way.before is not None:
            way.before(batch)
    with profile(activities=activities) as found:
        for batch in batches:
            way.step(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    averages = found.key_averages()
    return "\n".join(
        averages.table(sort_by=key, row_limit=ROWS, max_name_column_width=60) for key in keys
    )
