"""From the words of a spec to streams: data sets, domains, orders, corruptions on the fly."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from ostinato.data.corruptions import COMMON, DRIVING, corrupt
from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.datasets.base import open_dataset
from ostinato.data.loading import _image_seed, transform_image
from ostinato.data.opening import _corruption_order, _parse_domain
from ostinato.data.streams import build_stream
from ostinato.errors import ConfigError, DataError

trees = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("_trees.py"))))


def pictures(count: int = 6, side: int = 16, **options: object) -> ArrayDataset:
    draw = np.random.default_rng(1)
    images = draw.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    return ArrayDataset(images, np.arange(count) % 3, **options)


def test_the_usual_order_and_the_ten_fixed_ones() -> None:
    assert _corruption_order(0) == COMMON
    orders = [_corruption_order(n) for n in range(11)]
    assert len(set(orders)) == 11
    assert all(sorted(order) == sorted(COMMON) for order in orders)
    # First and last of CoTTA's ten, as published.
    assert _corruption_order(1)[:3] == ("brightness", "pixelate", "gaussian_noise")
    assert _corruption_order(10)[-3:] == ("snow", "motion_blur", "brightness")
    with pytest.raises(ConfigError, match="choose 0"):
        _corruption_order(11)


def test_imagenet_c_in_order_from_disk(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path / "imagenet-c")
    stream = build_stream("continual", {"options": {"subset": "full"}}, roots=tmp_path)
    assert stream.domains == COMMON
    assert (stream.images, stream.num_classes, stream.task) == (90, 1000, "classification")
    assert stream[0].keys[0].startswith("imagenet-c/gaussian_noise/5/")
    ordered = build_stream("continual", {"order": 4, "options": {"subset": "full"}}, roots=tmp_path)
    assert ordered.domains == _corruption_order(4)
    with pytest.raises(ConfigError, match="leave order at 0"):
        build_stream("continual", {"order": 4, "domains": ["fog"]}, roots=tmp_path)
    by_rule = build_stream("continual", {"domains": ["fog"]}, roots=tmp_path)
    assert "every 10th" in by_rule.notes()[0]


def test_imagenet_c_gradual_takes_stored_severities(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path, names=("fog",), severities=(1, 2, 3, 4, 5))
    options = {"domains": ["fog"], "options": {"subset": "full"}, "limit": 4}
    stream = build_stream("gradual", options, roots={"imagenet-c": tmp_path})
    assert [b.keys[0].split("/")[2] for b in stream] == list("123454321")
    assert len({tuple(k.rsplit("/", 1)[1] for k in b.keys) for b in stream}) == 1
    assert torch.equal(stream[0].images, stream[8].images)


def test_severity_written_with_the_domain(tmp_path: Path) -> None:
    trees.imagenet_c_tree(tmp_path, names=("fog",), severities=(1, 5))
    options = {"domains": ["fog", "fog@1"], "options": {"subset": "full"}}
    stream = build_stream("continual", options, roots={"imagenet-c": tmp_path})
    assert [b.keys[0].split("/")[2] for b in stream] == ["5", "1"]
    assert stream.domains == ("fog", "fog@1")
    with pytest.raises(ConfigError, match="after '@' comes a severity"):
        _parse_domain("fog@high")
    with pytest.raises(DataError, match=r"lacks 'snow'.*data fetch imagenet-c"):
        build_stream("continual", {"domains": ["snow"]}, roots={"imagenet-c": tmp_path})


@pytest.mark.parametrize("constants", ["imagenet", "cifar"])
def test_corruptions_on_the_fly_are_the_real_ones(constants: str) -> None:
    data = pictures(side=32, constants=constants)
    options = {"dataset": "array", "batch_size": 4, "domains": ["gaussian_noise", "fog@2"]}
    stream = build_stream("continual", {**options, "seed": 3}, datasets={"array": data})
    for number, (name, severity) in enumerate([("gaussian_noise", 5), ("fog", 2)]):
        seeds = [_image_seed(data.key(i), 3) for i in range(6)]
        clean = torch.stack([data.image(i) for i in range(6)])
        expected = corrupt(clean, name, severity, seeds, constants=constants)
        shown = torch.cat([stream[2 * number].images, stream[2 * number + 1].images])
        assert torch.equal(shown, expected)
    whole = build_stream(
        "continual", {**options, "seed": 3, "batch_size": 6}, datasets={"array": data}
    )
    assert torch.equal(whole[0].images[:4], stream[0].images)


def test_cifar_is_corrupted_small_and_others_at_the_models_size() -> None:
    sizes: list[tuple[int, ...]] = []

    def spy(images: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        sizes.append(tuple(images.shape[2:]))
        return images

    for constants in ("cifar", "imagenet"):
        data = pictures(side=32, constants=constants)
        options = {"dataset": "array", "domains": ["fog"], "transform": "resize384-bilinear"}
        stream = build_stream("continual", options, datasets={"array": data}, corrupt=spy)
        assert stream[0].images.shape[2:] == (384, 384)
    assert sizes == [(32, 32), (384, 384)]


def test_defaults_for_data_with_and_without_domains(tmp_path: Path) -> None:
    single = build_stream("continual", {"dataset": "array"}, datasets={"array": pictures()})
    assert single.domains == COMMON
    several = pictures(domains=list("aabbcc"))
    own = build_stream("recurring", {"dataset": "array"}, datasets={"array": several})
    assert own.domains == ("a", "b", "c")
    assert own.rounds == 3
    with pytest.raises(ConfigError, match="has its own domains"):
        build_stream("continual", {"dataset": "array", "order": 1}, datasets={"array": several})
    trees.acdc_tree(tmp_path)
    acdc = build_stream(
        "recurring",
        {"dataset": "acdc", "batch_size": 1, "transform": "half"},
        roots={"acdc": tmp_path},
    )
    assert acdc.domains == ("fog", "night", "rain", "snow")  # its own, not the corruptions
    assert (acdc.images, acdc.num_classes, acdc.task) == (24, 19, "segmentation")
    batch = acdc[0]
    assert (batch.images.shape, batch.labels.shape) == ((1, 3, 4, 8), (1, 8, 16))
    assert int(batch.labels[0, 0, 0]) == 255
    small = build_stream(
        "continual",
        {"dataset": "acdc", "batch_size": 1, "transform": "half", "resize_labels": True},
        roots={"acdc": tmp_path},
    )
    assert small[0].labels.shape == (1, 4, 8)


def test_driving_scenes_get_the_weathers() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 24, 32), dtype=np.uint8)
    scenes = ArrayDataset(images, np.zeros((2, 24, 32), np.uint8), num_classes=19)
    stream = build_stream("continual", {"dataset": "array"}, datasets={"array": scenes})
    assert stream.domains == DRIVING
    assert not torch.equal(stream[0].images, torch.from_numpy(images))


def test_domains_can_name_a_data_set_and_a_corruption(tmp_path: Path) -> None:
    trees.wordnet_tree(tmp_path / "imagenet-val", [1, 2])
    datasets = {"array": pictures(domains=list("aaabbb"), outputs=1000)}
    options = {"dataset": "array", "domains": ["a", "b+fog@2", "imagenet-val:imagenet-val"]}
    stream = build_stream("continual", options, roots=tmp_path, datasets=datasets)
    assert stream.domains == ("a", "b+fog@2", "imagenet-val:imagenet-val")
    assert [len(s) for s in stream.segments] == [3, 3, 2]
    assert torch.equal(stream[0].images[0], datasets["array"].image(0))
    with pytest.raises(ConfigError, match="Did you mean 'fog'"):
        build_stream("continual", {"dataset": "array", "domains": ["fogg"]}, datasets=datasets)


def test_a_crs_over_own_folders_is_one_line(tmp_path: Path) -> None:
    for place in ("day/cat", "day/dog", "night/dog"):
        for n in range(4):
            trees.picture(tmp_path / place / f"{n}.png", value=n)
    folders = [str(tmp_path / "day"), str(tmp_path / "night")]
    options = {"dataset": "folder", "domains": folders, "rounds": 2, "batch_size": 8}
    stream = build_stream("recurring", options)
    assert [(b.domain, b.round, len(b)) for b in stream] == [
        ("day", 0, 8),
        ("night", 0, 4),
        ("day", 1, 8),
        ("night", 1, 4),
    ]
    assert stream[1].labels.tolist() == [1] * 4


def test_two_hundred_classes_travel_with_the_batch(tmp_path: Path) -> None:
    columns = sorted(trees.part_columns())
    trees.wordnet_tree(tmp_path / "imagenet-a", columns)
    options = {"dataset": "imagenet-a", "domains": ["imagenet-a"], "batch_size": 7}
    stream = build_stream("continual", options, roots=tmp_path)
    assert stream.num_classes == 1000
    data = open_dataset("imagenet-a", tmp_path)
    for batch in stream:
        assert batch.classes is not None
        assert batch.classes.tolist() == columns
        assert int(batch.labels.max()) < 200
    order = [int(v) for b in stream for v in b.labels]
    assert order != sorted(order)  # class folders are shuffled
    assert sorted(order) == [data.label(i) for i in range(200)]


def test_missing_roots_are_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OSTINATO_DATA", raising=False)
    with pytest.raises(DataError, match="OSTINATO_DATA"):
        build_stream("continual")
    trees.imagenet_c_tree(tmp_path / "imagenet-c", names=("fog",))
    monkeypatch.setenv("OSTINATO_DATA", str(tmp_path))
    assert build_stream("continual", {"domains": ["fog"]}).domains == ("fog",)


def test_description_is_one_line_with_the_counts() -> None:
    options = {"dataset": "array", "domains": ["fog"], "batch_size": 4, "seed": 9}
    text = build_stream("recurring", options, datasets={"array": pictures()}).describe()
    assert "\n" not in text
    for part in ("recurring", "3 rounds", "18 images", "batches of 4", "3 classes", "seed 9"):
        assert part in text


def test_literature_transform_equals_torchvision() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    from PIL import Image

    literature = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
        ]
    )
    draw = np.random.default_rng(0)
    for height, width in ((224, 224), (300, 451), (500, 333), (230, 231)):
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = np.asarray(literature(Image.fromarray(pixels)))
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        shown = transform_image("resize256-crop224", image).permute(1, 2, 0).numpy()
        assert np.array_equal(shown, expected)


def test_half_is_bilinear_sampling_at_two_and_384_is_interpolation() -> None:
    draw = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 108, 192), generator=draw, dtype=torch.uint8)
    sampled = interpolate(image[None].float(), scale_factor=0.5, mode="bilinear")
    assert (transform_image("half", image).float() - sampled[0]).abs().max() <= 0.5
    small = image[:, :32, :32]
    large = interpolate(small[None].float(), size=(384, 384), mode="bilinear")
    assert (transform_image("resize384-bilinear", small).float() - large[0]).abs().max() <= 1.001
