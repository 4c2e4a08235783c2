"""The public checks on the methods that mask, prompt, add adapters or wrap another method.

Settings are those that make a check fast; the rules themselves have tests of their own.
"""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.checks import check_method
from ostinato.registry import METHODS

FAST: dict[str, dict[str, Any]] = {
    "adma": {"views": 2},
    "dpcore": {"new_steps": 3},
    "ecotta": {"warmed": False},
    "kff": {"new_steps": 3},
    "rem": {},
    "reservoir": {},
    "vdp": {},
    "vida": {"warmed": False, "views": 2, "high_rank": 8},
}


@pytest.mark.parametrize("name", FAST)
def test_every_check_passes(name: str) -> None:
    report = check_method(name, **FAST[name])
    assert report.passed, str(report)


def test_a_reservoir_of_several_slots_passes_too() -> None:
    report = check_method("reservoir", threshold=1.0, inner_settings={"lr": 1e-2})
    assert report.passed, str(report)


@pytest.mark.parametrize("name", FAST)
def test_declarations_are_whole(name: str) -> None:
    kind = METHODS[name]
    assert kind.name == name
    assert {"imagenet-c", "cifar100-c"} <= set(kind.presets)
    assert kind.info.differences != "none known"
    for preset in kind.presets.values():
        kind.Config.parse(preset)
