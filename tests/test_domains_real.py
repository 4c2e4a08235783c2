"""How many domains the discriminator finds in 15 corruptions of real photographs, three rounds."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ostinato.data.corruptions import COMMON, corrupt
from ostinato.domains.discriminator import DiscriminatorConfig, Evidence, make_discriminator
from ostinato.registry import DESCRIPTORS

IMAGES = 600
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def photographs(real_data: Path) -> Tensor:
    """One image of each of the first 600 classes, (600, 3, 224, 224) uint8, in a fixed disorder."""
    found: dict[str, np.ndarray] = {}
    with tarfile.open(real_data / "imagenet-val-2k.tar") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            folder = Path(member.name).parent.name
            if member.name.endswith(".jpg") and folder not in found and len(found) < IMAGES:
                file = archive.extractfile(member)
                assert file is not None
                found[folder] = np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
    order = np.random.default_rng(0).permutation(IMAGES)
    stacked = np.stack(list(found.values()))[order]
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def described(photographs: Tensor) -> dict[str, dict[str, Tensor]]:
    """Every photograph under every corruption at severity 5, by descriptor and corruption."""
    makers = {name: DESCRIPTORS[name]() for name in ("low", "style")}
    found: dict[str, dict[str, Tensor]] = {name: {} for name in makers}
    for corruption in COMMON:
        parts: dict[str, list[Tensor]] = {name: [] for name in makers}
        for start in range(0, IMAGES, 50):
            chunk = photographs[start : start + 50]
            broken = corrupt(chunk, corruption, 5, torch.arange(start, start + len(chunk)))
            for name, describe in makers.items():
                parts[name].append(describe(broken.float() / 255))
        for name, some in parts.items():
            found[name][corruption] = torch.cat(some)
    return found


def rounds(
    described: dict[str, dict[str, Tensor]], name: str, batch: int
) -> tuple[list[int], float]:
    """Domains known after each of three rounds, and the mean share of a corruption in one."""
    fdd = make_discriminator(DiscriminatorConfig(descriptor=name))
    known, shares = [], []
    for _ in range(3):
        for z in described[name].values():
            chosen: Counter[int] = Counter()
            for start in range(0, len(z) - batch + 1, batch):
                evidence = Evidence(z[start : start + batch], image_size=(224, 224))
                decision = fdd.decide(evidence)
                fdd.update(evidence, decision)
                chosen[decision.domain] += 1
            shares.append(max(chosen.values()) / chosen.total())
        known.append(len(fdd.domains))
    share = sum(shares) / len(shares)
    print(
        f"{name}, batch {batch}: domains after rounds {known}, {share:.1%} of a corruption in one"
    )
    return known, share


@pytest.mark.parametrize(("name", "least", "most"), [("low", 6, 8), ("style", 11, 15)])
def test_batches_of_fifty(
    described: dict[str, dict[str, Tensor]], name: str, least: int, most: int
) -> None:
    known, share = rounds(described, name, 50)
    assert least <= known[0] <= most
    assert known[0] == known[1] == known[2]
    assert share >= 0.95


@pytest.mark.parametrize("batch", [200, 100, 25, 10, 5, 3, 2, 1])
@pytest.mark.parametrize(("name", "least", "most"), [("low", 5, 10), ("style", 10, 16)])
def test_batches_of_other_sizes(
    described: dict[str, dict[str, Tensor]], name: str, least: int, most: int, batch: int
) -> None:
    known, _ = rounds(described, name, batch)
    assert least <= known[0] <= known[-1] <= most
