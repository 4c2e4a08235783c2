"""Shared fixtures: a small model, two synthetic domains, and the real data where it exists."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from ostinato.api import collect_statistics
from ostinato.checks import small_batches, small_model
from ostinato.methods.ostinato import maps
from ostinato.ops.statistics import SourceStatistics

torch.set_num_threads(1)  # the suite runs on several workers; more threads only get in the way
settings.register_profile("suite", deadline=None)  # a busy machine is no failure
settings.load_profile("suite")


def load_script(path: Path) -> Iterator[ModuleType]:
    """A script outside the package as a module, for as long as it is used."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The script that a test file names as SCRIPT."""
    yield from load_script(request.module.SCRIPT)


def real_data_root() -> Path | None:
    given = os.environ.get("OSTINATO_REAL_DATA")
    root = Path(given) if given else Path(__file__).parents[2] / "shared" / "data"
    return root if (root / "vit_tiny_patch16_224.safetensors").is_file() else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    root = real_data_root()
    if root is None:
        pytest.skip("no real images and weights: set OSTINATO_REAL_DATA to their folder")
    return root


@pytest.fixture
def model() -> nn.Module:
    return small_model()


@pytest.fixture
def batches() -> list[Tensor]:
    return small_batches(9)


@pytest.fixture(scope="session")
def statistics() -> SourceStatistics:
    return collect_statistics(small_model(), torch.cat(small_batches(4, seed=9)))


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are always trusted, which a model with random weights would not let happen."""
    monkeypatch.setattr(maps, "TRUSTED", 10.0)


@pytest.fixture(scope="module")
def trusting_throughout() -> Iterator[None]:
    """The same for a whole file, whose fixtures learn once for all of its tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "TRUSTED", 10.0)
        yield
