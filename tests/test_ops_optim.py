"""Nesterov's momentum by hand, and which methods' authors set it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.ops.optim import make_optimizer
from ostinato.registry import METHODS

SLOPES = (1.0, -2.0, 0.5, 0.0)


def walked(nesterov: bool, momentum: float) -> float:
    """Where one value ends after gradients that do not depend on it."""
    weight = nn.Parameter(torch.zeros(()))
    optimizer = make_optimizer("sgd", [weight], lr=0.1, momentum=momentum, nesterov=nesterov)
    for slope in SLOPES:
        weight.grad = torch.tensor(slope)
        optimizer.step()
    return float(weight.detach())


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_by_hand(nesterov: bool) -> None:
    place, speed = 0.0, 0.0
    for slope in SLOPES:
        speed = 0.9 * speed + slope
        place -= 0.1 * (slope + 0.9 * speed if nesterov else speed)
    assert walked(nesterov, 0.9) == pytest.approx(place, rel=1e-6)
    assert walked(True, 0.9) != pytest.approx(walked(False, 0.9))


def test_without_momentum_there_is_nothing_to_look_ahead_along() -> None:
    assert walked(True, 0.0) == walked(False, 0.0)


@pytest.mark.parametrize(
    ("name", "set_by_authors"),
    [
        *((name, True) for name in ("cotta", "vida", "roid", "rmt")),
        *((name, False) for name in ("tent", "sar", "eata", "deyo", "rdumb")),
    ],
)
def test_which_authors_set_it(name: str, set_by_authors: bool) -> None:
    assert METHODS[name].Config().nesterov is set_by_authors
