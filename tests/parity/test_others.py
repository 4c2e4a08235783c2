"""LAME's assignment, REM's masked views, EcoTTA's meta networks, ReservoirTTA's slots."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from ostinato import adapt
from ostinato.checks import CLASSES, small_batches, small_model
from ostinato.methods._style import image_moments, style_of

LN = math.log(CLASSES)


def test_lame(rule):
    """z = softmax(ln p + K z) to its fixed point, K a Gaussian of the distance between unit
    features whose width is the mean distance to the fifth nearest, itself among them; nothing
    moves.
    """
    method = adapt(small_model(), "lame", iterations=500)
    assert method.config.affinity == "rbf"
    for pixels in small_batches(4):
        features = rule.features({}, pixels)
        unit = features / features.norm(dim=1, keepdim=True)
        apart = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
        width = apart.sort(1).values[:, 4].mean()
        kernel = (-(apart**2) / (2 * width**2)).exp()
        p = rule.classify({}, features).softmax(1)
        z = p
        for _ in range(2000):
            z = ((p + 1e-10).log() + kernel @ z).softmax(1)
        torch.testing.assert_close(method(pixels).exp().double(), z, rtol=0, atol=2e-3)


def test_rem(rule):
    """Views without the 10 and 20 % of patches the class token attends to most: each harder
    view follows the easier ones, whose entropy is to be no larger; Adam on early norms.
    """
    method = adapt(small_model(), "rem", lr=0.01, skip=1)
    weights = {n: v for n, v in rule.norms().items() if n.startswith("blocks.0.")}
    step = rule.adam(0.01)
    ranked = 0
    for pixels in small_batches(5):
        views = [rule.logits(weights, pixels)]
        order = rule.attention.argsort(1)  # least attended first
        for count in (14, 12):  # of 16 patches, rounded down
            kept = order[:, :count] + 1

            def keep(x, kept=kept):
                rows = torch.stack([row[index] for row, index in zip(x, kept, strict=True)])
                return torch.cat([x[:, :1], rows], 1)

            views.append(rule.logits(weights, pixels, keep))
        rule.same(method(pixels), views[0])
        loss = 0.0
        for easy, hard in ((0, 1), (0, 2), (1, 2)):
            loss = loss + rule.cross(views[hard], views[easy].detach()).mean()
            more = rule.entropy(views[easy]) - rule.entropy(views[hard]).detach()
            ranked += int((more > 0).sum())
            loss = loss + more.clamp(min=0).mean()
        weights = step(weights, loss)
    assert 0 < ranked < 5 * 3 * 8
    rule.same_weights(method, weights)


def adapted_logits(rule, meta, pixels):
    """Logits behind both blocks' meta networks, and Σ mean |adapted − frozen| of each alone."""
    x, gaps = rule.tokens({}, pixels), 0.0

    def change(k, entered, left):
        w = {n.partition(f"part{k}.")[2]: v for n, v in meta.items() if f"part{k}." in n}
        even = F.layer_norm(entered, (32,), w["norm.weight"], w["norm.bias"])
        return left * w["scale"] + w["shift"] + F.gelu(even @ w["down"].T) @ w["up"].T

    for k in range(2):
        left = rule.block({}, k, x)
        alone = change(k, x.detach(), left.detach()) - left.detach()
        gaps = gaps + alone.abs().mean()
        x = change(k, x, left)
    end = F.layer_norm(x, (32,), rule.source["norm.weight"], rule.source["norm.bias"], 1e-6)
    return rule.classify({}, end[:, 0]), gaps


