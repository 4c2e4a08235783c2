"""BN statistics: against torch's own training mode, mixes for small batches, refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ostinato import adapt
from ostinato.checks import small_batches, small_cnn, small_model
from ostinato.errors import ConfigError
from ostinato.models import VisionModel


def test_the_batch_alone_is_training_mode():
    batch = small_batches(4)[3]
    reference = VisionModel(copy.deepcopy(small_cnn()).train())
    with torch.no_grad():
        expected = reference(batch)
        plain = VisionModel(small_cnn())(batch)
    got = adapt(small_cnn(), "bn")(batch)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(got, plain, atol=1e-2)


def test_a_prior_mixes_by_images():
    batch = small_batches(1, size=4)[0]
    net = small_cnn()
    norm = nn.Sequential(*[m for m in net.modules() if isinstance(m, nn.BatchNorm2d)][:1])
    seen = []
    norm[0].register_forward_pre_hook(lambda m, i: seen.append(i[0]))
    method = adapt(net, "bn", prior=12)
    outputs = []
    norm[0].register_forward_hook(lambda m, i, out: outputs.append(out))
    method(batch)
    x, layer = seen[-1], norm[0]
    mean = 0.25 * x.mean((0, 2, 3)) + 0.75 * layer.running_mean
    variance = 0.25 * x.var((0, 2, 3), correction=0) + 0.75 * layer.running_var
    at = (None, slice(None), None, None)
    expected = (x - mean[at]) / (variance[at] + layer.eps).sqrt()
    expected = expected * layer.weight[at] + layer.bias[at]
    torch.testing.assert_close(outputs[-1], expected, atol=1e-5, rtol=1e-5)


def test_running_statistics_stay_as_they_are():
    net = small_cnn()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    method = adapt(net, "bn")
    for batch in small_batches(3):
        method(batch)
    back = method.detach()
    assert all(torch.equal(v, before[k]) for k, v in back.state_dict().items())
    with torch.no_grad():
        again, fresh = (VisionModel(m)(small_batches(1)[0]) for m in (back, small_cnn()))
    assert torch.equal(again, fresh)


def test_a_transformer_is_refused():
    with pytest.raises(ConfigError, match="has none: use a convolutional network"):
        adapt(small_model(), "bn")
