"""CMF: the filter in scalars against the method's tensors."""

from __future__ import annotations

import pytest
import torch

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods.base import Method


def test_weights_follow_the_filter(monkeypatch):
    def add_one(self, batch, objective):
        with torch.no_grad():
            for parameter in self.weights.parameters.values():
                parameter.add_(1.0)
        return True

    method = adapt(small_model(), "cmf", noise=0.2)
    monkeypatch.setattr(Method, "update", add_one)
    q = 0.2 * sum(p.numel() for p in method.weights.parameters.values()) / 38400
    model = hidden = variance = 0.0  # as differences from the source
    for batch in small_batches(4):
        method(batch)
        model += 1.0
        hidden *= 0.99
        variance = 0.99**2 * variance + q
        beta = max((1 - q) / (variance + 1 - q), 0.89)
        beta = 1.0 if beta >= 0.9999 else beta
        variance *= beta
        hidden = beta * hidden + (1 - beta) * model
        model = 0.99 * model + 0.01 * hidden
        for name, parameter in method.weights.parameters.items():
            source = method.weights.source[name]
            torch.testing.assert_close(parameter - source, torch.full_like(source, model))
            torch.testing.assert_close(
                method.hidden.values[name] - source, torch.full_like(source, hidden)
            )
    assert method.filter["variance"] == pytest.approx(variance)


def test_predictions_are_roids_before_any_step():
    batch = small_batches(1)[0]
    assert torch.equal(adapt(small_model(), "cmf")(batch), adapt(small_model(), "roid")(batch))
