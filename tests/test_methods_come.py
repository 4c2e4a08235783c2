"""COME: the opinion's entropy against its definition, and what its gradient may not do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ostinato import adapt
from ostinato.checks import check_method, small_batches, small_model
from ostinato.methods.come import _opinion_entropy


def test_entropy_of_beliefs_and_of_not_knowing():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double()
    evidence = np.exp(logits.numpy())
    strength = evidence.sum(1, keepdims=True) + 5
    opinion = np.concatenate([evidence / strength, 5 / strength], 1)
    np.testing.assert_allclose(opinion.sum(1), 1)
    expected = -(opinion * np.log(opinion)).sum(1)
    np.testing.assert_allclose(_opinion_entropy(logits).numpy(), expected, atol=1e-5)


def test_scaling_the_logits_is_no_way_down():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    _opinion_entropy(logits).sum().backward()
    along = (logits.grad * logits).sum(1)
    torch.testing.assert_close(along, torch.zeros(6), atol=1e-6, rtol=0)
    assert float(logits.grad.abs().min()) > 0


def test_a_step_is_the_gradient_step_for_the_batch_size():
    method = adapt(small_model(), "come", momentum=0.0, lr=0.8)
    batch = small_batches(1)[0]
    twin = adapt(small_model(), "come")
    _opinion_entropy(twin.model(batch)).mean().backward()
    method(batch)
    for name, parameter in method.weights.parameters.items():
        step = 0.8 * len(batch) / 64 * twin.weights.parameters[name].grad
        expected = method.weights.source[name] - step
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("inner", ["eta", pytest.param("sar", marks=pytest.mark.slow)])
def test_inside_other_rules_it_conforms_while_it_really_adapts(inner):
    report = check_method("come", inner=inner, kappa=1.1, redundancy=0.9, lr=1e-1)
    assert report.passed, str(report)


def test_eta_takes_sure_and_new_opinions_weighted():
    batch = small_batches(1)[0]
    method = adapt(small_model(), "come", inner="eta", kappa=1.0, redundancy=0.99)
    with torch.no_grad():
        entropy = _opinion_entropy(method.model(batch)).double().numpy()
    bound = np.log(5)
    kept = entropy[entropy < bound]
    out = method.step(batch)
    assert out.used == len(kept) > 0
    assert out.loss == pytest.approx(float((np.exp(bound - kept) * kept).mean()), rel=1e-4)


def test_sar_starts_over_when_opinions_become_too_sure():
    method = adapt(small_model(), "come", inner="sar", kappa=2.0, recover_below=5.0, lr=1e-1)
    out = method.step(small_batches(1)[0])
    assert "recovered the source model" in out.events
    for name, parameter in method.weights.parameters.items():
        assert torch.equal(parameter, method.weights.source[name])
