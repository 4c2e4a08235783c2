"""Methods that lower an entropy over the norms: TENT, pseudo-label, EATA, RDumb, SAR, DeYO."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import CLASSES, small_batches, small_model
from ostinato.methods.deyo._shuffle import shuffle_patches

LN = math.log(CLASSES)


@pytest.mark.parametrize("nesterov", [False, True])
def test_tent(rule, nesterov):
    """Mean entropy of all images, SGD with momentum, prediction before the update."""
    method = adapt(small_model(), "tent", lr=0.01, nesterov=nesterov)
    weights, step = rule.norms(), rule.sgd(0.01, nesterov=nesterov)
    for pixels in small_batches(5):
        logits = rule.logits(weights, pixels)
        rule.same(method(pixels), logits)
        weights = step(weights, rule.entropy(logits).mean())
    rule.same_weights(method, weights)


def test_pseudo_label(rule):
    """Cross-entropy with the likeliest class where its probability reaches a bound."""
    method = adapt(small_model(), "pseudo_label", lr=0.01, threshold=0.45)
    weights, step = rule.norms(), rule.sgd(0.01)
    counts = []
    for pixels in small_batches(5):
        logits = rule.logits(weights, pixels)
        rule.same(method(pixels), logits)
        surest = logits.softmax(1).amax(1)
        counts.append(int((surest >= 0.45).sum()))
        if counts[-1]:
            weights = step(weights, -surest[surest >= 0.45].log().mean())
    assert 0 < sum(counts) < 40
    rule.same_weights(method, weights)


def fisher_of(rule, images, batch):
    """Squared gradients of the cross-entropy with the model's own labels, mean over batches."""
    weights = rule.norms()
    parts = images.split(batch)
    total = dict.fromkeys(weights, 0)
    for part in parts:
        loss = -rule.logits(weights, part).log_softmax(1).amax(1).mean()
        for name, grad in zip(weights, torch.autograd.grad(loss, weights.values()), strict=True):
            total[name] = total[name] + grad**2 / len(parts)
    return total


@pytest.mark.parametrize("name", ["eata", "eta", "rdumb"])
def test_eata_eta_and_rdumb(rule, name):
    """Reliable (H < E0) and non-redundant (cosine with the mean prediction < d) images, weighed
    by exp(E0 − H); EATA adds α Σ F (θ − θ0)², RDumb starts over from the source at an interval.
    """
    kappa, apart, alpha = 0.8, 0.97, 50.0
    images = torch.cat(small_batches(4, seed=9))
    settings = {"kappa": kappa, "redundancy": apart, "lr": 0.02}
    if name == "eata":
        settings |= {"fisher_alpha": alpha, "fisher_batch": 8}
        settings["prepared"] = prepare(small_model(), "eata", images, fisher_batch=8)
    elif name == "eta":
        settings |= {"fisher_alpha": 0.0}
    else:
        settings |= {"reset_every": 4}
    method = adapt(small_model(), "eata" if name == "eta" else name, **settings)
    fisher = fisher_of(rule, images, 8)
    weights, step, mean = rule.norms(), rule.sgd(0.02), None
    kept = []
    for number, pixels in enumerate(small_batches(6)):
        logits = rule.logits(weights, pixels)
        rule.same(method(pixels), logits)
        h, p = rule.entropy(logits), logits.detach().softmax(1)
        keep = h < kappa * LN
        if mean is not None:
            cosine = (p @ mean) / (p.norm(dim=1) * mean.norm())
            keep = keep & (cosine.abs() < apart)
        kept.append(int(keep.sum()))
        if kept[-1]:
            mine = p[keep].mean(0)
            mean = mine if mean is None else 0.9 * mean + 0.1 * mine
            loss = ((kappa * LN - h[keep].detach()).exp() * h[keep]).mean()
            if name == "eata":
                gaps = {n: (v - rule.source[n]) ** 2 for n, v in weights.items()}
                loss = loss + alpha * sum((fisher[n] * g).sum() for n, g in gaps.items())
            weights = step(weights, loss)
        if name == "rdumb" and (number + 1) % 4 == 0:
            weights, step, mean = rule.norms(), rule.sgd(0.02), None
    assert 0 < sum(kept) < 48
    rule.same_weights(method, weights)


def test_sar(rule):
    """The gradient at θ + ρ g/‖g‖ of the entropy of images that are reliable before and after
    the climb; without any the step is momentum's; the source comes back when the mean loss is
    low.
    """
    kappa, radius, low, lr = 0.8, 0.05, 1.265, 0.32
    settings = {"kappa": kappa, "radius": radius, "lr": lr, "recover_below": low}
    method = adapt(small_model(), "sar", **settings)
    weights, step, average = rule.norms(final=False), rule.sgd(lr * 8 / 64), None
    kept, recoveries = [], 0
    for pixels in small_batches(12):
        logits = rule.logits(weights, pixels)
        out = method.step(pixels)
        rule.same(out.logits, logits)
        h = rule.entropy(logits)
        first = h < kappa * LN
        up = {n: v.detach() for n, v in weights.items()}
        if bool(first.any()):
            grads = torch.autograd.grad(h[first].mean(), weights.values())
            length = sum((g**2).sum() for g in grads).sqrt()
            up = {n: up[n] + radius * g / length for n, g in zip(up, grads, strict=True)}
        up = {n: v.requires_grad_() for n, v in up.items()}
        h = rule.entropy(rule.logits(up, pixels))
        both = first & (h < kappa * LN)
        kept.append(int(both.sum()))
        loss = h[both].mean() if kept[-1] else 0 * h.sum()
        grads = torch.autograd.grad(loss, up.values())
        weights = step.along(weights, dict(zip(up, grads, strict=True)))
        if kept[-1]:
            value = float(loss.detach())
            average = value if average is None else 0.9 * average + 0.1 * value
            if average < low:
                weights, average = rule.norms(final=False), None
                step = rule.sgd(lr * 8 / 64)
                recoveries += 1
                assert "recovered the source model" in out.events
    assert 0 in kept
    assert recoveries == 1
    assert average is not None
    rule.same_weights(method, weights)


def test_deyo(rule):
    """H < 0.5 ln C and a fall of the label's probability by shuffled patches above 0.2 (here
    less); weights exp(0.4 ln C − H) + exp(fall).
    """
    kappa, fall_bound = 0.85, 0.0
    method = adapt(small_model(), "deyo", kappa=kappa, plpd=fall_bound, lr=0.16, seed=3)
    draws = rule.draws(3)
    weights, step = rule.norms(final=False), rule.sgd(0.16 * 8 / 64)
    counts = []
    for pixels in small_batches(5):
        logits = rule.logits(weights, pixels)
        rule.same(method(pixels), logits)
        h = rule.entropy(logits)
        before = logits.detach().softmax(1)
        after = rule.logits(weights, shuffle_patches(pixels, 4, draws)).detach().softmax(1)
        label = before.argmax(1)
        fall = (before - after)[torch.arange(8), label]
        keep = (h < kappa * LN) & (fall > fall_bound)
        counts.append((int((h < kappa * LN).sum()), int(keep.sum())))
        if counts[-1][1]:
            weight = (0.4 * LN - h.detach()).exp() + fall.exp()
            weights = step(weights, (weight * h)[keep].mean())
    reliable, both = (sum(c) for c in zip(*counts, strict=True))
    assert 40 > reliable > both > 0
    rule.same_weights(method, weights)
