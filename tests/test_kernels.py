"""Kernels beside plain torch, in Triton's interpreter, and machines that cannot use them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.ops import kernels


def test_kernels_in_the_interpreter():
    """A process of its own: the interpreter must be asked for before Triton is imported."""
    pytest.importorskip("triton")
    file = Path(__file__).with_name("_kernels_interpreted.py")
    command = [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider"]
    found = subprocess.run(
        command,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=file.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]


TYPES = {
    **dict.fromkeys(["x", "y", "factor", "prefix", "first", "pixels", "notes", "edges"], "*fp32"),
    **dict.fromkeys(["grey_bank", "colour_bank", "sums", "counts", "out"], "*fp32"),
    **dict.fromkeys(["down", "up", "shift", "z", "shared_down", "shared_up", "grad"], "*bf16"),
    **dict.fromkeys(["by_z", "hidden", "by_hidden"], "*bf16"),
    "index": "*i64",
    "scale": "fp32",
}
PRODUCTS: dict[str, Any] = {"WIDTH": 768, "EXACT": "ieee", "BM": 64, "BK": 64}
LUMA = {"R": 0.3, "G": 0.6, "B": 0.1}
KERNELS: dict[str, dict[str, Any]] = {
    "maps._low_rank": PRODUCTS
    | {"RANK": 64, "PREFIX": 1, "BACK": True, "FIRST": True, "AHEAD": 3, "BR": 64, "BW": 1024},
    "maps._whole": PRODUCTS | {"PREFIX": 1, "BACK": False, "FIRST": False},
    "branches._branches": PRODUCTS
    | {"SHARED": 64, "RANK": 32, "ALL": False, "AHEAD": 3, "BS": 64, "BR": 32},
    "learned._back": PRODUCTS | {"RANK": 96, "AHEAD": 2, "BR": 128},
    "texture._transform": LUMA | {"SUMS": 256, "BC": 16, "TURNS": 7, "LIMIT": 0.005},
    "texture._count": LUMA | {"COUNTS": 120, "SIZE": 1024, "TURNS": 4},
    "texture._finish": {"SUMS": 256, "COUNTS": 120, "FLOOR": 0.002, "BT": 32},
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_a_gpu(name):
    """None is needed for that; the interpreter lets much pass that a compiler does not."""
    triton = pytest.importorskip("triton")
    backends = pytest.importorskip("triton.backends.compiler")
    room, _, function = name.partition(".")
    kernel = getattr(import_module(f"ostinato.ops.kernels.{room}"), function)
    given = KERNELS[name] | ({"KIND": triton.language.bfloat16} if "EXACT" in KERNELS[name] else {})
    names = kernel.arg_names
    assert set(given) <= set(names)
    types = {one: "constexpr" if one in given else TYPES.get(one, "i32") for one in names}
    values = {(names.index(one),): value for one, value in given.items()}
    source = triton.compiler.ASTSource(kernel, types, values)
    target = backends.GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
    assert made.metadata.shared < 200_000


def test_a_cpu_imports_no_triton():
    code = (
        "import sys, torch, ostinato.domains.texture as t; t.Texture()(torch.rand(1, 3, 64, 64));"
        "import ostinato.experts.stack; assert not [m for m in sys.modules if m.endswith('.maps')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def unasked(monkeypatch):
    """As if no GPU had been seen so far, and any tensor were on one."""
    monkeypatch.setattr(kernels, "_refused", [])
    monkeypatch.setattr(kernels, "interpreted", lambda: True)
    kernels._compiles.cache_clear()
    yield
    kernels._compiles.cache_clear()


def test_without_a_compiler_kernels_are_refused_once(unasked, monkeypatch):
    maps = pytest.importorskip("ostinato.ops.kernels.maps")
    asked = []

    def fail(device: str) -> None:
        asked.append(device)
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    monkeypatch.setattr(maps, "attempt", fail)
    assert not kernels.ready(torch.zeros(2))
    assert not kernels.ready(torch.zeros(2))
    assert asked == ["cpu"]
    assert kernels.refused() == "RuntimeError: Failed to find C compiler."


def test_a_kernel_that_does_not_fit_is_replaced_from_then_on(unasked):
    triton = pytest.importorskip("triton")

    def kernel(value: int) -> int:
        raise triton.OutOfResources(300_000, 200_000, "shared memory")

    assert kernels.run(kernel, lambda value: value + 1, 1) == 2
    assert "OutOfResources" in str(kernels.refused())
    assert not kernels.ready(torch.zeros(2))


def test_double_precision_goes_the_plain_way(unasked):
    assert not kernels.ready(torch.zeros(2, dtype=torch.double))
