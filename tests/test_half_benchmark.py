"""The benchmark of half precision: autocast changes how a model computes, not how it starts."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import ModuleType

import torch

import ostinato

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "half.py"
kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))


def test_a_model_under_autocast_keeps_the_names_of_its_places(script: ModuleType) -> None:
    model = kit["build"]("timm vit")
    names, pixels = [name for name, _ in model.named_modules()], kit["images"](2).float() / 255
    with torch.no_grad():
        plain, rounded = model(pixels), script.cast(model, torch.bfloat16)(pixels)
    assert rounded.dtype == torch.bfloat16
    assert not torch.equal(rounded.float(), plain)
    assert [name for name, _ in model.named_modules()] == names


def test_all_ways_learn_from_the_same_start(script: ModuleType) -> None:
    build, starts = lambda: kit["build"]("timm vit"), []
    for model in (build(), script.cast(build(), torch.bfloat16), build().to(torch.bfloat16)):
        statistics = ostinato.collect_statistics(model, kit["images"](40))
        starts.append(ostinato.adapt(model, statistics=statistics).bank.shared.value)
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], starts[2])
