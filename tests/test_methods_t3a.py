"""T3A: supports chosen one by one in numpy against the method."""

from __future__ import annotations

import numpy as np
import torch

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.models import VisionModel


def entropy(scores):
    p = np.exp(scores - scores.max())
    p /= p.sum()
    return -(p * np.log(p)).sum()


@torch.no_grad()
def test_several_batches_against_numpy():
    net = small_model()
    vision = VisionModel(net)
    weight, bias = net.head.weight.double().numpy(), net.head.bias.double().numpy()
    held = [
        (row, int((weight @ row + bias).argmax()), entropy(weight @ row + bias)) for row in weight
    ]
    method = adapt(small_model(), "t3a", supports=3)
    for batch in small_batches(4):
        features = net.forward_features(vision.prepare(batch))[:, 0].double().numpy()
        for z in features:
            scores = weight @ z + bias
            held.append((z, int(scores.argmax()), entropy(scores)))
        held = [
            s
            for c in range(5)
            for s in sorted((h for h in held if h[1] == c), key=lambda h: h[2])[:3]
        ]
        templates = np.zeros((5, 32))
        for z, label, _ in held:
            templates[label] += z / np.linalg.norm(z)
        lengths = np.linalg.norm(templates, axis=1, keepdims=True)
        templates = templates / np.maximum(lengths, 1e-12)
        np.testing.assert_allclose(method(batch).numpy(), features @ templates.T, atol=1e-3)
    assert len(method.supports.labels) == len(held)
