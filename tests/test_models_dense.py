"""Sliding windows and views: against plain loops, and inside an adapted SegFormer."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import ostinato
from ostinato.errors import ConfigError
from ostinato.models import IMAGENET, VisionModel, input_convention, logits_of
from ostinato.models.dense import MultiView, SlidingWindow, _window_starts
from ostinato.ops.features import FeatureTaps
from ostinato.registry import METHODS

CLASSES = 4


def segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_labels=CLASSES,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=16,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SegformerForSemanticSegmentation(config).eval()


def images(count: int = 2, size: tuple[int, int] = (48, 64), seed: int = 0) -> Tensor:
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(seed))


class Positional(nn.Module):
    """Logits that depend on the place within the window, so that misplaced windows show."""

    def __init__(self, coarse: int = 1) -> None:
        super().__init__()
        self.coarse = coarse
        self.mix = nn.Parameter(torch.randn(CLASSES, 3, generator=torch.Generator().manual_seed(1)))
        self.calls: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls.append(tuple(x.shape))
        h, w = x.shape[-2:]
        ramp = torch.arange(h).view(-1, 1) * 0.1 + torch.arange(w) * 0.01
        logits = torch.einsum("ck,bkhw->bchw", self.mix, x) + ramp
        return {"logits": F.avg_pool2d(logits, self.coarse) if self.coarse > 1 else logits}


def naive_windows(net: nn.Module, x: Tensor, size: tuple[int, int], stride: tuple[int, int]):
    """Window by window and pixel by pixel, in numpy."""
    count, _, height, width = x.shape
    total = np.zeros((count, CLASSES, height, width))
    seen = np.zeros((height, width))
    h, w = min(size[0], height), min(size[1], width)
    tops = sorted({min(n * stride[0], height - h) for n in range(height)})
    lefts = sorted({min(n * stride[1], width - w) for n in range(width)})
    for top in tops:
        for left in lefts:
            with torch.no_grad():
                part = net(x[:, :, top : top + h, left : left + w])["logits"]
            part = F.interpolate(part, (h, w), mode="bilinear", align_corners=False).numpy()
            for i in range(h):
                for j in range(w):
                    total[:, :, top + i, left + j] += part[:, :, i, j]
                    seen[top + i, left + j] += 1
    return total / seen


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_windows_agree_with_a_plain_loop(data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(2, 9), st.integers(2, 9)))
    stride = tuple(data.draw(st.integers(1, side)) for side in size)
    shape = data.draw(st.tuples(st.integers(2, 14), st.integers(2, 14)))
    net = Positional(coarse=data.draw(st.sampled_from([1, 2])))
    x = images(2, shape)
    found = SlidingWindow(net, size, stride)(x)
    assert len(net.calls) == 1
    assert found.shape == (2, CLASSES, *shape)
    np.testing.assert_allclose(
        found.detach().numpy(), naive_windows(net, x, size, stride), atol=1e-5
    )


@given(length=st.integers(1, 60), size=st.integers(1, 20), share=st.floats(0.05, 1))
def test_windows_cover_every_pixel_and_stay_inside(length: int, size: int, share: float) -> None:
    starts = _window_starts(length, size, max(1, int(size * share)))
    assert starts == sorted(set(starts))
    covered = {start + n for start in starts for n in range(min(size, length))}
    assert covered == set(range(length))


def test_views_agree_with_a_plain_loop() -> None:
    net, x, scales = Positional(), images(2, (8, 12)), (0.5, 1.0, 1.5)
    found = MultiView(net, scales)(x - 0.5)  # below zero, as normalised images are
    total = np.zeros((2, CLASSES, 8, 12))
    for scale in scales:
        for mirrored in (False, True):
            size = (int(8 * scale), int(12 * scale))
            view = F.interpolate(x - 0.5, size, mode="bilinear") if scale != 1 else x - 0.5
            view = view.flip(-1) if mirrored else view
            with torch.no_grad():
                score = net(view)["logits"].numpy().astype(np.float64)
            odds = np.exp(score - score.max(1, keepdims=True))
            odds = torch.from_numpy(odds / odds.sum(1, keepdims=True))
            back = odds.flip(-1) if mirrored else odds
            total += F.interpolate(back, (8, 12), mode="bilinear").numpy()
    np.testing.assert_allclose(found.detach().numpy(), np.log(total / 6), atol=1e-5)
    net.calls.clear()
    MultiView(net, scales, flip=False)(x)
    assert [call[-2:] for call in net.calls] == [(8, 12), (4, 6), (12, 18)]  # plain once, first


def test_one_plain_view_changes_nothing_but_the_scale() -> None:
    net, x = segformer(), images()
    with torch.no_grad():
        plain = net(x).logits
        torch.testing.assert_close(MultiView(net, (1.0,), flip=False)(x), plain.log_softmax(1))


def features(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad(), FeatureTaps(model) as taps:
        model(x)
    return taps.features


def test_taps_see_the_plain_view_alone() -> None:
    net, x = segformer(), images()
    for scales in ((0.75, 1.0, 1.5), (0.75, 1.5)):
        seen = features(MultiView(net, scales), x)
        for one, plain in zip(seen, features(net, x), strict=True):
            torch.testing.assert_close(one, plain, rtol=0, atol=0)


def test_taps_see_one_feature_per_image_of_its_windows() -> None:
    net, x = segformer(), images()
    sliding = SlidingWindow(net, (32, 32), (16, 32))
    seen = features(sliding, x)
    nested = features(MultiView(sliding, (0.75, 1.0)), x)
    cuts = [x[..., t : t + 32, s : s + 32] for t in (0, 16) for s in (0, 32)]
    by_hand = [
        torch.stack(parts).mean(0) for parts in zip(*(features(net, c) for c in cuts), strict=True)
    ]
    for one, other, expected in zip(seen, nested, by_hand, strict=True):
        assert one.shape[0] == 2
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-5)


WRAPPERS = {
    "window": lambda net: SlidingWindow(net, (32, 32)),
    "views": lambda net: MultiView(net, (0.75, 1.0)),
    "both": lambda net: MultiView(SlidingWindow(net, (32, 32)), (0.75, 1.0)),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_dual_expert_adapts_inside_and_unwraps(kind: str) -> None:
    net = segformer()
    before = copy.deepcopy(net.state_dict())
    model = WRAPPERS[kind](net)
    assert input_convention(model) == IMAGENET
    assert model.config is net.config
    with torch.no_grad():
        source = VisionModel(model)(images())
    statistics = ostinato.collect_statistics(model, images(6, seed=5), batch_size=4)
    assert [len(m) for m in statistics.means] == [8, 16, 24, 32]
    plain = ostinato.collect_statistics(net, images(6, seed=5))
    if kind == "views":
        for one, other in zip(statistics.means, plain.means, strict=True):
            torch.testing.assert_close(one, other)
    settings = {"kappa": 5.0, "lr": 0.1, "discriminator": {"evidence": 1}}
    method = ostinato.adapt(model, preset="source-free", **settings)
    assert len(method.pool.layers) == 4
    first = method.step(images())
    torch.testing.assert_close(first.logits, source)
    assert first.updated
    assert first.loss is not None
    groups = [method.pool.layers[name].shared for name in method.pool.layers]
    assert all(float(g.up.detach().abs().max()) > 0 for g in groups)
    assert not torch.equal(method(images()), source)
    assert ostinato.unwrap(method) is model
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    with torch.no_grad():
        assert torch.equal(VisionModel(model)(images()), source)


PER_PIXEL = [n for n in METHODS if "segmentation" in METHODS[n].info.tasks]


@pytest.mark.parametrize("name", [n for n in PER_PIXEL if n not in ("dual_expert", "source")])
def test_every_per_pixel_method_takes_windows_and_views(name: str) -> None:
    model = WRAPPERS["both"](segformer())
    quick = {"scales": (1.0,), "warm_steps": 2, "warm_batch": 2}
    own = {k: v for k, v in quick.items() if k in METHODS[name].Config.model_fields}
    prepared = None
    if "prepared file" in METHODS[name].info.needs:
        labels = torch.zeros(4, 48, 64, dtype=torch.long)
        prepared = ostinato.prepare(model, name, images(4), labels, **own)
    if "source statistics" in METHODS[name].info.needs:
        own["statistics"] = ostinato.collect_statistics(model, images(4))
    method = ostinato.adapt(model, name, prepared=prepared, **own)
    out = method.step(images(1))
    assert out.logits.shape == (1, CLASSES, 48, 64)
    assert bool(out.logits.isfinite().all())
    assert ostinato.unwrap(method) is model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda net: SlidingWindow(net, (0, 4)), "height and width"),
        (lambda net: SlidingWindow(net, (4, 4), (5, 4)), "no window sees"),
        (lambda net: MultiView(net, ()), "positive numbers"),
        (lambda net: MultiView(net, (1.0, 1.0)), "each once"),
        (lambda net: MultiView(net, (-1.0,)), "positive numbers"),
    ],
)
def test_impossible_views_are_refused(build, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Positional())


@pytest.mark.parametrize("kind", ["window", "views"])
def test_a_classifier_is_refused(kind: str) -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))
    with pytest.raises(ConfigError, match="predict per pixel"):
        WRAPPERS[kind](net)(images())


def test_gradients_pass_and_bf16_stays_close() -> None:
    net, x = segformer(), images()
    for make in WRAPPERS.values():
        model = make(net)
        with torch.autocast("cpu", torch.bfloat16):
            half = logits_of(model(x))
        full = model(x)
        assert half.dtype == torch.float32
        assert float((half.log_softmax(1) - full.log_softmax(1)).detach().abs().max()) < 0.1
        net.zero_grad()
        full[:, 0].sum().backward()
        assert all(p.grad is not None for p in net.segformer.parameters())
