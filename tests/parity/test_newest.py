"""M2A's random squares and GAIN's Gaussians."""

from __future__ import annotations

import math

import torch

from ostinato import adapt
from ostinato.checks import CLASSES, small_batches, small_model

SIDE = 32


def blacked(pixels, ratio, draws):
    """Each image without one square of that share, its corner drawn for all images at once."""
    side = round(math.sqrt(round(ratio * SIDE * SIDE)))
    down, across = (torch.randint(SIDE - side + 1, (8, 1), generator=draws) for _ in range(2))
    hidden = pixels.clone()
    for image, y, x in zip(hidden, down.flatten().tolist(), across.flatten().tolist(), strict=True):
        image[:, y : y + side, x : x + side] = 0
    return hidden


def test_m2a(rule):
    """Views with a black square over 10 and 20 % of the image: each follows those with less
    hidden, and the mean entropy of all three falls; Adam on early norms; the whole image predicts.
    """
    method = adapt(small_model(), "m2a", lr=0.01, skip=1, seed=4)
    draws = rule.draws(4)
    weights = {n: v for n, v in rule.norms().items() if n.startswith("blocks.0.")}
    step = rule.adam(0.01)
    for pixels in small_batches(5):
        hidden = [pixels] + [blacked(pixels, ratio, draws) for ratio in (0.1, 0.2)]
        views = [rule.logits(weights, one) for one in hidden]
        rule.same(method(pixels), views[0])
        loss = sum(rule.entropy(view).mean() for view in views) / 3
        for less, more in ((0, 1), (0, 2), (1, 2)):
            loss = loss + rule.cross(views[more], views[less].detach()).mean()
        weights = step(weights, loss)
    rule.same_weights(method, weights)


def chernoff(p, q):
    """p^(1−λ)·q^λ, normalised, at the λ of the finest grid where its mass is least."""
    shares = torch.linspace(0, 1, 20001).double()
    mass = (p.log() * (1 - shares[:, None]) + q.log() * shares[:, None]).exp().sum(1)
    share = float(shares[mass.argmin()])
    mixed = p ** (1 - share) * q**share
    return mixed / mixed.sum()


def test_gain(rule):
    """Gaussians of features less the batch's mean: a class's mean rests on three images at v·w,
    w the classifier's row and v the variance so far, and on all images by their source
    probabilities; one variance, image by image around the means of its time; Chernoff's mix.
    """
    method = adapt(small_model(), "gain", least=8)
    rows = rule.source["head.weight"] - rule.source["head.weight"].mean(0)
    seen, said, within = [], [], 0.0
    shares_differ = False
    for pixels in small_batches(5):
        features = rule.features({}, pixels)
        p = rule.classify({}, features).softmax(1)
        centred = features - features.mean(0)
        seen.append(centred)
        said.append(p)
        every, weight = torch.cat(seen), torch.cat(said)
        start = every.square().mean(0) * rows
        means = [
            (3 * start[c] + (weight[:, c : c + 1] * every).sum(0)) / (3 + weight[:, c].sum())
            for c in range(CLASSES)
        ]
        for x, shares in zip(centred, p, strict=True):
            within = within + sum(s * (x - m) ** 2 for s, m in zip(shares, means, strict=True))
        variance = within / len(every)
        densities = torch.stack([-((centred - m) ** 2 / variance).sum(1) / 2 for m in means], 1)
        q = densities.softmax(1)
        expected = torch.stack([chernoff(a, b) for a, b in zip(p, q, strict=True)])
        torch.testing.assert_close(method(pixels).exp().double(), expected, rtol=0, atol=2e-3)
        shares_differ |= bool((expected - p).abs().max() > 0.02)
    assert shares_differ


def test_a_small_batch_is_the_source_s(rule):
    """Below 16 images a batch's mean is too uncertain: the source answers, and nothing counts."""
    method = adapt(small_model(), "gain")
    (pixels,) = small_batches(1)
    torch.testing.assert_close(
        method(pixels).exp().double(), rule.logits({}, pixels).softmax(1), rtol=0, atol=1e-5
    )
    assert method.sums.images == 0
