"""The robust preset on a real ViT-Tiny and real images: better every round, never below source."""

from __future__ import annotations

import io
import runpy
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ostinato
from ostinato.data.corruptions import corrupt

pytestmark = [pytest.mark.real, pytest.mark.slow]
NAMES = ("gaussian_noise", "defocus_blur", "zoom_blur", "fog", "contrast", "jpeg_compression")
CLEAN, IMAGES, ROUNDS, BATCH = 300, 400, 3, 50


def photographs(root: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` validation images of a fixed shuffle, and their classes."""
    from PIL import Image

    with tarfile.open(root / "imagenet-val-2k.tar") as archive:
        members = sorted(m.name for m in archive.getmembers() if m.name.endswith(".jpg"))
        order = np.random.default_rng(2025).permutation(len(members))[:count]
        found = []
        for index in order:
            file = archive.extractfile(members[index])
            assert file is not None
            picture = np.array(Image.open(io.BytesIO(file.read())).convert("RGB"))
            label = int(members[index].strip("./").split("/")[0])
            found.append((torch.from_numpy(picture).permute(2, 0, 1), label))
    return torch.stack([x for x, _ in found]), torch.tensor([y for _, y in found])


def vit_tiny(root: Path) -> nn.Module:
    import timm
    from safetensors.torch import load_file

    net = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    values = load_file(root / "vit_tiny_patch16_224.safetensors")
    net.load_state_dict({name: value.float() for name, value in values.items()})
    net.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return net.eval()


def errors(method: nn.Module, stream: dict[str, Tensor], labels: Tensor) -> list[float]:
    found = []
    for images in stream.values():
        parts = zip(images.split(BATCH), labels.split(BATCH), strict=True)
        wrong = [(method(part).argmax(1) != truth).float() for part, truth in parts]
        found.append(100 * float(torch.cat(wrong).mean()))
    return found


def test_robust_gets_better_every_round_and_beats_the_source(real_data: Path) -> None:
    images, labels = photographs(real_data, CLEAN + IMAGES)
    shown, truth = images[CLEAN:], labels[CLEAN:]
    stream = {name: corrupt(shown, name, 5, range(len(shown))) for name in NAMES}
    statistics = ostinato.collect_statistics(vit_tiny(real_data), images[:CLEAN])
    frozen = errors(ostinato.adapt(vit_tiny(real_data), "source"), stream, truth)
    adapted = ostinato.adapt(vit_tiny(real_data), statistics=statistics)
    cells = [errors(adapted, stream, truth) for _ in range(ROUNDS)]
    for name, *row in zip(NAMES, frozen, *cells, strict=True):
        print(f"\n{name:18}", *(f"{value:5.1f}" for value in row), end="")
    source, rounds = float(np.mean(frozen)), [float(np.mean(row)) for row in cells]
    print(f"\nsource {source:.1f}, rounds {[round(r, 1) for r in rounds]}, ", end="")
    print(f"{len(adapted.bank.domains)} domains of {len(NAMES)}")
    assert rounds[-1] < source - 5
    assert rounds[-1] < rounds[0]
    assert float(np.mean(rounds)) < source


def test_a_model_in_half_precision_predicts_as_autocast_does(real_data: Path) -> None:
    """Over a round that both learn from; `benchmarks/half.py` prints the figures of more images."""
    bench = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "half.py"))
    images, _ = photographs(real_data, 200)
    models = {
        "autocast": bench["cast"](vit_tiny(real_data), torch.float16),
        "half": vit_tiny(real_data).half(),
    }
    said: dict[str, list[Tensor]] = {}
    for name, model in models.items():
        statistics = ostinato.collect_statistics(model, images[:100])
        adapted = ostinato.adapt(model, statistics=statistics)
        shown = (corrupt(images[100:], corruption, 5, range(100)) for corruption in NAMES)
        said[name] = [adapted(part).argmax(1) for one in shown for part in one.split(BATCH)]
        assert adapted.bank.shared.updates
    assert bench["same"](said["half"], said["autocast"]) >= 99
