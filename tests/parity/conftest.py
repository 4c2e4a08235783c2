"""What the parity suite computes with: a transformer and optimizers written out from formulas.

Each test here re-derives one peer's rule from its paper and its authors' settings, walks several
batches with it in float64, and compares predictions and weights with the method's. Nothing of the
package takes part on the reference's side but the tiny model's start values, and, where a rule is
random, the draws: views, shuffles and fresh prompts are those of the method, which tests/test_ops_*
check against other libraries. Rates are higher than the authors' so that a few steps show.

Where a release departs from its paper, the method's `differences` say which of them it follows;
these tests hold it to that. ADMA's, BECoTTA's and SVDP's releases are for other tasks or data, and
VDP has none: test_inputs holds them to their papers' rules in the form that `differences` states.
GAIN's is not known: test_newest holds it to our reading. test_every_method says which peers' rules
are written out elsewhere, and fails where one is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato import adapt
from ostinato.checks import small_model

Named = dict[str, Tensor]
HEADS, PATCH = 2, 8


class Rule:
    """The tiny model as a function of its named weights, and plain optimizers."""

    def __init__(self) -> None:
        self.source = {n: p.detach().double() for n, p in small_model().named_parameters()}

    def every(self) -> Named:
        """All weights, ready to be moved."""
        return leaves(self.source)

    def norms(self, *, final: bool = True) -> Named:
        """Scales and shifts of the normalisations, with or without the one after the blocks."""
        wanted = {n: v for n, v in self.source.items() if "norm" in n}
        return leaves({n: v for n, v in wanted.items() if final or n.startswith("blocks")})

    def tokens(self, weights: Named, pixels: Tensor) -> Tensor:
        """What enters the first block: class token, patches, and positions added."""
        w = {**self.source, **weights}
        normal = (pixels.double() - 0.5) / 0.5
        patches = F.conv2d(
            normal, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH
        )
        rows = patches.flatten(2).transpose(1, 2)
        return torch.cat([w["cls_token"].expand(len(rows), -1, -1), rows], 1) + w["pos_embed"]

    def block(self, weights: Named, number: int, x: Tensor) -> Tensor:
        """One block: attention and a two-layer network, each after a norm and beside a skip."""
        w = {**self.source, **weights}
        name = f"blocks.{number}."
        y = norm(w, name + "norm1", x)
        qkv = linear(w, name + "attn.qkv", y).unflatten(-1, (3, HEADS, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        seen = ((q @ k.transpose(2, 3)) / q.shape[-1] ** 0.5).softmax(-1)
        self.attention = seen.mean(1)[:, 0, 1:]  # of the class token, over the rest
        x = x + linear(w, name + "attn.proj", (seen @ v).transpose(1, 2).flatten(2))
        y = F.gelu(linear(w, name + "mlp.fc1", norm(w, name + "norm2", x)))
        return x + linear(w, name + "mlp.fc2", y)

    def features(
        self, weights: Named, pixels: Tensor, edit: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The class token that goes into the classifier; `edit` changes what enters the blocks."""
        x = self.tokens(weights, pixels)
        x = x if edit is None else edit(x)
        for number in range(2):
            x = self.block(weights, number, x)
        return norm({**self.source, **weights}, "norm", x)[:, 0]

    def classify(self, weights: Named, features: Tensor) -> Tensor:
        """Logits of features."""
        return linear({**self.source, **weights}, "head", features)

    def logits(
        self, weights: Named, pixels: Tensor, edit: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Logits of images."""
        return self.classify(weights, self.features(weights, pixels, edit))

    def draws(self, seed: int) -> torch.Generator:
        """The random numbers that a method of this seed draws."""
        return adapt(small_model(), "source", seed=seed).random.generator

    sgd = staticmethod(lambda *a, **k: Sgd(*a, **k))
    adam = staticmethod(lambda *a, **k: Adam(*a, **k))

    @staticmethod
    def entropy(logits: Tensor) -> Tensor:
        """−Σ p ln p of each image."""
        p = logits.softmax(1)
        return -(p * p.log()).sum(1)

    @staticmethod
    def cross(logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of each image with another prediction's probabilities."""
        return -(target.softmax(1) * logits.log_softmax(1)).sum(1)

    @staticmethod
    def follow(teacher: Named, student: Named, keep: float) -> Named:
        """keep · teacher + (1 − keep) · student."""
        return {n: keep * v + (1 - keep) * student[n].detach() for n, v in teacher.items()}

    @staticmethod
    def same(mine: Tensor, expected: Tensor) -> None:
        """Equal up to the method's single precision."""
        torch.testing.assert_close(mine.double(), expected.detach(), rtol=2e-3, atol=2e-4)

    def same_weights(self, method: Any, expected: Named) -> None:
        """The method's moving weights are these, and they did move."""
        mine = method.weights.parameters
        assert set(mine) == set(expected)
        for name, value in expected.items():
            moved = float((value.detach() - self.source[name]).abs().max())
            gap = float((mine[name].double() - value).detach().abs().max())
            assert gap <= 2e-3 * moved + 1e-6, (name, gap, moved)
        gaps = [(v.detach() - self.source[n]).abs().max() for n, v in expected.items()]
        assert float(max(gaps)) > 1e-4


class Sgd:
    """b ← m·b + g and w ← w − lr·b; Nesterov's form steps along g + m·b."""

    def __init__(self, lr: float, momentum: float = 0.9, *, nesterov: bool = False) -> None:
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.speed: Named = {}

    def __call__(self, weights: Named, loss: Tensor) -> Named:
        """The weights after one step down a loss."""
        return self.along(weights, slopes(loss, weights))

    def along(self, weights: Named, grads: Named) -> Named:
        """The weights after one step along given gradients."""
        stepped = {}
        for n, g in grads.items():
            self.speed[n] = self.momentum * self.speed[n] + g if n in self.speed else g
            way = g + self.momentum * self.speed[n] if self.nesterov else self.speed[n]
            stepped[n] = weights[n].detach() - self.lr * way
        return leaves(stepped)


class Adam:
    """Adam's bias-corrected moments; `decay` shrinks weights beside the step, as AdamW does."""

    def __init__(self, lr: float, decay: float = 0.0) -> None:
        self.lr, self.decay, self.count = lr, decay, 0
        self.first: Named = {}
        self.second: Named = {}

    def __call__(self, weights: Named, loss: Tensor) -> Named:
        """The weights after one step down a loss."""
        return self.along(weights, slopes(loss, weights))

    def along(self, weights: Named, grads: Named) -> Named:
        """The weights after one step along given gradients."""
        self.count += 1
        stepped = {}
        for n, g in grads.items():
            self.first[n] = 0.9 * self.first.get(n, 0 * g) + 0.1 * g
            self.second[n] = 0.999 * self.second.get(n, 0 * g) + 0.001 * g**2
            mean = self.first[n] / (1 - 0.9**self.count)
            root = (self.second[n] / (1 - 0.999**self.count)).sqrt() + 1e-8
            kept = (1 - self.lr * self.decay) * weights[n].detach()
            stepped[n] = kept - self.lr * mean / root
        return leaves(stepped)


def slopes(loss: Tensor, weights: Named) -> Named:
    """The loss's gradient by name; zero where a weight has no part in it."""
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    pairs = zip(weights.items(), found, strict=True)
    return {n: torch.zeros_like(v) if g is None else g for (n, v), g in pairs}


def leaves(values: Named) -> Named:
    return {n: v.detach().clone().requires_grad_() for n, v in values.items()}


def linear(w: Named, name: str, x: Tensor) -> Tensor:
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def norm(w: Named, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return centred / spread * w[name + ".weight"] + w[name + ".bias"]


@pytest.fixture
def rule() -> Rule:
    return Rule()
