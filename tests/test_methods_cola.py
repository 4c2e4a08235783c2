"""CoLA: its parameterisation by autograd and torch's own optimizers against the wrapper."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call

from ostinato import adapt
from ostinato.checks import check_method, small_batches, small_model
from ostinato.methods._vectors import DomainVectors
from ostinato.models import VisionModel
from ostinato.ops.trainable import norm_parameters

TENT = {"inner": "tent", "inner_settings": {"lr": 0.05}, "least": 1}


def looks(net, pixels):
    x = net._pos_embed(net.patch_embed(VisionModel(small_model()).prepare(pixels)))[:, 1:]
    return x.mean((0, 1)).detach(), x.var((0, 1)).detach()


def divergence(one, two):
    (m, v), (n, w) = one, two
    both = (v + (m - n) ** 2) / (2 * w) - 0.5 + (w + (m - n) ** 2) / (2 * v) - 0.5
    return float(both.mean())


class Reference:
    """θ = θ₀ + Σ softmax(s·α)ᵢ vᵢ + ε, all three learned from the same entropy."""

    def __init__(self, first):
        self.net = small_model()
        self.vision = VisionModel(self.net)
        parameters = norm_parameters(self.net)
        self.names = {f"base.{n}": p.shape for n, p in parameters.items()}
        self.source = torch.cat([p.detach().flatten() for p in parameters.values()])
        self.vectors = torch.zeros(1, len(self.source))
        self.alpha, self.scale = torch.tensor([first]), torch.ones(1)
        self.rest = torch.zeros_like(self.source, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.rest], lr=0.05, momentum=0.9, weight_decay=0.4)
        self.look = None

    def weights(self, alpha, scale):
        return self.source + (scale * alpha).softmax(0) @ self.vectors + self.rest

    @torch.no_grad()
    def keep(self):
        now = self.weights(self.alpha, self.scale)
        sizes = [math.prod(shape) for shape in self.names.values()]
        factor = max(float(p.abs().mean()) for p in self.rest.split(sizes)) / 0.01
        new = (self.alpha * self.scale).max()
        if factor > 1:
            total = (self.alpha * self.scale).exp().sum()
            new = torch.maximum(new, (total * (factor - 1)).log())
        self.alpha = torch.cat([self.alpha, (new / self.scale).clamp(-10, 10).view(1)])
        self.vectors = torch.cat([self.vectors, (now - self.source)[None]])
        self.rest += now - self.weights(self.alpha, self.scale)

    def step(self, pixels):
        look = looks(self.net, pixels)
        if self.look is not None and divergence(self.look, look) > 0.1:
            self.keep()
            self.look = None
        old = self.look or look
        self.look = tuple(0.8 * a + 0.2 * b for a, b in zip(old, look, strict=True))
        alpha, scale = self.alpha.clone().requires_grad_(), self.scale.clone().requires_grad_()
        flat = self.weights(alpha, scale)
        pieces = flat.split([math.prod(shape) for shape in self.names.values()])
        pairs = zip(self.names.items(), pieces, strict=True)
        given = {name: piece.view(shape) for (name, shape), piece in pairs}
        logits = functional_call(self.vision, given, (pixels,))
        self.optimizer.zero_grad()
        (-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()).backward()
        if len(self.vectors) > 1:
            fresh = torch.optim.AdamW(
                [{"params": [alpha], "weight_decay": 0.1}, {"params": [scale]}], lr=0.1
            )
            fresh.step()
            self.alpha, self.scale = alpha.detach(), scale.detach()
        self.optimizer.step()
        return logits.detach()


def test_weights_mix_and_rest_follow_autograd():
    method = adapt(small_model(), "cola", **TENT)
    reference = Reference(float(method.bank.alphas[0]))
    news = []
    for batch in small_batches(9):
        expected = reference.step(batch)
        out = method.step(batch)
        news.append(out.is_new)
        torch.testing.assert_close(out.logits, expected, atol=2e-3, rtol=2e-3)
    assert news == [False] * 3 + [True] + [False] * 2 + [True] + [False] * 2
    assert len(method.bank) == len(reference.vectors) == 3
    torch.testing.assert_close(method.bank.alphas[:3], reference.alpha, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "inner", ["sar", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tent", "deyo"))]
)
def test_other_methods_inside_conform(inner):
    settings = {"inner": inner, "inner_settings": {"lr": 1e-2}, "least": 1, "vectors": 3}
    report = check_method("cola", **settings)
    assert report.passed, str(report)


def test_a_full_bank_lets_the_weakest_go():
    bank = DomainVectors(2, 2, 1.0, 0.0)
    bank.add(torch.tensor([1.0, 0.0]), 0.0, 0.01)
    bank.add(torch.tensor([0.0, 1.0]), 0.0, 0.01)
    bank.alphas[1], bank.alphas[2] = 0.5, 0.2
    assert bank.weakest() == 2
    bank.remove(1)
    assert len(bank) == 2
    assert bank.vectors[:2].tolist() == [[0, 0], [0, 1]]
    assert bank.alphas.tolist() == pytest.approx([0, 0.2, 0])


def test_small_batches_are_not_judged():
    method = adapt(small_model(), "cola")
    for batch in small_batches(6):
        assert not method.step(batch).is_new
    assert len(method.bank) == 1
