"""The benchmark of batch norms: its ways differ, and the model is left as it was."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import ModuleType

import torch

import ostinato
from ostinato.ops.batchnorm import BatchStatistics

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "batch_norms.py"
kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))


def test_ways_differ_and_leave_the_model_alone(script: ModuleType) -> None:
    model, batch = kit["build"]("timm efficientnet"), kit["images"](24, 1, 2)
    statistics = ostinato.collect_statistics(model, kit["images"](60))
    before = script.plain(model, batch, statistics, 0.2)
    found = [before, script.mapped(model, batch, statistics, 0.2)]
    for norms in (BatchStatistics, script.halfway(len(batch))):
        for answer in (script.plain, script.mapped):
            with norms(model):
                found.append(answer(model, batch, statistics, 0.2))
    assert all(logits.shape == (24, kit["CLASSES"]) for logits in found)
    pairs = [(one, two) for n, one in enumerate(found) for two in found[:n]]
    assert not any(torch.equal(one, two) for one, two in pairs)
    assert torch.equal(script.plain(model, batch, statistics, 0.2), before)
