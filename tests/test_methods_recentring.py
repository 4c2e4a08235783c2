"""NEO and FOA-shift: features moved by hand, several batches, against the methods."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.models import VisionModel


def features_and_head():
    """Features of every batch by timm's own path, and the classifier."""
    net = small_model()
    vision = VisionModel(net)
    with torch.no_grad():
        found = [net.forward_features(vision.prepare(b))[:, 0] for b in small_batches(5)]
    return found, net.head


def test_neo_follows_its_formula_in_both_forms():
    found, head = features_and_head()
    for rate in (0.1, None):
        method = adapt(small_model(), "neo", rate=rate)
        centre, seen = torch.zeros(32), 0
        for batch, z in zip(small_batches(5), found, strict=True):
            seen += len(z)
            share = len(z) / seen if rate is None else rate
            centre = centre + share * (z.mean(0) - centre)
            expected = F.linear(z - centre, head.weight, head.bias)
            torch.testing.assert_close(method(batch), expected, atol=1e-4, rtol=1e-4)


def test_cumulative_neo_centres_what_was_seen_exactly():
    found, _ = features_and_head()
    method = adapt(small_model(), "neo", rate=None)
    for batch in small_batches(5):
        method(batch)
    torch.testing.assert_close(method.centre.value, torch.cat(found).mean(0), atol=1e-5, rtol=1e-4)


def test_shift_uses_the_past_alone_and_ends_at_the_source():
    found, head = features_and_head()
    images = torch.cat(small_batches(4, seed=9))
    net, vision = small_model(), VisionModel(small_model())
    with torch.no_grad():
        source = net.forward_features(vision.prepare(images))[:, 0].mean(0)
    method = adapt(small_model(), "foa_shift", prepared=prepare(small_model(), "foa_shift", images))
    past = None
    for batch, z in zip(small_batches(5), found, strict=True):
        moved = z if past is None else z + (source - past)
        torch.testing.assert_close(
            method(batch), F.linear(moved, head.weight, head.bias), atol=1e-4, rtol=1e-4
        )
        past = z.mean(0) if past is None else 0.9 * past + 0.1 * z.mean(0)
