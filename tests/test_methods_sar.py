"""SAR's sharpness-aware step by hand, and its recovery."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.ops.sam import _climb, climbed


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.flat = nn.Flatten()
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return 3 * self.head(self.norm(self.flat(x)))


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def by_hand(model, pixels, lr, radius, bound):
    """One SAM step over the norm, written out with in-place climbing."""
    norm = [model.norm.weight, model.norm.bias]
    h = entropy(model(pixels))
    keep = h < bound
    grads = torch.autograd.grad(h[keep].mean(), norm)
    length = torch.sqrt(sum((g**2).sum() for g in grads))
    start = [p.detach().clone() for p in norm]
    with torch.no_grad():
        for p, g in zip(norm, grads, strict=True):
            p.add_(radius * g / length)
    h = entropy(model(pixels))[keep]
    second = h[h < bound].mean()
    grads = torch.autograd.grad(second, norm)
    with torch.no_grad():
        for p, s, g in zip(norm, start, grads, strict=True):
            p.copy_(s - lr * g)
    return float(second.detach())


def test_step_equals_the_hand_computation():
    pixels = torch.rand(16, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    kappa, radius = 0.7, 0.3
    bound = kappa * math.log(4)
    hand = Small()
    kept = int((entropy(hand(pixels)) < bound).sum())
    assert 2 < kept < 16
    # lr is stated for 64 images, so a batch of 16 has a quarter of it.
    loss = by_hand(hand, pixels, lr=0.5 * 16 / 64, radius=radius, bound=bound)
    settings = {"kappa": kappa, "radius": radius, "recover_below": -1.0, "first_blocks": None}
    method = adapt(Small(), "sar", normalize="none", lr=0.5, momentum=0.0, **settings)
    out = method.step(pixels)
    assert out.loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(method.model.base.norm.weight, hand.norm.weight)
    torch.testing.assert_close(method.model.base.norm.bias, hand.norm.bias)
    assert not torch.allclose(hand.norm.weight, torch.ones(12))
    plain = adapt(
        Small(), "sar", normalize="none", lr=0.5, momentum=0.0, **(settings | {"radius": 0.0})
    )
    plain(pixels)
    assert not torch.allclose(plain.model.base.norm.weight, hand.norm.weight, atol=1e-5)


def test_climb_on_a_quadratic():
    a, b = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([2.0]))
    loss = (a**2).sum() + 0.5 * (b**2).sum()  # gradients (2, 4) and (2): length √24
    values = climbed({"a": a, "b": b}, loss, 0.1)
    step = 0.1 / math.sqrt(24)
    torch.testing.assert_close(values["a"], torch.tensor([1 + 2 * step, 2 + 4 * step]))
    torch.testing.assert_close(values["b"], torch.tensor([2 + 2 * step]))
    (values["a"] ** 2).sum().backward()  # the gradient up there reaches the parameter
    torch.testing.assert_close(a.grad, 2 * values["a"].detach())
    assert a.tolist() == [1.0, 2.0]


def test_climb_without_slope_or_with_a_broken_one():
    assert _climb({"a": torch.zeros(3)}, 0.1)["a"].tolist() == [0, 0, 0]
    a = nn.Parameter(torch.tensor([0.0]))
    assert climbed({"a": a}, (a / 0).sum(), 0.1) is None


def test_recovery_below_the_bound_and_the_average_of_the_loss():
    batches = small_batches(6)
    loose = {"kappa": 1.0, "lr": 0.01}
    calm = adapt(small_model(), "sar", recover_below=-1.0, **loose)
    losses = [calm.step(b).loss for b in batches]
    average, averages = None, []
    for loss in losses:
        average = loss if average is None else 0.9 * average + 0.1 * loss
        averages.append(average)
    assert calm.average["loss"] == pytest.approx(average, rel=1e-6)
    first = next(i for i in range(1, 6) if averages[i] < min(averages[:i]))
    bound = (averages[first] + min(averages[:first])) / 2
    method = adapt(small_model(), "sar", recover_below=bound, **loose)
    for index, batch in enumerate(batches[: first + 1]):
        out = method.step(batch)
        assert out.loss == pytest.approx(losses[index], rel=1e-6)
        assert ("recovered the source model" in out.events) == (index == first)
    weights = method.weights
    assert all(torch.equal(p, weights.source[n]) for n, p in weights.parameters.items())
    assert method.average["loss"] is None
    assert not method.optimizer.state_dict()["state"]


def test_only_norms_of_the_first_blocks_move():
    method = adapt(small_model(), "sar", first_blocks=1)
    assert sorted(method.trainable()) == [
        "blocks.0.norm1.bias",
        "blocks.0.norm1.weight",
        "blocks.0.norm2.bias",
        "blocks.0.norm2.weight",
    ]
    every = adapt(copy.deepcopy(small_model()), "sar", first_blocks=None)
    assert "norm.weight" in every.trainable()


def test_nothing_reliable_moves_nothing():
    method = adapt(small_model(), "sar", kappa=1e-6)
    out = method.step(small_batches(1)[0])
    assert not out.updated
    assert out.used == 0
    assert method.average["loss"] is None


def test_where_nothing_is_reliable_momentum_goes_on():
    """The gradient is zero, so a step is -lr * 0.9 times what the buffer holds."""
    method = adapt(small_model(), "sar", kappa=1.0, lr=0.01, recover_below=-1.0)
    first, second = small_batches(2)
    assert method.step(first).used > 0
    average = method.average["loss"]
    speed = {n: method.optimizer.state[p]["momentum_buffer"].clone() for n, p in named(method)}
    before = {n: p.detach().clone() for n, p in named(method)}
    method.config = method.config.replace(kappa=1e-6)
    out = method.step(second)
    assert (out.used, out.updated, method.average["loss"]) == (0, True, average)
    for name, parameter in named(method):
        expected = before[name] - 0.01 * 8 / 64 * 0.9 * speed[name]
        torch.testing.assert_close(parameter.detach(), expected)
    assert any(float(value.abs().max()) > 0 for value in speed.values())


def named(method):
    return list(method.weights.parameters.items())
