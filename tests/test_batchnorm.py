"""Batch norms under other statistics: as training mode, as the authors of peers have them."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn

import ostinato
from ostinato.api import prepare
from ostinato.models import VisionModel
from ostinato.ops.batchnorm import BatchStatistics, FollowingStatistics
from ostinato.ops.trainable import norm_parameters

SIZE = 32


def _net():
    torch.manual_seed(0)
    net = timm.create_model("test_efficientnet", num_classes=5)
    with torch.no_grad():  # statistics as if it had been trained on something
        for _ in range(3):
            net.train()(torch.randn(8, 3, SIZE, SIZE))
    return net.eval()


def _batch(seed=1):
    return torch.rand(8, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def test_batch_statistics_are_training_mode_with_activations_kept():
    net, batch = _net(), _batch()
    expected = copy.deepcopy(net).train()(batch)  # timm's norms hold the activation too
    with BatchStatistics(net):
        got = net(batch)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_gradients_pass_through_the_statistics():
    net, batch = _net(), _batch()
    reference = copy.deepcopy(net).train()
    with BatchStatistics(net):
        net(batch).square().sum().backward()
    reference(batch).square().sum().backward()
    found = [
        (p.grad, q.grad) for p, q in zip(net.parameters(), reference.parameters(), strict=True)
    ]
    assert all(torch.allclose(p, q, atol=1e-2, rtol=1e-2) for p, q in found)


METHODS = ["bn", "tent", "eata", "sar", "roid", "rdumb", "cotta", "deyo"]


@pytest.mark.parametrize("name", METHODS)
def test_peers_see_the_batch_and_give_the_source_back(name):
    net, batch = _net(), _batch()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with torch.no_grad():
        source = VisionModel(net)(batch)
        trained = VisionModel(copy.deepcopy(net).train())(batch)
    more = {"prepared": prepare(net, "eata", batch)} if name == "eata" else {}
    if name == "roid":
        more["prior_correction"] = False
    adapted = ostinato.adapt(net, name, **more)
    adapted.predict(batch, source=True)
    assert torch.equal(adapted.last.source_logits, source)
    torch.testing.assert_close(adapted.last.logits, trained, atol=1e-4, rtol=1e-4)
    adapted(batch)
    ostinato.unwrap(adapted)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    with torch.no_grad():
        assert torch.equal(VisionModel(net)(batch), source)


def test_a_channel_with_one_value_keeps_the_sources():
    net = nn.Sequential(nn.BatchNorm1d(4)).eval()
    x = torch.randn(1, 4)
    with torch.no_grad(), BatchStatistics(net):
        assert torch.equal(net(x), nn.Sequential(nn.BatchNorm1d(4)).eval()(x))


def test_following_statistics_follow_whose_turn_it_is():
    net = nn.Sequential(nn.BatchNorm1d(1, affine=False)).eval()
    following = FollowingStatistics(net, 0.5, ("teacher", "student"))
    x = torch.tensor([[2.0], [6.0]])
    assert torch.allclose(net(x), x, atol=1e-4)  # the source's, until they follow
    following.who, following.following = "student", True
    net(x)
    assert float(following.values["student.0.mean"]) == 2.0  # half of the way to 4
    assert float(following.values["teacher.0.mean"]) == 0.0
    state = following.export_state().clone()
    net(x)
    following.import_state(state)
    assert float(following.values["student.0.mean"]) == 2.0


def test_rotta_learns_statistics_from_its_bank():
    net, batch = _net(), _batch()
    adapted = ostinato.adapt(net, "rotta", every=8)
    start = adapted.following.values["teacher.bn1.mean"].clone()
    adapted(batch)
    assert not torch.equal(adapted.following.values["teacher.bn1.mean"], start)
    adapted.reset()
    assert torch.equal(adapted.following.values["teacher.bn1.mean"], start)


def test_sar_leaves_the_last_stage_of_a_network_alone():
    names = norm_parameters(_net(), blocks=range(9))
    assert any(name.startswith("blocks.3.") for name in names)
    assert "bn1.weight" in names
    assert not any(name.startswith(("blocks.4.", "bn2.")) for name in names)
