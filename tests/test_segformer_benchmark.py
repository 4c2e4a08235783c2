"""SegFormer's published shapes: experts in every block of all stages, one step of each method."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import ostinato
from ostinato.experts._targets import find_targets
from ostinato.ops.blocks import find_blocks

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "segformer.py"


@pytest.fixture(scope="module")
def bench(script: ModuleType) -> ModuleType:
    return script


@pytest.mark.parametrize(
    ("size", "depths", "widths", "millions"),
    [
        ("b0", (2, 2, 2, 2), (32, 64, 160, 256), 3.7),
        ("b2", (3, 4, 6, 3), (64, 128, 320, 512), 27.4),
        ("b5", (3, 6, 40, 3), (64, 128, 320, 512), 84.6),
    ],
)
def test_experts_go_into_every_block_of_all_four_stages(
    bench: ModuleType, size: str, depths: tuple[int, ...], widths: tuple[int, ...], millions: float
) -> None:
    with torch.device("meta"):
        model = bench.build(size)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)
    wanted = [w for depth, w in zip(depths, widths, strict=True) for _ in range(depth)]
    assert [target.dim for target in find_targets(model)] == wanted
    assert len(find_blocks(model)) == len(wanted)


@pytest.mark.parametrize("name", ["paper", "tent", "cotta"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_step_on_b0_moves_what_it_should(bench: ModuleType, name: str, precision: str) -> None:
    torch.set_num_threads(1)
    images = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    model = bench.build("b0")
    method = bench.adapted(name, model, images, precision)
    if name == "cotta":
        method.config = method.config.replace(scales=(1.0,))
    out = method.step(images[:1])
    assert out.updated
    assert out.logits.shape == (1, 19, 16, 24)
    assert bool(out.logits.isfinite().all())
    if name == "paper":
        branches = method.pool.layers.values()
        assert [b.dim for b in branches] == [32] * 2 + [64] * 2 + [160] * 2 + [256] * 2
        for branch in branches:
            for mixture in (branch.shared, branch.mixture(0)):
                assert mixture.up.shape[1] == branch.dim
                assert float(mixture.up.detach().abs().max()) > 0
    else:
        assert method.weights is not None
        moved = [
            not torch.equal(p, method.weights.source[n])
            for n, p in method.weights.parameters.items()
        ]
        assert sum(moved) > len(moved) / 2
    assert ostinato.unwrap(method) is model


def test_the_script_prints_a_row_for_everything(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.main(
        size="b0", height=64, width=64, method=("robust",), steps=1, device="cpu", precision="fp32"
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SegFormer-B0 (3.7 M")
    assert [line.split()[0] for line in lines[-2:]] == ["forward", "robust"]
    assert lines[-1].split()[-2:] == ["0/1", "8"]
    memory = [float(line.split()[1]) for line in lines[-2:]]
    assert 0.0 < memory[0] <= memory[1] < 1.0
