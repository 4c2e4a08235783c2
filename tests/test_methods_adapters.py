"""Adapters: ViDA's ranks, scales and rates, EcoTTA's meta networks, and their warm-up."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ostinato.api import adapt, prepare, unwrap
from ostinato.checks import CLASSES, small_batches, small_model
from ostinato.errors import ConfigError, MissingResource, StateError, TargetError
from ostinato.methods._adapters import TwoRanks, attention_linears, beside_parts
from ostinato.methods._warmup import warm_up
from ostinato.methods.base import Method
from ostinato.methods.ecotta import _distillation
from ostinato.methods.vida import _scales_for
from ostinato.ops.consistency import symmetric_cross_entropy
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.snapshot import State


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def labelled() -> tuple[Tensor, Tensor]:
    images = torch.cat(small_batches(4, seed=9))
    return images, torch.arange(len(images)) % CLASSES


def test_two_ranks_add_their_scaled_products() -> None:
    pair = TwoRanks(4, 6, 1, 3, seeded())
    for parameter in pair.parameters():
        nn.init.normal_(parameter, generator=seeded())
    pair.scales = (0.5, 2.0)
    tokens = torch.randn(2, 4)
    low = tokens @ pair.low_down.T @ pair.low_up.T
    high = tokens @ pair.high_down.T @ pair.high_up.T
    assert pair.low_down.shape == (1, 4)
    assert pair.high_down.shape == (3, 4)
    torch.testing.assert_close(pair(tokens), 0.5 * low + 2 * high)


@pytest.mark.parametrize(
    ("uncertainty", "low", "high"), [(0.3, 0.7, 1.3), (0.2, 0.8, 1.2), (0.1, 1.1, 0.9)]
)
def test_an_unsure_model_leans_on_the_high_rank(
    uncertainty: float, low: float, high: float
) -> None:
    assert _scales_for(uncertainty, 0.2) == pytest.approx((low, high))


def test_both_scales_reach_every_adapter() -> None:
    method = adapt(small_model(), "vida", warmed=False, threshold=0.0, high_rank=4)
    method(small_batches(1)[0])
    scales = {adapter.scales for adapter in method.adapted.parts()}
    assert len(scales) == 1
    low, high = scales.pop()
    assert high > 1 > low
    assert low + high == pytest.approx(2)
    # qkv and proj of both blocks.
    assert len(method.adapted.parts()) == 4


def test_vida_measures_uncertainty_as_the_variance_of_logits_over_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = adapt(small_model(), "vida", warmed=False, views=3, high_rank=4)
    given = [torch.randn(8, CLASSES, generator=seeded()) * k for k in (1, 2, 3)]
    answers = iter(given)
    monkeypatch.setattr(method, "_teach", lambda batch, pixels: next(answers))
    batch = method._receive(small_batches(1)[0], None, None)
    expected = 0.1 * torch.stack(given).numpy().var(0, ddof=1).mean()
    assert method._uncertainty(batch) == pytest.approx(float(expected), rel=1e-5)


def test_vida_starts_as_the_source_and_its_teachers_keep_two_rates() -> None:
    images = small_batches(1)[0]
    method = adapt(
        small_model(), "vida", warmed=False, optimizer="adam", lr=1e-2, adapter_lr=1e-2,
        ema=0.9, adapter_ema=0.5, high_rank=4,
    )  # fmt: skip
    source = adapt(small_model(), "source")(images)
    before = {n: p.detach().clone() for n, p in method.trainable().items()}
    added = method.adapted.added()
    start = {n: p.detach().clone() for n, p in added.items()}
    torch.testing.assert_close(method(images), source)
    for name in ("head.weight", "blocks.0.attn.qkv.weight"):
        now = method.trainable()[name].detach()
        assert not torch.equal(now, before[name])
        torch.testing.assert_close(method.teacher.values[name], 0.9 * before[name] + 0.1 * now)
    name = next(n for n in added if n.endswith("high_up"))
    assert not torch.equal(added[name], start[name])
    expected = 0.5 * start[name] + 0.5 * added[name].detach()
    torch.testing.assert_close(method.adapter_teacher.values[name], expected)


def test_symmetric_cross_entropy_is_both_directions() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    p, q = a.softmax(1), b.softmax(1)
    expected = -0.5 * (q * p.log()).sum(1) - 0.5 * (p * q.log()).sum(1)
    torch.testing.assert_close(symmetric_cross_entropy(a, b), expected)
    torch.testing.assert_close(symmetric_cross_entropy(a, a), softmax_entropy(a))


@pytest.mark.parametrize("name", ["vida", "ecotta"])
def test_unwrapping_leaves_no_hook(name: str) -> None:
    model = small_model()
    assert hooks(model) == 0
    method = adapt(model, name, warmed=False)
    assert hooks(model) > 0
    method(small_batches(1)[0])
    assert hooks(unwrap(method)) == 0


@pytest.mark.parametrize("name", ["vida", "ecotta"])
def test_warming_lowers_the_source_loss_and_moves_adapters_alone(name: str) -> None:
    images, labels = labelled()
    model = small_model()
    clean = {k: v.clone() for k, v in model.state_dict().items()}
    settings = {"warm_steps": 25, "warm_lr": 1e-2, "warm_held": 0.0}
    prepared = prepare(model, name, images, labels, **settings)
    assert hooks(model) == 0
    assert all(torch.equal(v, clean[k]) for k, v in model.state_dict().items())
    losses = []
    for given in ({"warmed": False}, {"prepared": prepared}):
        method = adapt(small_model(), name, lr=0.0, **settings, **given)
        logits = method(images)
        losses.append(float(nn.functional.cross_entropy(logits, labels)))
    assert losses[1] < 0.9 * losses[0]


def warm_line(labels: Tensor, images: Tensor) -> tuple[nn.Linear, State]:
    net = nn.Linear(images.shape[1], 3)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    given = dict(net.named_parameters())
    common = {"steps": 40, "lr": 0.3, "batch": 8, "generator": seeded()}
    return net, warm_up(net, given, images, labels, held=0.25, **common)


@pytest.mark.parametrize("learnable", [True, False])
def test_warming_keeps_the_values_that_held_out_images_like_best(learnable: bool) -> None:
    images = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))
    if learnable:
        labels = images[:, :3].argmax(1)
    net, state = warm_line(labels, images)
    unseen = torch.randperm(40, generator=seeded())[:10]

    def loss(weight: Tensor, bias: Tensor) -> float:
        logits = images[unseen] @ weight.T + bias
        return float(nn.functional.cross_entropy(logits, labels[unseen]).detach())

    gain = state.values["held out"]
    assert (gain["images"], gain["before"]) == (10, pytest.approx(math.log(3)))
    assert loss(**state.tensors) == pytest.approx(gain["after"])
    assert loss(**state.tensors) <= loss(net.weight, net.bias)
    if learnable:
        assert gain["after"] < 0.7 * gain["before"]
    else:  # labels without sense, learned by heart
        assert loss(net.weight, net.bias) > gain["before"] >= gain["after"]


def test_warming_without_labels_takes_the_models_own() -> None:
    images, _ = labelled()
    own = adapt(small_model(), "source")(images).argmax(1)
    settings = {"warm_steps": 3, "rank": 4}
    told = prepare(small_model(), "ecotta", images, own, **settings)
    untold = prepare(small_model(), "ecotta", images, **settings)
    assert all(torch.equal(v, untold.tensors[k]) for k, v in told.tensors.items())


def test_missing_or_wrong_preparation_says_what_to_do() -> None:
    images, labels = labelled()
    with pytest.raises(MissingResource, match="ostinato prepare vida"):
        adapt(small_model(), "vida")
    prepared = prepare(small_model(), "ecotta", images, labels, warm_steps=1, rank=4)
    with pytest.raises(StateError, match="Prepare again"):
        adapt(small_model(), "ecotta", prepared=prepared, rank=8)
    with pytest.raises(ConfigError, match="32 images and 31 labels"):
        prepare(small_model(), "ecotta", images, labels[:31], warm_steps=1)


def test_torch_attention_is_refused_since_its_linears_are_never_called() -> None:
    from torchvision.models.vision_transformer import VisionTransformer

    with pytest.raises(TargetError, match="timm or Hugging Face"):
        attention_linears(VisionTransformer(32, 8, 1, 2, 32, 64))


def test_meta_networks_change_each_part_as_their_formula_says() -> None:
    model, images = small_model(), small_batches(1)[0]
    adapted = beside_parts(model, 1, 4, seeded())
    meta = adapted.parts()[0]
    for parameter in meta.parameters():
        nn.init.normal_(parameter, std=0.3, generator=seeded())
    seen: dict[str, Tensor] = {}
    model.blocks[0].register_forward_pre_hook(lambda m, a: seen.update(entered=a[0]))
    model.norm.register_forward_pre_hook(lambda m, a: seen.update(changed=a[0]))
    with torch.no_grad():
        adapted(images)
        adapted.detach()
        frozen = model.blocks(seen["entered"])
        hidden = nn.functional.gelu(meta.norm(seen["entered"]) @ meta.down.T)
        expected = frozen * meta.scale + meta.shift + hidden @ meta.up.T
    torch.testing.assert_close(seen["changed"], expected)
    torch.testing.assert_close(meta.gap.detach(), (expected - frozen).abs().mean())


def test_ecotta_pulls_to_the_frozen_parts_before_it_lowers_the_entropy() -> None:
    images = small_batches(1)[0]

    def built(kappa: float) -> Method:
        method = adapt(small_model(), "ecotta", warmed=False, rank=4, parts=2, kappa=kappa)
        for parameter in method.adapted.added().values():
            nn.init.normal_(parameter, std=0.2, generator=seeded())
        return method

    # The second forward comes before its own step, so its logits do not depend on the bound.
    entropy = softmax_entropy(built(0.5)(images))
    bound = float(entropy.median()) + 1e-6
    method = built(bound / math.log(CLASSES))
    first = method.objective(method._receive(images, None, None))
    gaps = [meta.gap for meta in method.adapted.parts()]
    assert len(gaps) == 2
    torch.testing.assert_close(first.loss, 0.5 * (gaps[0] + gaps[1]))
    out = method.step(images)
    assert not torch.allclose(out.logits, first.logits)  # the second forward's are returned
    kept = entropy[entropy < bound]
    assert 0 < len(kept) == out.used < len(images)
    assert out.loss == pytest.approx(float(kept.mean()), rel=1e-5)


def test_distillation_teaches_each_part_alone() -> None:
    model = small_model().requires_grad_(False)
    adapted = beside_parts(model, 2, 4, seeded())
    for parameter in adapted.added().values():
        nn.init.normal_(parameter, std=0.2, generator=seeded())
    adapted(small_batches(1)[0])
    first, second = adapted.parts()
    grads = torch.autograd.grad(
        second.gap, list(first.parameters()), retain_graph=True, allow_unused=True
    )
    assert all(g is None for g in grads)
    torch.testing.assert_close(_distillation(adapted), first.gap + second.gap)
