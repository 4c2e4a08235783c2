"""Shared fixtures: a small model, two synthetic domains, and the real data where it exists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ostinato.api import collect_statistics
from ostinato.checks import small_batches, small_model
from ostinato.ops.statistics import SourceStatistics

torch.set_num_threads(1)  # the suite runs on several workers; more threads only get in the way


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


@pytest.fixture
def statistics() -> SourceStatistics:
    return collect_statistics(small_model(), torch.cat(small_batches(4, seed=9)))
