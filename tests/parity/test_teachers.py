"""Methods with a second view or a slow teacher: ROID, CoTTA, RMT, ViDA, RoTTA."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato import adapt
from ostinato.checks import CLASSES, small_batches, small_model
from ostinato.ops.augment import cotta_view

LN = math.log(CLASSES)


def both_ways(rule, a, b):
    """Mean of the cross-entropies of both directions, per image."""
    return 0.5 * (rule.cross(a, b) + rule.cross(b, a))


def to_unit(values):
    """Moved and scaled so that the smallest is 0 and the largest 1."""
    return (values - values.min()) / (values.max() - values.min())


def test_roid(rule):
    """Likelihood ratio and consistency with a mirrored-in, ungrained view, both weighed by
    exp(diversity · certainty / T) and by zero below the mean diversity; Nesterov's momentum; θ
    drawn back to the source by 1 %; prediction times the smoothed prior.
    """
    method = adapt(small_model(), "roid", lr=0.005, seed=4)
    draws = rule.draws(4)
    weights, step = rule.norms(), rule.sgd(0.005, nesterov=True)
    mean = torch.full((CLASSES,), 1 / CLASSES).double()
    for pixels in small_batches(5):
        logits = rule.logits(weights, pixels)
        known = logits.detach()
        p = known.softmax(1)
        prior = p.mean(0)
        smooth = max(1 / 8, 1 / CLASSES) / prior.max()
        rule.same(method(pixels), known * (prior + smooth) / (1 + smooth * CLASSES))
        diverse = to_unit(1 - (p @ mean) / (p.norm(dim=1) * mean.norm()))
        w = (diverse * to_unit(-rule.entropy(known)) * 3).exp()
        w = torch.where(diverse < diverse.mean(), 0.0, w)
        mean = 0.9 * mean + 0.1 * prior
        q = logits.softmax(1).clamp(max=0.99)
        ratio = -(q * (q / (1 - q) + 1e-5).log()).sum(1)
        view = cotta_view(pixels, draws, padding="reflect", grain=False)
        apart = both_ways(rule, rule.logits(weights, view), logits)
        weights = step(weights, (w * (ratio + apart)).sum() / 8)
        weights = {n: 0.99 * v + 0.01 * rule.source[n] for n, v in weights.items()}
        weights = {n: v.detach().requires_grad_() for n, v in weights.items()}
    rule.same_weights(method, weights)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_cotta(rule, threshold):
    """The student follows a teacher (θ' ← 0.9 θ' + 0.1 θ here), whose logits are averaged over
    views where the source model's mean confidence is below the threshold; nothing is restored
    here.
    """
    settings = {"views": 3, "restore": 0.0, "ema": 0.9, "threshold": threshold}
    method = adapt(small_model(), "cotta", lr=0.01, seed=5, **settings)
    draws = rule.draws(5)
    weights, step = rule.every(), rule.sgd(0.01, nesterov=True)
    teacher = dict(rule.source)
    for pixels in small_batches(4):
        taught = rule.logits(teacher, pixels)
        if threshold == 1.0:
            views = [cotta_view(pixels, draws) for _ in range(3)]
            taught = torch.stack([rule.logits(teacher, view) for view in views]).mean(0)
        rule.same(method(pixels), taught)
        student = rule.logits(weights, pixels)
        weights = step(weights, both_ways(rule, student, taught).mean())
        teacher = rule.follow(teacher, weights, 0.9)
    rule.same_weights(method, weights)


def test_rmt(rule):
    """Half the symmetric cross-entropies of image and view with the teacher, plus the contrast
    of nearest prototype, image and view at temperature 0.1; student's plus teacher's logits.
    """
    method = adapt(small_model(), "rmt", ema=0.9, seed=6)
    assert method.config.lr == 0.01
    draws = rule.draws(6)
    weights, step = rule.every(), rule.sgd(0.01, nesterov=True)
    teacher, rows = dict(rule.source), rule.source["head.weight"]
    for pixels in small_batches(4):
        view = cotta_view(pixels, draws)
        features, seen = rule.features(weights, pixels), rule.features(weights, view)
        student, other = rule.classify(weights, features), rule.classify(weights, seen)
        taught = rule.logits(teacher, pixels)
        rule.same(method(pixels), student + taught)
        unit = lambda x: x / x.norm(dim=1, keepdim=True)  # noqa: E731
        nearest = rows[(unit(features.detach()) @ unit(rows).T).argmax(1)]
        every = unit(torch.cat([nearest, features, seen]))
        alike = (every @ every.T / 0.1).exp() * (1 - torch.eye(24).double())
        share = alike / alike.sum(1, keepdim=True)
        pull = 0.0
        for anchor in range(24):
            friends = [n for n in range(24) if n % 8 == anchor % 8 and n != anchor]
            pull = pull - share[anchor, friends].log().mean() / 24
        near = both_ways(rule, student, taught) + both_ways(rule, other, taught)
        weights = step(weights, 0.5 * near.mean() + pull)
        teacher = rule.follow(teacher, weights, 0.9)
    rule.same_weights(method, weights)


def with_adapters(rule, weights, adapters, low, high):
    """The attention's linear maps with what their two bottlenecks add: W + Σ s · up · down."""
    whole = {**rule.source, **weights}
    for name in [n for n in whole if ".attn." in n and n.endswith("weight")]:
        start = f"adapters.base/{name.removesuffix('.weight').replace('.', '/')}."
        parts = {n.removeprefix(start): v for n, v in adapters.items() if n.startswith(start)}
        added = low * parts["low_up"] @ parts["low_down"]
        whole[name] = whole[name] + added + high * parts["high_up"] @ parts["high_down"]
    return whole


