"""Against imagecorruptions: the same picture where nothing is random, the same statistics else."""

from __future__ import annotations

import io
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from ostinato.data.corruptions import COMMON, EXTRA, corrupt, scene
from ostinato.data.corruptions._frost import _bank
from ostinato.registry import CORRUPTIONS

reference = pytest.importorskip("imagecorruptions", reason="a test oracle; in the dev extra")

FIXED = [name for name in COMMON + EXTRA if not CORRUPTIONS[name].random]
RANDOM = [name for name in COMMON + EXTRA if CORRUPTIONS[name].random]
Array = np.ndarray


def theirs(images: Array, name: str, severity: int, seed: int = 0) -> Array:
    state = np.random.get_state()  # noqa: NPY002 (the oracle draws from the global state)
    np.random.seed(seed)  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.stack([reference.corrupt(image, severity, name) for image in images])
    finally:
        np.random.set_state(state)  # noqa: NPY002


def ours(images: Array, name: str, severity: int, seed: int = 0) -> Array:
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    seeds = range(seed * len(batch), (seed + 1) * len(batch))
    return corrupt(batch, name, severity, seeds).permute(0, 2, 3, 1).numpy()


def octaves(images: Array) -> Array:
    """(N, octaves) power of the grey images in rings of spatial frequency."""
    grey = images.astype(float).mean(-1)
    power = np.abs(np.fft.fft2(grey)) ** 2
    down, across = (np.fft.fftfreq(n) for n in grey.shape[1:])
    ring = np.ceil(-np.log2(np.maximum(np.hypot(down[:, None], across[None]), 1e-9) / 0.75))
    return np.stack([power[:, ring == k].sum(1) for k in range(1, 7)], 1)


def differences(one: Array, two: Array) -> tuple[float, float, float]:
    """Relative differences of mean, deviation and spectrum, averaged over the images."""
    mean = np.log(one.mean((1, 2, 3)) / two.mean((1, 2, 3))).mean()
    deviation = np.log(one.std((1, 2, 3)) / two.std((1, 2, 3))).mean()
    # A spectrum holds squares; half its logarithm is on the scale of the others.
    spectrum = 0.5 * np.abs(np.log(octaves(one) / octaves(two)).mean(0)).mean()
    return abs(float(mean)), abs(float(deviation)), float(spectrum)


@pytest.fixture(scope="module")
def drawn() -> Array:
    return torch.stack([scene(120, 144, s) for s in range(6)]).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_ones_agree_on_drawn_scenes(name: str, severity: int, drawn: Array) -> None:
    two = drawn[:2]
    gap = np.abs(ours(two, name, severity).astype(float) - theirs(two, name, severity))
    assert gap.mean() < (1 if name != "jpeg_compression" else 1e-9)


@pytest.mark.parametrize("severity", [2, 5])
@pytest.mark.parametrize("name", [n for n in RANDOM if n not in ("frost", "fog", "motion_blur")])
def test_random_ones_agree_on_drawn_scenes(name: str, severity: int, drawn: Array) -> None:
    limit = 0.1 if name in ("snow", "spatter") else 0.05
    found = differences(ours(drawn, name, severity), theirs(drawn, name, severity))
    assert max(found) < limit, found


@pytest.mark.parametrize("severity", [1, 5])
def test_fog_agrees_over_many_draws(severity: int) -> None:
    many = np.repeat(scene(64, 64).permute(1, 2, 0).numpy()[None], 150, 0)
    found = differences(ours(many, "fog", severity), theirs(many, "fog", severity))
    assert max(found) < 0.06, found


def test_frost_textures_measure_like_photographs() -> None:
    cv2 = pytest.importorskip("cv2", reason="comes with imagecorruptions")
    folder = Path(reference.__file__).parent / "frost"
    for kind, file in enumerate(sorted(folder.iterdir())):
        photo = cv2.imread(str(file))[..., ::-1]
        photo = cv2.resize(photo, None, fx=1.1, fy=1.1, interpolation=cv2.INTER_CUBIC)
        height, width = photo.shape[:2]
        places = [(y, x) for y in range(0, height - 223, 60) for x in range(0, width - 223, 60)]
        photos = np.stack([photo[y : y + 224, x : x + 224] for y, x in places]).astype(float)
        made = _bank()[kind].permute(1, 2, 0).double().numpy()
        sheets = np.stack([made[y : y + 224, x : x + 224] for y in (0, 288) for x in (0, 144, 288)])
        assert np.abs(sheets.mean((0, 1, 2)) - photos.mean((0, 1, 2))).max() < 5
        deviation = [part.mean(-1).std((1, 2)).mean() for part in (sheets, photos)]
        assert deviation[0] == pytest.approx(deviation[1], rel=0.08)
        spectra = [np.sqrt(octaves(part)[:, :5].mean(0)) for part in (sheets, photos)]
        assert np.abs(np.log(spectra[0] / spectra[1])).mean() < 0.15


@pytest.fixture(scope="session")
def photographs(real_data: Path) -> Array:
    from PIL import Image

    images = []
    with tarfile.open(real_data / "imagenet-val-2k.tar") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".jpg") else None
            if file is not None:
                images.append(np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB")))
            if len(images) == 400:
                return np.stack(images[::2])
    raise AssertionError("fewer than 400 images in the archive")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED)
def test_fixed_ones_agree_on_photographs(name: str, photographs: Array) -> None:
    gap = np.abs(ours(photographs, name, 5).astype(float) - theirs(photographs, name, 5))
    print(f"\n{name}: {gap.mean():.3f} grey levels")
    assert gap.mean() < 1


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_random_ones_agree_on_photographs(name: str, photographs: Array) -> None:
    # Where one draw decides the whole picture, a few draws per image are needed to see the law.
    draws = 4 if name in ("frost", "fog", "motion_blur") else 1
    one = np.concatenate([ours(photographs, name, 5, seed) for seed in range(draws)])
    two = np.concatenate([theirs(photographs, name, 5, seed) for seed in range(draws)])
    found = differences(one, two)
    print(f"\n{name}: mean {found[0]:.2%}, deviation {found[1]:.2%}, spectrum {found[2]:.2%}")
    assert max(found) < 0.05, found
