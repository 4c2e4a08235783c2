"""IMSE: its loss and first step by hand, exactness at the start, and recall of a domain."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import check_method, small_batches, small_model
from ostinato.methods.imse._spectra import collect_look, spread_of_use
from ostinato.models import VisionModel

LIVELY = {"least": 1, "kappa": 1.0}


def build(**settings):
    given = prepare(small_model(), "imse", torch.cat(small_batches(4, seed=9)))
    return adapt(small_model(), "imse", prepared=given, **settings)


def test_untouched_values_are_the_source_model_to_the_bit():
    batch = small_batches(1)[0]
    with torch.no_grad():
        expected = VisionModel(small_model())(batch)
    assert torch.equal(build()(batch), expected)


def loss_of(net, batch, reliable=None):
    """Entropy and spread, read off timm's blocks with hooks; U, V of the source weights."""
    seen = []
    names = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    linears = [block.get_submodule(name) for block in net.blocks for name in names]
    handles = [m.register_forward_pre_hook(lambda m, i: seen.append((m, i[0]))) for m in linears]
    logits = VisionModel(net)(batch)
    for handle in handles:
        handle.remove()
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    total = 0.0
    for module, tokens in seen:
        right = torch.linalg.svd(module.source, full_matrices=False)[2]
        unit = tokens / tokens.norm(dim=-1, keepdim=True)
        spread = (unit @ right.T).reshape(-1, len(right)).std(0)
        total = total + spread.sort().values[:-1].mean()
    keep = entropy < 0.95 * math.log(5)
    keep = keep if reliable is None else keep & reliable
    return entropy[keep].mean() - 50.0 * total / 3, keep


def test_first_step_against_a_model_in_factors():
    batch = small_batches(1)[0]
    method = build(kappa=0.95, optimizer="sgd", momentum=0.0, lr=1e-2, least=1)
    net = small_model()
    leaves = {}
    for name, module in list(net.named_modules()):
        if isinstance(module, torch.nn.Linear) and name.startswith("blocks"):
            u, s, v = torch.linalg.svd(module.weight.detach(), full_matrices=False)
            leaf = s.clone().requires_grad_()
            module.source = module.weight.detach().clone()
            module._parameters.pop("weight")
            module.factors = (u, leaf, v)
            module.register_forward_pre_hook(
                lambda m, i: setattr(m, "weight", m.factors[0] @ m.factors[1].diag() @ m.factors[2])
            )
            leaves[name] = leaf
    loss, keep = loss_of(net, batch)
    slope = torch.autograd.grad(loss, list(leaves.values()))
    length = torch.cat(slope).norm()
    for leaf, part in zip(leaves.values(), slope, strict=True):
        leaf.data += 0.05 * part / length
    second, _ = loss_of(net, batch, keep)
    slope = torch.autograd.grad(second, list(leaves.values()))
    method(batch)
    for (name, leaf), part in zip(leaves.items(), slope, strict=True):
        source = method.weights.source[name]
        moved = method.values[name].detach() - source
        torch.testing.assert_close(moved, -1e-2 * part, atol=2e-4, rtol=2e-2)
        assert leaf.shape == source.shape


def test_a_domain_that_returns_starts_where_it_ended():
    method = build(threshold=0.1, **LIVELY)  # batches of eight differ more than larger ones
    batches = small_batches(7)
    for batch in batches[:3]:
        method(batch)
    ended = torch.cat([v.detach().clone() for v in method.values.values()])
    assert method.step(batches[3]).is_new
    torch.testing.assert_close(method.bank.codes[1], ended)
    for batch in batches[4:6]:
        method(batch)
    assert len(method.bank) == 2
    taken = method.bank.recall(torch.tensor([1.0, 0.1]), None)
    assert torch.equal(taken, ended)
    mixed = method.bank.recall(torch.tensor([1.0, 1.0]), 1.0)
    torch.testing.assert_close(mixed, (method.bank.codes[0] + ended) / 2)


def test_a_full_bank_keeps_the_source_and_the_newest():
    method = build(codes=2, **LIVELY)
    bank, first = method.bank, method.bank.codes[0].clone()
    look = method.detector
    for batch in small_batches(9):
        method(batch)
    for number in range(3):
        bank.add(torch.full_like(first, float(number)), look.look)
    assert len(bank) == 3
    assert torch.equal(bank.codes[0], first)
    assert bank.codes[1:, 0].tolist() == [1.0, 2.0]


def test_the_source_look_does_not_depend_on_how_images_are_split():
    images = torch.cat(small_batches(4, seed=9))
    one, two = (collect_look(VisionModel(small_model()), images, n).tensors for n in (32, 8))
    torch.testing.assert_close(one["mean"], two["mean"])
    torch.testing.assert_close(one["variance"], two["variance"], rtol=1e-4, atol=1e-5)


def test_spread_leaves_the_largest_out():
    right = torch.eye(3)
    tokens = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])
    spread = torch.tensor([[1.0, 0, -1], [0, 1, 0], [0, 0, 0]]).std(1)
    expected = float((spread[1] + spread[2]) / 2)
    assert float(spread_of_use(tokens, right)) == pytest.approx(expected)


def test_it_conforms_while_domains_come_and_go():
    report = check_method("imse", **LIVELY, recall="mix", codes=2)
    assert report.passed, str(report)
