"""The benchmark of batch norms: its pairs differ, and the model is left as it was."""

from __future__ import annotations

import runpy
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch

import ostinato

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "batch_norms.py"
kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))


def test_pairs_differ_and_leave_the_model_alone(script: ModuleType) -> None:
    model, batch = kit["build"]("timm efficientnet"), kit["images"](24, 1, 2)
    statistics = ostinato.collect_statistics(model, kit["images"](60))
    adapted = ostinato.adapt(model, statistics=statistics, preset="forward-only")
    with torch.no_grad():
        before = model(adapted.model.check(batch))
    pairs = list(product((0.0, 0.5), (0.0, 0.2)))
    found = [script.answers(adapted, adapted.model.check(batch), pair) for pair in pairs]
    assert all(logits.shape == (24, kit["CLASSES"]) for logits in found)
    assert not any(torch.equal(one, two) for n, one in enumerate(found) for two in found[:n])
    with torch.no_grad():
        assert torch.equal(model(adapted.model.check(batch)), before)


def test_a_norm_moved_half_way_lies_between_both_statistics(script: ModuleType) -> None:
    norm = torch.nn.BatchNorm2d(1).eval()
    wide = torch.tensor([2.0, 6.0]).view(2, 1, 1, 1).expand(2, 1, 50, 1)
    mean, variance = script.PartWay(torch.nn.Sequential(norm), 0.5).statistics(norm, wide)
    assert float(mean) == pytest.approx(2.0)
    assert float(variance) == pytest.approx(2.5, abs=0.03)
    assert float(norm.running_mean) == 0.0
    assert script.PartWay(torch.nn.Sequential(norm), 0.0).statistics(norm, wide) is None


def test_the_surest_maps_are_chosen_domain_by_domain(script: ModuleType) -> None:
    found, labels = script.Found([0.0], [0.0, 0.2]), torch.tensor([0, 0])
    sure, unsure = torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([[0.1, 0.0], [0.0, 0.1]])
    for first, second in ((sure, unsure), (unsure, sure)):
        found.add((0.0, 0.0), first, labels)
        found.add((0.0, 0.2), second, labels)
    assert script.percent(found.surest(0.0)) == 0.0
    assert script.percent(torch.cat(found.wrong[0.0, 0.2])) == 25.0
    assert found.best(0.0)[0] == 0.0
