"""ZOA: its loss by timm's own path, its estimate and its steps by hand."""

from __future__ import annotations

import torch
from torch.func import functional_call
from torch.nn import functional as F

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import check_method, small_batches, small_model
from ostinato.methods._vectors import DomainVectors
from ostinato.methods.zoa import _two_sided
from ostinato.models import VisionModel


def build(**settings):
    given = prepare(small_model(), "zoa", torch.cat(small_batches(4, seed=9)))
    return adapt(small_model(), "zoa", prepared=given, **settings)


class Normed(torch.nn.Module):
    """Normed class features of both blocks of the small model."""

    def __init__(self):
        super().__init__()
        self.net = small_model()

    def forward(self, pixels):
        net = self.net
        x = net._pos_embed(net.patch_embed(VisionModel(small_model()).prepare(pixels)))
        x = net.blocks[0](x)
        first = net.blocks[1].norm1(x[:, 0])
        return torch.cat([first, net.norm(net.blocks[1](x)[:, 0])], 1)


@torch.no_grad()
def test_several_batches_by_hand():
    method, reader = build(threshold=100.0, lr=1e-3), Normed()
    head = reader.net.head
    source = reader(torch.cat(small_batches(4, seed=9)))
    names = {n: p for n, p in reader.named_parameters() if "blocks.1.norm" in n}
    theta = torch.cat([p.flatten() for p in names.values()])
    start, past = theta.clone(), None

    def look(flat, pixels):
        pieces = flat.split([p.numel() for p in names.values()])
        given = {n: v.view_as(p) for (n, p), v in zip(names.items(), pieces, strict=True)}
        now = functional_call(reader, given, (pixels,))
        gap = (now.mean(0) - source.mean(0)).square().mean()
        gap = gap + (now.std(0) - source.std(0)).square().mean()
        logits = head(now[:, -32:])
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        return float(entropy + 30 * gap), now[:, -32:]

    for batch in small_batches(4):
        draws = torch.Generator()
        draws.set_state(method.random.generator.get_state())
        loss, final = look(theta, batch)
        moved = final if past is None else final + source.mean(0)[-32:] - past
        out = method.step(batch)
        expected = F.linear(moved, head.weight, head.bias)
        torch.testing.assert_close(out.logits, expected, atol=2e-3, rtol=2e-3)
        tried = _two_sided(len(theta), draws)
        slope = (look(theta + 0.02 * tried, batch)[0] - loss) / (0.02 * tried)
        theta = theta - 1e-3 * (slope + 0.4 * (theta - start))
        got = torch.cat([p.detach().flatten() for p in method.moving.values()])
        torch.testing.assert_close(got - start, theta - start, atol=2e-4, rtol=5e-3)
        mean = final.mean(0)
        past = mean if past is None else 0.9 * past + 0.1 * mean


def test_trial_steps_keep_away_from_zero_on_both_sides():
    drawn = _two_sided(1000, torch.Generator().manual_seed(0))
    assert 0.5 <= float(drawn.abs().min()) <= float(drawn.abs().max()) <= 1
    assert 400 < int((drawn > 0).sum()) < 600


def test_a_change_of_domain_keeps_weights_and_forgets_the_mean():
    method = build(least=1)
    for batch in small_batches(3):
        method(batch)
    before = torch.cat([p.detach().clone().flatten() for p in method.moving.values()])
    out = method.step(small_batches(4)[3])
    assert out.is_new
    torch.testing.assert_close(method.bank.vectors[1], before - method.source)
    assert method.target.images == 8


def test_of_two_alike_the_older_goes():
    bank = DomainVectors(4, 3, 10.0, 0.0)
    for vector in ([1.0, 0, 1, 0], [0, 1.0, 0, 1], [1.0, 0.1, 1, 0]):
        bank.add(torch.tensor(vector), 0.0, 0.01)
    assert bank.twin([2, 2]) == 1


def test_it_conforms_while_domains_come_and_go():
    report = check_method("zoa", least=1, vectors=2, steps=2)
    assert report.passed, str(report)
