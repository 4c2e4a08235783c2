"""Teachers and restoration against the formulas they stand for."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ostinato.errors import StateError, TargetError
from ostinato.ops.snapshot import State
from ostinato.ops.teacher import Substitute, Teacher, _bernoulli_positions, restore_


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))


def test_teacher_follows_the_moving_average_formula(net):
    parameters = dict(net.named_parameters())
    teacher = Teacher(net, parameters, momentum=0.9)
    expected = {name: p.detach().double().clone() for name, p in parameters.items()}
    for momentum in (None, 0.5, None):
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.add_(torch.randn_like(parameter))
        teacher.update(momentum)
        keep = 0.9 if momentum is None else momentum
        for name, parameter in parameters.items():
            expected[name] = keep * expected[name] + (1 - keep) * parameter.detach().double()
    for name, value in expected.items():
        torch.testing.assert_close(teacher.values[name].double(), value, rtol=1e-5, atol=1e-6)


def test_teacher_predicts_with_its_own_values_and_leaves_the_student_alone(net):
    frozen = copy.deepcopy(net)
    teacher = Teacher(net, dict(net.named_parameters()), momentum=0.9)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    student = {name: p.detach().clone() for name, p in net.named_parameters()}
    x = torch.randn(5, 4)
    logits = teacher.logits(x)
    assert torch.equal(logits, frozen(x).detach())
    assert not logits.requires_grad
    assert all(torch.equal(p, student[name]) for name, p in net.named_parameters())
    assert not torch.allclose(net(x), logits)


def test_teacher_of_some_parameters_shares_the_others(net):
    norm = {"2.weight": net[2].weight, "2.bias": net[2].bias}
    teacher = Teacher(net, norm, momentum=0.5)
    assert sum(v.numel() for v in teacher.values.values()) == 16
    with torch.no_grad():
        net[3].weight.zero_()
        net[3].bias.fill_(7.0)
    assert torch.equal(teacher.logits(torch.randn(2, 4)), torch.full((2, 3), 7.0))


def test_teacher_state_round_trip_and_refusal(net):
    teacher = Teacher(net, dict(net.named_parameters()), momentum=0.5)
    kept = teacher.export_state().clone()
    with torch.no_grad():
        net[0].weight.add_(1.0)
    teacher.update()
    assert not torch.equal(teacher.values["0.weight"], kept.tensors["0.weight"])
    teacher.import_state(kept)
    assert torch.equal(teacher.values["0.weight"], kept.tensors["0.weight"])
    with pytest.raises(StateError, match=r"0\.weight"):
        teacher.import_state(State({"0.weight": torch.zeros(1)}))


def test_substitute_passes_gradients_and_refuses_strangers(net):
    run = Substitute(net, {"w": net[0].weight})
    other = torch.randn(8, 4, requires_grad=True)
    run({"w": other}, torch.randn(2, 4)).sum().backward()
    assert other.grad is not None
    assert net[0].weight.grad is None
    with pytest.raises(TargetError, match="stranger"):
        Substitute(net, {"stranger": nn.Parameter(torch.ones(1))})


def moved_copy(net):
    source = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    return dict(net.named_parameters()), source


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_restoration_of_none_and_of_all_is_exact(net, probability, share):
    parameters, source = moved_copy(net)
    count = restore_(parameters, source, probability, torch.Generator().manual_seed(0))
    same = [torch.equal(p, source[name]) for name, p in parameters.items()]
    assert all(same) if share else not any(same)
    assert count == share * sum(p.numel() for p in parameters.values())


@pytest.mark.parametrize("probability", [0.001, 0.01, 0.3, 0.9])
def test_restoration_frequency_and_independence(probability):
    total = 200_000
    positions = _bernoulli_positions(total, probability, torch.Generator().manual_seed(1))
    spread = math.sqrt(total * probability * (1 - probability))
    assert abs(len(positions) - total * probability) < 5 * spread
    # Independent draws: a success follows a success as often as anything else.
    hits = torch.zeros(total, dtype=torch.bool)
    hits[positions] = True
    pairs = int((hits[1:] & hits[:-1]).sum())
    expected = total * probability**2
    assert abs(pairs - expected) < 6 * math.sqrt(expected) + 6
    # And every part of the range is treated alike.
    quarters = hits.view(4, -1).sum(1).double()
    assert (quarters - total * probability / 4).abs().max() < 5 * spread / 2


def test_restoration_puts_back_single_values_and_repeats_with_its_generator(net):
    parameters, source = moved_copy(net)
    start = {name: p.detach().clone() for name, p in parameters.items()}
    restore_(parameters, source, 0.5, torch.Generator().manual_seed(3))
    first = {name: p.detach().clone() for name, p in parameters.items()}
    for name, value in first.items():
        back, kept = value == source[name], value == start[name]
        assert bool((back | kept).all())
    flat = torch.cat([(first[n] == source[n]).flatten() for n in first]).float()
    assert 0.3 < flat.mean() < 0.7
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(start[name])
    restore_(parameters, source, 0.5, torch.Generator().manual_seed(3))
    assert all(torch.equal(p, first[name]) for name, p in parameters.items())


@given(st.integers(1, 2000), st.floats(1e-6, 1 - 1e-6), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_positions_are_sorted_unique_and_in_range(total, probability, seed):
    positions = _bernoulli_positions(total, probability, torch.Generator().manual_seed(seed))
    assert bool((positions.diff() > 0).all())
    assert positions.numel() == 0 or (positions[0] >= 0 and positions[-1] < total)