def test_vida(rule):
    """The variance of the teacher's logits over views says which rank leads (1 ± uncertainty);
    the student follows the teacher with two rates, the teacher follows with two shares.
    """
    settings = {"lr": 0.01, "adapter_lr": 0.02, "ema": 0.9, "adapter_ema": 0.7, "threshold": 2e-3}
    method = adapt(
        small_model(), "vida", warmed=False, views=3, low_rank=1, high_rank=4, seed=7, **settings
    )
    draws = torch.Generator()
    draws.set_state(method.random.generator.get_state())  # the adapters' start was drawn before
    start = {n: p.detach().double() for n, p in method.adapted.added().items()}
    weights, step = rule.every(), rule.sgd(0.01, nesterov=True)
    adapters = {n: v.clone().requires_grad_() for n, v in start.items()}
    adapt_step = rule.sgd(0.02, nesterov=True)
    teacher, slow = dict(rule.source), dict(start)
    signs = set()
    for pixels in small_batches(6):
        even = with_adapters(rule, teacher, slow, 1, 1)
        views = [rule.logits(even, cotta_view(pixels, draws)) for _ in range(3)]
        unsure = 0.1 * torch.stack(views).var(0).mean()
        sign = 1 if unsure >= 2e-3 else -1
        signs.add(sign)
        low, high = 1 - sign * unsure, 1 + sign * unsure
        taught = rule.logits(with_adapters(rule, teacher, slow, low, high), pixels)
        rule.same(method(pixels), taught)
        student = rule.logits(with_adapters(rule, weights, adapters, low, high), pixels)
        loss = both_ways(rule, student, taught).mean()
        joint = {**weights, **adapters}
        grads = torch.autograd.grad(loss, joint.values())
        by_name = dict(zip(joint, grads, strict=True))
        weights = step.along(weights, {n: by_name[n] for n in weights})
        adapters = adapt_step.along(adapters, {n: by_name[n] for n in adapters})
        teacher = rule.follow(teacher, weights, 0.9)
        slow = rule.follow(slow, adapters, 0.7)
    assert signs == {1, -1}
    rule.same_weights(method, weights)
    for name, parameter in method.adapted.added().items():
        rule.same(parameter.detach(), adapters[name])
        assert not torch.equal(parameter.double(), start[name])


class Bank:
    """Category-balanced sampling with timeliness and uncertainty, in the paper's order of cases."""

    def __init__(self, size):
        self.size, self.rows = size, []

    def badness(self, row):
        return 1 / (1 + math.exp(-row["age"] / self.size)) + row["entropy"] / LN

    def offer(self, image, label, entropy):
        new = {"image": image, "label": label, "entropy": entropy, "age": 0}
        by_class = {c: [r for r in self.rows if r["label"] == c] for c in range(CLASSES)}
        rivals = None
        if len(by_class[label]) >= self.size / CLASSES:
            rivals = by_class[label]
        elif len(self.rows) >= self.size:
            most = max(len(rows) for rows in by_class.values())
            rivals = [r for rows in by_class.values() if len(rows) == most for r in rows]
        if rivals is None:
            self.rows.append(new)
        else:
            worst = max(rivals, key=self.badness)
            if self.badness(worst) > self.badness(new):
                self.rows[next(i for i, r in enumerate(self.rows) if r is worst)] = new
        for row in self.rows:
            row["age"] += 1


def test_rotta(rule):
    """Every so many images Adam steps on the bank: cross-entropy of a view with the teacher's
    prediction of the image, weighed by exp(−a) / (1 + exp(−a)) of its age; the teacher
    predicts.
    """
    settings = {"capacity": 10, "every": 12, "rate": 0.1, "lr": 0.01, "seed": 8}
    method = adapt(small_model(), "rotta", **settings)
    draws, bank, seen = rule.draws(8), Bank(10), 0
    weights, step = rule.norms(), rule.adam(0.01)
    teacher = {n: rule.source[n] for n in weights}
    for pixels in small_batches(6):
        taught = rule.logits(teacher, pixels)
        rule.same(method(pixels), taught)
        entropy = rule.entropy(taught).tolist()
        for image, label, h in zip(pixels, taught.argmax(1).tolist(), entropy, strict=True):
            bank.offer(image, label, h)
            seen += 1
            if seen % 12 == 0:
                images = torch.stack([r["image"] for r in bank.rows])
                wanted = rule.logits(teacher, images)
                student = rule.logits(weights, cotta_view(images, draws))
                age = torch.tensor([r["age"] / 10 for r in bank.rows]).double()
                timely = (-age).exp() / (1 + (-age).exp())
                weights = step(weights, (timely * rule.cross(student, wanted)).mean())
                teacher = rule.follow(teacher, weights, 0.9)
    rule.same_weights(method, weights)
