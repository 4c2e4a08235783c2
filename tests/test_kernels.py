"""Kernels beside plain torch, in Triton's interpreter, and machines that cannot use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