def test_ecotta(rule):
    """Our variant for transformers: a step of 0.5 · the distance to the frozen parts, then one
    of the confident images' mean entropy in a second forward, which predicts; one momentum for
    both.
    """
    kappa = 0.865
    settings = {"warmed": False, "parts": 2, "rank": 4, "lr": 0.02, "kappa": kappa}
    method = adapt(small_model(), "ecotta", **settings)
    meta = {n: p.detach().double().requires_grad_() for n, p in method.adapted.added().items()}
    start, step = {n: v.detach().clone() for n, v in meta.items()}, rule.sgd(0.02)
    kept = []
    for pixels in small_batches(5):
        meta = step(meta, 0.5 * adapted_logits(rule, meta, pixels)[1])
        logits, _ = adapted_logits(rule, meta, pixels)
        rule.same(method(pixels), logits)
        h = rule.entropy(logits)
        keep = h < kappa * LN
        kept.append(int(keep.sum()))
        meta = step(meta, h[keep].mean() if kept[-1] else 0 * h.sum())
    assert 0 < sum(kept) < 40
    for name, parameter in method.adapted.added().items():
        gap = float((parameter.detach().double() - meta[name].detach()).abs().max())
        assert gap < 1e-4, name
    assert any(float((meta[n].detach() - v).abs().max()) > 1e-3 for n, v in start.items())


def information(rule, weights, pixels):
    """Entropy of the mean prediction less the mean entropy."""
    p = rule.logits(weights, pixels).softmax(1)
    return float((-(p.mean(0) * p.mean(0).log()).sum() + (p * p.log()).sum(1).mean()).detach())


@pytest.mark.parametrize("centroid_lr", [0.0, 0.05])
def test_reservoir(rule, centroid_lr):
    """A style far from all centroids opens a slot, a copy of the most informative one; shares
    are softmax(−distance); the mean of all slots by their shares predicts, then the nearest
    takes a TENT step with Nesterov's momentum; centroids descend the clustering loss of all
    styles so far.
    """
    method = adapt(
        small_model(), "reservoir", threshold=4.0, centroid_lr=centroid_lr, temperature=20.0,
        inner_settings={"lr": 0.02},
    )  # fmt: skip
    slots, past, chosen = [(rule.norms(), rule.sgd(0.02, nesterov=True))], [], []
    centroids, fit = None, None
    for pixels in [*small_batches(8), *(0.4 * b for b in small_batches(4))]:
        style = style_of(image_moments(pixels)).double()[None]
        if centroids is None or float((centroids - style).norm(dim=1).min()) > 4.0:
            if centroids is not None:
                found = [information(rule, w, pixels) for w, _ in slots]
                best = max(range(len(slots)), key=found.__getitem__)
                slots.append(copy.deepcopy(slots[best]))
            centroids = style if centroids is None else torch.cat([centroids, style])
            fit = rule.adam(centroid_lr)
        shares = (-(centroids - style).norm(dim=1) / 20.0).softmax(0)
        past.append(style)
        if len(centroids) > 1:
            named = {"c": centroids.clone().requires_grad_()}
            apart = (torch.cat(past)[:, None] - named["c"][None]).square().sum(-1)
            # The root's slope at zero is taken as zero: a style upon its centroid has no direction.
            apart = torch.where(apart > 0, apart.clamp_min(1e-30).sqrt(), 0.0)
            q = (-apart / 20.0).softmax(1)
            loss = -(q * q.log()).sum(1).mean() + (q.mean(0) * q.mean(0).log()).sum()
            centroids = fit(named, loss)["c"].detach()
        active = int(shares.argmax())
        chosen.append(active)
        mean = {
            n: sum(s * w[n].detach() for s, (w, _) in zip(shares, slots, strict=True))
            for n in slots[0][0]
        }
        rule.same(method(pixels), rule.logits(mean, pixels))
        assert method.slots.active == active
        weights, step = slots[active]
        slots[active] = (step(weights, rule.entropy(rule.logits(weights, pixels)).mean()), step)
    assert len(slots) == len(method.slots) == 4
    assert set(chosen) == {0, 1, 2, 3}
    rule.same(method.styles.centroids, centroids)
    rule.same_weights(method.inner, slots[active][0])
