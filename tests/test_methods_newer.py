"""What the newer peers share: label subsets, declarations, and no graph where none is wanted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.methods.base import Method
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS

# Each with settings under which a small model of five classes takes moments and really adapts.
NEWER: dict[str, dict[str, Any]] = {
    "neo": {},
    "foa_shift": {},
    "pea": {},
    "come": {"lr": 1e-1},
    "cmf": {"lr": 1e-2},
    "t3a": {"supports": 2},
    "gain": {"least": 4},
    "m2a": {},
    "memo": {"views": 2, "lr": 1e-2},
    "foa": {"population": 6},
    "imse": {"least": 1, "kappa": 1.0},
    "zoa": {"least": 1},
    "spa": {},
    "cola": {"inner": "tent", "inner_settings": {"lr": 1e-2}, "least": 1},
}
FORWARD_ONLY = ("neo", "foa_shift", "pea", "t3a", "gain", "foa", "zoa")


def build(name: str, **more: Any) -> Method:
    settings = {**NEWER[name], **more}
    config = resolve_config(METHODS[name], None, settings)
    prepared = None
    if "prepared file" in METHODS[name].needs(config):
        images = torch.cat(small_batches(4, seed=9))
        prepared = prepare(small_model(), name, images, torch.arange(len(images)) % 5, **settings)
    return adapt(small_model(), name, prepared=prepared, **settings)


@pytest.mark.parametrize("name", NEWER)
def test_label_subsets_and_changes_of_label_space(name: str) -> None:
    method = build(name)
    classes = torch.tensor([4, 1, 2])
    for index, batch in enumerate(small_batches(6)):
        given = method(batch, classes=classes if index % 2 else None)
        assert given.shape == (8, 3 if index % 2 else 5)
        assert bool(given.isfinite().all())


@pytest.mark.parametrize("name", NEWER)
def test_declarations_are_whole(name: str) -> None:
    kind = METHODS[name]
    default = kind.Config().model_dump()
    assert default == resolve_config(kind, "imagenet-c", {}).model_dump()
    assert kind.name == name
    assert kind.info.paper != "-"
    assert kind.info.differences


@pytest.mark.parametrize("name", FORWARD_ONLY)
def test_forward_only_methods_build_no_graph(name: str) -> None:
    method = build(name)
    watched: list[bool] = []
    for module in method.model.base.modules():
        module.register_forward_hook(
            lambda m, i, out: watched.append(isinstance(out, torch.Tensor) and out.requires_grad)
        )
    for batch in small_batches(3):
        method(batch)
    assert watched
    assert not any(watched)
