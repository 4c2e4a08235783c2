"""PEA: two aligned forwards by hand in numpy, block by block, against the method."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.methods.pea import _seen_views
from ostinato.methods.pea._colouring import TokenMoments, power, recolour
from ostinato.models import VisionModel


def root(matrix, exponent):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(values**exponent) @ vectors.T


def tokens_into_blocks(net, pixels):
    x = net.patch_embed(VisionModel(small_model()).prepare(pixels))
    return net.norm_pre(net._pos_embed(x))


def source_moments(net):
    x = tokens_into_blocks(net, torch.cat(small_batches(4, seed=9)))
    found = []
    for block in net.blocks:
        x = block(x)
        flat = x.reshape(-1, x.shape[-1]).double().numpy()
        found.append((flat.mean(0), np.cov(flat.T)))
    return found


def reference(net, source, pixels, past, usual, step):
    """One batch without views; `past` and `usual` change."""
    x = plain = tokens_into_blocks(net, pixels)
    scores = []
    for block, (mean, covariance) in zip(net.blocks, source, strict=True):
        plain = block(plain)
        cls = plain[:, 0].double().numpy()
        scores.append(
            np.linalg.norm(mean - cls.mean(0))
            + np.linalg.norm(np.diag(covariance) - cls.var(0, ddof=1))
        )
    shares = (np.array(scores) - min(scores)) / (max(scores) - min(scores))
    for n, block in enumerate(net.blocks):
        x = block(x)
        if shares[n] < 1e-3:
            continue
        mean, covariance = source[n]
        eye = 1e-5 * np.eye(len(mean))
        flat = x.reshape(-1, x.shape[-1]).double().numpy()
        now = (flat.mean(0), np.cov(flat.T) + eye)
        if n in past:
            drift = np.abs(now[0] - past[n][0]).mean()
            usual[n] = 0.2 * drift + 0.8 * usual[n]
            if drift <= 4.0 * usual[n]:
                now = tuple(0.02 * a + 0.98 * b for a, b in zip(now, past[n], strict=True))
        else:
            usual[n] = 0.0
        past[n] = now
        aligned = (flat - now[0]) @ root(now[1], -0.5) @ root(covariance + eye, 0.5) + mean
        mixed = (1 - shares[n]) * flat + shares[n] * aligned
        x = torch.from_numpy(mixed).float().view_as(x)
    return net.head(net.norm(x)[:, 0])


@torch.no_grad()
def test_several_batches_against_numpy():
    net = small_model()
    source = source_moments(net)
    given = prepare(small_model(), "pea", torch.cat(small_batches(4, seed=9)))
    method = adapt(small_model(), "pea", prepared=given, views=0, entropy_jump=100.0)
    past, usual = {}, {}
    for step, batch in enumerate(small_batches(6)):
        expected = reference(net, source, batch, past, usual, step)
        torch.testing.assert_close(method(batch), expected, atol=5e-3, rtol=5e-3)


def test_coloured_tokens_have_the_source_moments():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(500, 4, generator=generator) @ torch.randn(4, 4, generator=generator)
    wanted = TokenMoments.of(torch.randn(300, 4, generator=generator) + 3)
    out = recolour(tokens, TokenMoments.of(tokens), wanted.mean, power(wanted.covariance, 0.5, 0))
    got = TokenMoments.of(out)
    torch.testing.assert_close(got.mean, wanted.mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got.covariance, wanted.covariance, atol=1e-3, rtol=1e-3)


def test_an_entropy_jump_forgets_the_target():
    given = prepare(small_model(), "pea", torch.cat(small_batches(4, seed=9)))
    method = adapt(small_model(), "pea", prepared=given)
    method(small_batches(1)[0])
    assert method.drift.moments
    method.usual["entropy"] = -10.0
    out = method.step(small_batches(1)[0])
    assert "forgot the target's moments" in out.events
    assert not method.drift.moments
    assert method.usual["entropy"] > 0


def test_views_are_crop_mirror_and_both():
    pixels = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    plain, large, mirrored, both = _seen_views(pixels, 3, 0.9)
    assert plain is pixels
    wanted = F.interpolate(pixels[..., 1:19, 1:19], (20, 20), mode="bilinear")
    torch.testing.assert_close(large, wanted)
    assert torch.equal(mirrored, pixels.flip(-1))
    assert torch.equal(both, large.flip(-1))
