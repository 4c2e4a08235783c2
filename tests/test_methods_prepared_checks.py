"""The public checks where the defaults leave something out, and what methods declare."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.checks import check_method
from ostinato.registry import METHODS

CLASSIFIERS = ("adma", "dpcore", "ecotta", "kff", "rem", "reservoir", "vdp", "vida")


def test_a_reservoir_of_several_slots_passes_too() -> None:
    report = check_method("reservoir", threshold=1.0, inner_settings={"lr": 1e-2})
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("name", "settings"), [("vida", {"views": 2, "high_rank": 8}), ("ecotta", {}), ("becotta", {})]
)
def test_cold_starts_pass_without_a_prepared_file(name: str, settings: dict[str, Any]) -> None:
    assert not METHODS[name].needs(METHODS[name].Config(warmed=False))
    report = check_method(name, warmed=False, **settings)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("name", "presets"),
    [(n, {"imagenet-c", "cifar100-c"}) for n in CLASSIFIERS]
    + [("svdp", {"acdc"}), ("becotta", {"acdc"})],
)
def test_declarations_are_whole(name: str, presets: set[str]) -> None:
    kind = METHODS[name]
    assert kind.name == name
    assert presets <= set(kind.presets)
    assert kind.info.differences != "none known"
    for preset in kind.presets.values():
        kind.Config.parse(preset)
