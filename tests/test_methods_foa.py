"""FOA: the fitness by timm's own path, the choice of the best, and the evolution strategy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.methods.foa._evolution import Evolution
from ostinato.models import VisionModel


def build(**settings):
    given = prepare(small_model(), "foa", torch.cat(small_batches(4, seed=9)))
    return adapt(small_model(), "foa", prepared=given, **settings)


def layers(net, pixels, prompt=None):
    """Normed class features of every block, as the paper has them."""
    x = net._pos_embed(net.patch_embed(VisionModel(small_model()).prepare(pixels)))
    if prompt is not None:
        x = torch.cat([x[:, :1], prompt.expand(len(x), -1, -1), x[:, 1:]], 1)
    x = net.blocks[0](x)
    first = net.blocks[1].norm1(x[:, 0])
    return torch.cat([first, net.norm(net.blocks[1](x)[:, 0])], 1)


@torch.no_grad()
def fitness(net, pixels, prompt):
    source = layers(net, torch.cat(small_batches(4, seed=9)))
    now = layers(net, pixels, prompt)
    gap = (now.mean(0) - source.mean(0)).square().sum()
    gap = gap + (now.std(0) - source.std(0)).square().sum()
    logits = net.head(now[:, -32:])
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum()
    return float(entropy + 0.4 * gap * len(pixels) / 64), now[:, -32:]


def test_a_batch_is_answered_by_the_best_prompt_and_shifted_by_the_past():
    net, method = small_model(), build(population=6)
    source = layers(net, torch.cat(small_batches(4, seed=9))).mean(0)[-32:]
    past = None
    for batch in small_batches(3):
        draws = torch.Generator()
        draws.set_state(method.random.generator.get_state())
        tried = [*method.search.ask(draws), method.best.prompt.flatten()]
        found = [fitness(net, batch, x.float().view(3, 32)) for x in tried]
        best = int(np.argmin([score for score, _ in found]))
        final = found[best][1] if past is None else found[best][1] + source - past
        out = method.step(batch)
        expected = F.linear(final, net.head.weight, net.head.bias)
        torch.testing.assert_close(out.logits, expected, atol=1e-3, rtol=1e-3)
        assert out.loss == pytest.approx(found[best][0], rel=1e-3)
        torch.testing.assert_close(method.best.prompt.flatten(), tried[best].float())
        mean = torch.stack([z.mean(0) for _, z in found]).mean(0)
        past = mean if past is None else 0.9 * past + 0.1 * mean


def test_weights_of_the_strategy_sum_as_they_should():
    search = Evolution(20, population=12, sigma=1.0)
    assert float(search.weights[:6].sum()) == pytest.approx(1)
    assert bool((search.weights[6:] <= 0).all())
    m = 1 / float(search.weights[:6].square().sum())
    assert search.effective == pytest.approx(m)
    assert search.rank_one + search.rank_many < 1


def test_an_uneven_bowl_is_found_and_its_shape_learned():
    scales = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    search, draws = Evolution(3, 10, 1.0), torch.Generator().manual_seed(1)
    for _ in range(150):
        found = search.ask(draws)
        search.tell(found, (scales * (found - 1).square()).sum(1).tolist())
    assert float((search.mean - 1).abs().max()) < 1e-3
    spread = search.covariance.diagonal()
    assert float(spread[0] / spread[2]) > 10  # the inverse of the curvature


def test_scores_that_are_not_finite_change_nothing():
    search = Evolution(3, 6, 1.0)
    before = search.mean.clone()
    search.tell(search.ask(torch.Generator()), [1.0, float("nan"), 2.0, 3.0, 4.0, 5.0])
    assert torch.equal(search.mean, before)
    assert search.generation == 0
